#include "stretto/server/grammar/terminals.h"

#include <algorithm>
#include <utility>

namespace stretto::grammar {
namespace {

constexpr std::int64_t kMostSize = 5'000;  // of an expression with its rules put in
constexpr int kMostTerminalStates = 1'000;

class Finder {
 public:
  Finder(const Rules& rules, const Vocabulary& vocabulary, Budget& budget)
      : rules_(rules), vocabulary_(vocabulary), budget_(budget), facts_(rules.bodies.size()) {}

  Rules find() {
    Rules out{.bodies = {}, .root = rules_.root};
    for (std::size_t r = 0; r < rules_.bodies.size(); ++r) measure_rule(static_cast<int>(r));
    for (const ExprPtr& body : rules_.bodies) out.add(grouped(body));
    return out;
  }

 private:
  struct Facts {
    enum class State : std::uint8_t { kNew, kOpen, kDone } state = State::kNew;
    std::int64_t size = 0;  // too large where it calls itself
    ExprPtr whole;          // with its rules put in
  };
  static constexpr std::int64_t kTooLarge = kMostSize + 1;

  // How deep calls nest is bounded by the number of open rules.
  std::int64_t measure_rule(int r) {
    Facts& facts = facts_[static_cast<std::size_t>(r)];
    if (facts.state == Facts::State::kOpen) return kTooLarge;
    if (facts.state == Facts::State::kDone) return facts.size;
    if (depth_ > 200) return kTooLarge;
    facts.state = Facts::State::kOpen;
    ++depth_;
    facts.size = measure(*rules_.bodies[static_cast<std::size_t>(r)]);
    --depth_;
    facts.state = Facts::State::kDone;
    return facts.size;
  }

  std::int64_t measure(const Expr& expr) {
    budget_.spend();
    if (expr.kind == Expr::Kind::kRule) return measure_rule(expr.rule);
    std::int64_t size = 1 + static_cast<std::int64_t>(expr.text.size());
    for (const ExprPtr& part : expr.parts) size += measure(*part);
    if (expr.kind == Expr::Kind::kRepeat) {
      size *= std::max({expr.min, expr.max, 1});
    }
    return std::min(size, kTooLarge);
  }

  bool is_small(const ExprPtr& expr) { return measure(*expr) < kTooLarge; }

  ExprPtr whole(const ExprPtr& expr) {
    if (expr->kind == Expr::Kind::kRule) {
      Facts& facts = facts_[static_cast<std::size_t>(expr->rule)];
      if (!facts.whole) facts.whole = whole(rules_.bodies[static_cast<std::size_t>(expr->rule)]);
      return facts.whole;
    }
    if (expr->parts.empty()) return expr;
    budget_.make_parts(1);
    Expr out = *expr;
    for (ExprPtr& part : out.parts) part = whole(part);
    return std::make_shared<const Expr>(std::move(out));
  }

  // Nothing where its automaton is too large.
  ExprPtr tried(const ExprPtr& expr) {
    if (!is_small(expr)) return nullptr;
    ExprPtr made = whole(expr);
    try {
      vocabulary_.terminal(*made, kMostTerminalStates, budget_);
    } catch (const GrammarError&) {
      budget_.spend();  // nothing may follow where that was what had run out
      return nullptr;
    }
    return terminal(std::move(made));
  }

  ExprPtr grouped(const ExprPtr& expr) {
    budget_.spend();
    if (ExprPtr made = tried(expr)) return made;
    switch (expr->kind) {
      case Expr::Kind::kSequence:
        return sequence(grouped_runs(expr->parts));
      case Expr::Kind::kChoice:
        return choice(grouped_choices(expr->parts));
      case Expr::Kind::kRepeat:
        return repeat(grouped(expr->parts.front()), expr->min, expr->max);
      default:
        return expr;
    }
  }

  std::vector<ExprPtr> grouped_runs(const std::vector<ExprPtr>& parts) {
    std::vector<ExprPtr> out, run;
    auto end_run = [&] {
      if (run.empty()) return;
      ExprPtr made = tried(sequence(run));
      if (made) {
        out.push_back(std::move(made));
      } else {
        for (const ExprPtr& part : run) out.push_back(grouped(part));
      }
      run.clear();
    };
    for (const ExprPtr& part : parts) {
      if (is_small(part)) {
        run.push_back(part);
      } else {
        end_run();
        out.push_back(grouped(part));
      }
    }
    end_run();
    return out;
  }

  std::vector<ExprPtr> grouped_choices(const std::vector<ExprPtr>& parts) {
    std::vector<ExprPtr> out, small;
    for (const ExprPtr& part : parts) {
      if (is_small(part)) {
        small.push_back(part);
      } else {
        out.push_back(grouped(part));
      }
    }
    if (small.empty()) return out;
    if (ExprPtr made = small.size() < parts.size() ? tried(choice(small)) : nullptr) {
      out.push_back(std::move(made));
      return out;
    }
    for (const ExprPtr& part : small) out.push_back(grouped(part));
    return out;
  }

  const Rules& rules_;
  const Vocabulary& vocabulary_;
  Budget& budget_;
  std::vector<Facts> facts_;
  int depth_ = 0;
};

}  // namespace

Rules with_terminals(const Rules& rules, const Vocabulary& vocabulary, Budget& budget) {
  return Finder(rules, vocabulary, budget).find();
}

}  // namespace stretto::grammar
