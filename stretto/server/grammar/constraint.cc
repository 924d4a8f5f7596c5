#include "stretto/server/grammar/constraint.h"

#include <algorithm>
#include <utility>

namespace stretto::grammar {

Grammar::Grammar(const Rules& rules, const Vocabulary& vocabulary, Budget& budget)
    : vocabulary_(vocabulary),
      network_(std::make_shared<const Network>(rules, vocabulary, budget)),
      automaton_(std::make_shared<Automaton>(network_, vocabulary)) {}

std::shared_ptr<Automaton> Grammar::automaton() const {
  std::lock_guard lock(mutex_);
  std::unique_lock its(automaton_->mutex());
  if (automaton_->is_full()) {
    its.unlock();
    automaton_ = std::make_shared<Automaton>(network_, vocabulary_);
  }
  return automaton_;
}

GrammarConstraint::GrammarConstraint(std::shared_ptr<const Grammar> grammar, std::vector<int> ends)
    : grammar_(std::move(grammar)), ends_(std::move(ends)) {
  begin();
}

void GrammarConstraint::begin() {
  automaton_ = grammar_->automaton();
  std::lock_guard lock(automaton_->mutex());
  state_ = automaton_->start();
  taken_.clear();
  has_ended_ = false;
}

bool GrammarConstraint::is_end(int token) const {
  return std::find(ends_.begin(), ends_.end(), token) != ends_.end();
}

void GrammarConstraint::take(int token) {
  const bool is_first = taken_.empty();
  taken_.push_back(token);
  if (has_ended_) return;
  const Vocabulary& vocabulary = grammar_->vocabulary();
  std::string_view bytes = vocabulary.token(token);
  if (is_first && vocabulary.strips_first_space() && bytes.starts_with(' ')) bytes.remove_prefix(1);
  int to = bytes.empty() ? Automaton::kDead : state_;
  for (char byte : bytes) {
    if (to != Automaton::kDead) to = automaton_->step(to, static_cast<std::uint8_t>(byte));
  }
  if (to != Automaton::kDead) {
    state_ = to;
  } else if (is_end(token) && automaton_->may_end(state_)) {
    has_ended_ = true;
  } else {
    throw ConstraintError("the answer has a token that its grammar does not allow");
  }
}

TokenConstraint::Allowed GrammarConstraint::after(std::span<const int> generated) {
  if (taken_.size() > generated.size() ||
      !std::equal(taken_.begin(), taken_.end(), generated.begin())) {
    begin();
  }
  try {
    {
      std::unique_lock lock(automaton_->mutex());
      if (automaton_->is_full()) {
        lock.unlock();
        begin();
      }
    }
    std::lock_guard lock(automaton_->mutex());
    while (taken_.size() < generated.size()) take(generated[taken_.size()]);
    const bool is_first = taken_.empty() && grammar_->vocabulary().strips_first_space();
    allowed_ = is_first ? automaton_->tokens_after_space(state_) : automaton_->tokens(state_);
    if (!has_ended_ && !automaton_->may_end(state_)) {
      const bool any =
          std::any_of(allowed_->begin(), allowed_->end(), [](auto w) { return w != 0; });
      if (!any) throw ConstraintError("no token of the model goes on as the grammar wants it");
      return {.bits = *allowed_};
    }
    with_ends_ = *allowed_;
    if (has_ended_) std::fill(with_ends_.begin(), with_ends_.end(), 0u);
    for (int end : ends_) with_ends_[static_cast<std::size_t>(end) / 32] |= 1u << (end % 32);
    const bool any =
        std::any_of(with_ends_.begin(), with_ends_.end(), [](auto w) { return w != 0; });
    return {.bits = with_ends_, .is_complete = !any};
  } catch (const GrammarError& e) {  // too many ways
    throw ConstraintError(e.what());
  }
}

std::shared_ptr<const Grammar> GrammarCache::known(const std::string& key) {
  std::lock_guard lock(mutex_);
  for (auto at = kept_.begin(); at != kept_.end(); ++at) {
    if (at->key != key) continue;
    kept_.splice(kept_.begin(), kept_, at);
    return kept_.front().grammar;
  }
  return nullptr;
}

std::shared_ptr<const Grammar> GrammarCache::add(const std::string& key,
                                                 std::shared_ptr<const Grammar> made) {
  std::lock_guard lock(mutex_);
  std::size_t live = made->bytes();
  std::erase_if(live_, [&](const auto& weak) {
    auto other = weak.lock();
    if (other) live += other->bytes();
    return !other;
  });
  if (live > limits_.live_bytes) {
    throw GrammarsFull("the grammars of other requests need all memory that there is for them");
  }
  live_.push_back(made);
  kept_.push_front({key, made});
  kept_bytes_ += kept_.front().bytes();
  while (kept_.size() > limits_.kept || kept_bytes_ > limits_.kept_bytes) {
    kept_bytes_ -= kept_.back().bytes();
    kept_.pop_back();
  }
  return made;
}

}  // namespace stretto::grammar
