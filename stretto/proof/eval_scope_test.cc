// Values that sizes make, with `min` and `max` left open, against what they are at every size. If
// these fail, boxes are taken to end where at some size they do not, and a race there is proved.
#include "stretto/proof/eval_scope.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <string>

#include "stretto/base/test_seed.h"
#include "stretto/ir/printer.h"
#include "stretto/ir/program.h"
#include "stretto/lang/program_builder.h"

namespace stretto::eval_scope_test {
namespace {

constexpr std::int64_t kMost = 11;  // of each of two sizes

struct Sizes {
  Program program;
  SizeAxes axes{.extents = {{.digits = {{0, 1}}}, {.digits = {{1, 1}}}}, .count = 2};

  Sizes() {
    ProgramBuilder p("sizes", 1);
    p.extent("m", kMost);
    p.extent("n", kMost);
    program = p.finish();
  }

  SizeRegion region(const SizePoint& sample) const {
    SizeBox all;
    all.hi[0] = all.hi[1] = kMost;
    SizeRegion out(axes, all, sample);
    out.leave_masks_open(WaitsOpen::kAll);
    return out;
  }

  std::vector<std::int64_t> vars(const SizePoint& point) const {
    return initial_vars(program, 0, {point[0], point[1]});
  }

  Expr size(std::size_t number) const {
    for (std::size_t v = 0; v < program.vars.size(); ++v) {
      if (program.vars[v].kind == VarKind::kExtent && number-- == 0) {
        return Expr::var(static_cast<int>(v));
      }
    }
    return {};
  }
};

std::int64_t value_at(const SizeForm& form, const SizePoint& sample, const SizePoint& point) {
  std::int64_t value = form.value;
  for (std::size_t i = 0; i < point.size(); ++i) value += form.slope[i] * (point[i] - sample[i]);
  return value;
}

std::int64_t value_at(const EvalScope::Clauses& of, const SizePoint& sample,
                      const SizePoint& point) {
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (const auto& clause : of) {
    std::int64_t most = std::numeric_limits<std::int64_t>::min();
    for (const SizeForm& f : clause) most = std::max(most, value_at(f, sample, point));
    least = std::min(least, most);
  }
  return least;
}

template <typename Visit>
void each_size(const SizeBox& box, const Visit& visit) {
  SizePoint point{};
  for (point[0] = box.lo[0]; point[0] <= box.hi[0]; ++point[0]) {
    for (point[1] = box.lo[1]; point[1] <= box.hi[1]; ++point[1]) visit(point);
  }
}

class Lot {
 public:
  Lot(std::uint64_t seed, const Sizes& sizes) : random_(seed), sizes_(sizes) {}
  std::int64_t in(std::int64_t lo, std::int64_t hi) {
    return std::uniform_int_distribution<std::int64_t>(lo, hi)(random_);
  }

  Expr expr(int depth) {
    if (depth == 0 || in(0, 5) == 0) {
      return in(0, 2) == 0 ? Expr(in(-3, 6)) : sizes_.size(static_cast<std::size_t>(in(0, 1)));
    }
    constexpr ExprOp kOps[] = {ExprOp::kAdd, ExprOp::kSub, ExprOp::kMin,
                               ExprOp::kMax, ExprOp::kLt,  ExprOp::kLe};
    if (in(0, 2) == 0) {
      Expr by(in(-3, 4)), other = expr(depth - 1);
      return in(0, 1) == 0 ? by * other : other * by;
    }
    if (in(0, 9) == 0) return expr(depth - 1) * expr(depth - 1);
    return Expr::make(kOps[in(0, 5)], {expr(depth - 1), expr(depth - 1)});
  }

 private:
  std::mt19937_64 random_;
  const Sizes& sizes_;
};

TEST(EvalScope, OpenValuesAreThoseOfEverySizeThatIsLeft) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("STRETTO_TEST_SEED={}", seed));
  Sizes sizes;
  Lot lot(seed, sizes);
  int whole = 0, several = 0;
  for (int round = 0; round < 3000; ++round) {
    SizePoint sample{};
    sample[0] = lot.in(0, kMost);
    sample[1] = lot.in(0, kMost);
    SizeRegion region = sizes.region(sample);
    EvalScope scope(sizes.program, sizes.vars(sample), nullptr, &region);
    Expr expr = lot.expr(4);
    EvalScope::Clauses known = scope.clauses(expr);
    each_size(region.box(), [&](const SizePoint& point) {
      EXPECT_EQ(value_at(known, sample, point), eval(expr, sizes.vars(point)))
          << print_expr(sizes.program, expr) << " at " << point[0] << ", " << point[1];
    });
    whole += region.num_cuts() == 0 ? 1 : 0;
    several += known.size() > 1 || known[0].size() > 1 ? 1 : 0;
  }
  EXPECT_GT(whole, 1000);
  EXPECT_GT(several, 200);
}

// As where rows end at the least of two, and each row is two pairs: one piece does for all sizes.
TEST(EvalScope, AMultipleOfTheLeastIsNotDecided) {
  Sizes sizes;
  SizePoint sample{};
  sample[0] = 9;
  sample[1] = 2;
  Expr least = Expr::make(ExprOp::kMin, {sizes.size(0), sizes.size(1) * 3});
  const Expr less = Expr::make(ExprOp::kLt, {sizes.size(0), sizes.size(1) * 2});
  for (const Expr& expr : {least * 2, Expr(2) * least, least * -2, (least + 1) * 4, least * 0,
                           less * 3, Expr(2) * less + 1}) {
    SizeRegion region = sizes.region(sample);
    EvalScope scope(sizes.program, sizes.vars(sample), nullptr, &region);
    scope.clauses(expr);
    EXPECT_EQ(region.num_cuts(), 0) << print_expr(sizes.program, expr);
  }
}

}  // namespace
}  // namespace stretto::eval_scope_test
