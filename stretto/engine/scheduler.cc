#include "stretto/engine/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "stretto/base/errors.h"

namespace stretto {
namespace {

constexpr std::size_t kMostUnderWay = 2;  // while no more is decided

}  // namespace

Scheduler::Scheduler(const SchedulerLimits& limits)
    : limits_(limits), pool_(limits.num_blocks), cache_(pool_, limits.block_tokens) {
  STRETTO_CHECK(limits.max_running >= 1 && limits.max_rows >= limits.max_running,
                "a step has fewer rows than requests that run");
  STRETTO_CHECK(limits.num_blocks >= 1, "the cache has no blocks");
}

std::int64_t Scheduler::most_tokens() const {
  return std::int64_t{limits_.num_blocks} * limits_.block_tokens;
}

std::int64_t Scheduler::blocks_for(std::int64_t tokens) const {
  return (tokens + limits_.block_tokens - 1) / limits_.block_tokens;
}

Scheduler::Entry& Scheduler::at(RequestId id) {
  auto found = requests_.find(id);
  STRETTO_CHECK(found != requests_.end(), "a request that has ended");
  return found->second;
}

const Scheduler::Entry& Scheduler::at(RequestId id) const {
  auto found = requests_.find(id);
  STRETTO_CHECK(found != requests_.end(), "a request that has ended");
  return found->second;
}

RequestId Scheduler::add(ScheduledRequest request) {
  if (request.tokens.empty()) throw UserError("the prompt is empty");
  if (request.max_tokens < 1) throw UserError("a request for no tokens");
  std::int64_t most = static_cast<std::int64_t>(request.tokens.size()) + request.max_tokens - 1;
  if (most > most_tokens()) {
    throw UserError(fmt::format("{} tokens of prompt and answer do not fit the cache of {}",
                                most + 1, most_tokens()));
  }
  RequestId id = ++last_id_;
  auto& entry = requests_[id];
  entry.request = std::move(request);
  entry.waits_since = num_decided_;
  waiting_.insert(turn_of(id, entry));
  return id;
}

std::vector<Piece> Scheduler::decide() {
  STRETTO_CHECK(steps_.size() < kMostUnderWay, "a step is decided before earlier ones were made");
  step_.clear();
  waits_for_blocks_ = false;
  let_in_who_has_waited();
  ++num_decided_;
  budget_ = limits_.max_rows;
  prompts_left_ = limits_.max_prompts > 0 ? limits_.max_prompts : limits_.max_running;
  std::int64_t preempted = counters_.preemptions;
  const std::set<Turn> running = running_;
  auto next = [&](bool decodes, std::int64_t most) {
    for (const Turn& turn : running) {
      if (budget_ == 0) return;
      if (!running_.contains(turn)) continue;  // preempted meanwhile
      std::int64_t need = at(turn.second).need();
      if (need == 0) continue;
      if ((need == 1) == decodes) give_rows(turn.second, std::min({need, budget_, most}));
    }
  };
  // The first one never waits for the others' rows.
  if (!running.empty()) {
    RequestId first = running.begin()->second;
    auto others = static_cast<std::int64_t>(running.size()) - 1;
    std::int64_t need = at(first).need();
    if (need > 1) give_rows(first, std::min(need, budget_ - others));
  }
  next(true, 1);
  next(false, limits_.max_rows);
  while (counters_.preemptions == preempted && !waits_for_blocks_ && budget_ > 0 &&
         !waiting_.empty() && running_.size() < static_cast<std::size_t>(limits_.max_running)) {
    if (!admit(waiting_.begin()->second)) break;
  }
  STRETTO_CHECK(!step_.empty() || !steps_.empty() || requests_.empty(),
                "requests, and nothing to do");
  std::vector<Piece> pieces;
  for (const Turn& turn : running_) {
    if (auto found = step_.find(turn.second); found != step_.end()) {
      pieces.push_back(found->second.piece);
    }
  }
  if (!step_.empty()) steps_.push_back(std::exchange(step_, {}));
  return pieces;
}

void Scheduler::let_in_who_has_waited() {
  if (limits_.most_waits == 0) return;
  std::vector<RequestId> long_enough;
  for (const Turn& turn : waiting_) {
    const Entry& e = at(turn.second);
    const bool is_new = !e.has_waited && num_decided_ - e.waits_since >= limits_.most_waits;
    if (is_new) long_enough.push_back(turn.second);
  }
  for (RequestId id : long_enough) {
    Entry& e = at(id);
    waiting_.erase(turn_of(id, e));
    e.has_waited = true;
    waiting_.insert(turn_of(id, e));
  }
}

bool Scheduler::give_rows(RequestId id, std::int64_t count) {
  if (step_.contains(id)) return true;
  if (count > 1 && prompts_left_ == 0) return false;
  Entry& e = at(id);
  if (waits_for_blocks_ && missing_blocks(e, e.given + count) > 0) return false;
  while (!grow(e, e.given + count)) {
    waits_for_blocks_ =
        missing_blocks(e, e.given + count) <= pool_.num_available() + blocks_to_come();
    if (waits_for_blocks_) return false;
    RequestId last = std::prev(running_.end())->second;
    preempt(last);
    if (last == id) return false;
  }
  place(id, e, count);
  return true;
}

void Scheduler::place(RequestId id, Entry& e, std::int64_t count) {
  const Piece piece{.id = id,
                    .first = e.given,
                    .count = count,
                    .last = count == e.need(),
                    .follows = e.given == e.num_tokens()};
  step_[id] = {.piece = piece, .preemptions = e.course.preemptions};
  e.given += count;
  if (piece.last) ++e.pending;
  budget_ -= count;
  if (count > 1) --prompts_left_;
}

void Scheduler::preempt(RequestId id) {
  Entry& e = at(id);
  if (auto found = step_.find(id); found != step_.end()) {
    const Piece& piece = found->second.piece;
    budget_ += piece.count;
    if (piece.count > 1) ++prompts_left_;
    if (piece.last) --e.pending;
    step_.erase(found);
  }
  give_back(e);
  running_.erase(turn_of(id, e));
  waiting_.insert(turn_of(id, e));
  e.waits_since = num_decided_;
  ++e.course.preemptions;
  ++counters_.preemptions;
}

bool Scheduler::admit(RequestId id) {
  Entry& e = at(id);
  STRETTO_CHECK(e.blocks.empty() && e.given == 0 && e.pending == 0,
                "a request waits that holds blocks, or is under way");
  // The last token has to be computed in any case: the next one is chosen from what comes of it.
  std::span<const int> all = std::span<const int>(e.request.tokens);
  bool looks = limits_.prefix_caching && !(e.request.every_row && e.chosen == 0);
  if (looks) {
    e.blocks = cache_.find(all.first(all.size() - 1), e.request.salt);
    e.published = e.blocks.size();
    e.given = e.computed = static_cast<std::int64_t>(e.blocks.size()) * limits_.block_tokens;
  }
  std::int64_t count = std::min(e.need(), budget_);
  if ((count > 1 && prompts_left_ == 0) || !grow(e, e.given + count)) {
    give_back(e);
    return false;
  }
  if (looks) {
    counters_.prefix_queries += static_cast<std::int64_t>(all.size());
    counters_.prefix_hits += e.computed;
  }
  if (!std::exchange(e.has_run, true)) e.course.cached = e.computed;
  waiting_.erase(turn_of(id, e));
  running_.insert(turn_of(id, e));
  place(id, e, count);
  return true;
}

std::int64_t Scheduler::missing_blocks(const Entry& e, std::int64_t tokens) const {
  return blocks_for(tokens) - static_cast<std::int64_t>(e.blocks.size());
}

std::int64_t Scheduler::blocks_to_come() const {
  std::int64_t count = 0;
  for (const auto& [id, e] : requests_) {
    const bool ends = e.ended || (e.is_full() && !step_.contains(id));
    if (ends) count += std::ssize(e.blocks);
  }
  return count;
}

bool Scheduler::is_under_way(RequestId id, const Entry& e) const {
  return std::ranges::any_of(steps_, [&](const Step& step) {
    auto found = step.find(id);
    return found != step.end() && found->second.preemptions == e.course.preemptions;
  });
}

bool Scheduler::grow(Entry& e, std::int64_t tokens) {
  std::int64_t missing = missing_blocks(e, tokens);
  if (missing > pool_.num_available()) return false;
  for (; missing > 0; --missing) e.blocks.push_back(pool_.take().value());
  return true;
}

// The last ones first, so that a block is evicted before those that it hangs on.
void Scheduler::give_back(Entry& e) {
  for (; !e.blocks.empty(); e.blocks.pop_back()) pool_.release(e.blocks.back());
  e.given = e.computed = 0;
  e.published = 0;
}

void Scheduler::publish(Entry& e) {
  auto size = static_cast<std::size_t>(limits_.block_tokens);
  std::span<const int> tokens = e.request.tokens;
  while ((e.published + 1) * size <= static_cast<std::size_t>(e.computed)) {
    std::size_t i = e.published++;
    int before = i == 0 ? -1 : e.blocks[i - 1];
    e.blocks[i] =
        cache_.publish(e.blocks[i], before, tokens.subspan(i * size, size), e.request.salt);
  }
}

void Scheduler::complete(const std::map<RequestId, int>& chosen) {
  STRETTO_CHECK(!steps_.empty(), "a step has been made that nobody decided");
  const Step step = std::move(steps_.front());
  steps_.pop_front();
  for (const auto& [id, rows] : step) {
    auto found = requests_.find(id);
    if (found == requests_.end()) continue;  // ended, and its blocks are others'
    Entry& e = found->second;
    if (e.ended) {
      if (!is_under_way(id, e)) end(id);
      continue;
    }
    if (!rows.counts) continue;
    if (rows.preemptions == e.course.preemptions) {
      e.computed += rows.piece.count;
      if (limits_.prefix_caching) publish(e);
    }
    if (!rows.piece.last) continue;
    auto token = chosen.find(id);
    STRETTO_CHECK(token != chosen.end(), "a row's choice is missing");
    e.request.tokens.push_back(token->second);
    --e.pending;
    if (++e.chosen == e.request.max_tokens) end(id);
  }
}

void Scheduler::begin_again(RequestId id) {
  if (!has(id)) return;
  Entry& e = at(id);
  for (Step& step : steps_) {
    auto found = step.find(id);
    if (found == step.end() || !std::exchange(found->second.counts, false)) continue;
    if (found->second.piece.last) --e.pending;
    if (found->second.preemptions == e.course.preemptions) {
      e.given = std::min(e.given, found->second.piece.first);
    }
  }
}

void Scheduler::cancel(RequestId id) {
  if (!has(id)) return;
  Entry& e = at(id);
  if (!is_under_way(id, e)) return end(id);
  e.ended = true;
  waiting_.erase(turn_of(id, e));
  running_.erase(turn_of(id, e));
}

void Scheduler::end(RequestId id) {
  Entry& e = at(id);
  give_back(e);
  waiting_.erase(turn_of(id, e));
  running_.erase(turn_of(id, e));
  requests_.erase(id);
}

void Scheduler::verify() const {
  std::map<int, int> references;
  for (const auto& [id, e] : requests_) {
    const bool runs = running_.contains(turn_of(id, e)), waits = waiting_.contains(turn_of(id, e));
    STRETTO_CHECK((runs ? 1 : 0) + (waits ? 1 : 0) + (e.ended ? 1 : 0) == 1,
                  "a request is not in one state");
    STRETTO_CHECK(!waits || e.blocks.empty(), "a request waits that holds blocks");
    STRETTO_CHECK(!e.ended || is_under_way(id, e), "a request has ended and holds blocks");
    auto room = static_cast<std::int64_t>(e.blocks.size()) * limits_.block_tokens;
    STRETTO_CHECK(e.computed <= e.given && e.given <= room,
                  "more is computed than there are blocks for");
    std::int64_t pending = 0;
    for (const Step& step : steps_) {
      auto found = step.find(id);
      if (found == step.end()) continue;
      pending += found->second.counts && found->second.piece.last ? 1 : 0;
    }
    STRETTO_CHECK(e.ended || (e.pending == pending && e.chosen + e.pending <= e.request.max_tokens),
                  "a token is waited for that no step chooses, or that is one too many");
    for (std::size_t i = 0; i < e.blocks.size(); ++i) {
      ++references[e.blocks[i]];
      STRETTO_CHECK(pool_.is_kept(e.blocks[i]) == (i < e.published),
                    "a block is written that others may find");
    }
  }
  int used = 0;
  for (int block = 0; block < pool_.size(); ++block) {
    auto found = references.find(block);
    int named = found == references.end() ? 0 : found->second;
    STRETTO_CHECK(pool_.references(block) == named, "a block has other references than tables");
    used += named > 0 ? 1 : 0;
  }
  STRETTO_CHECK(used + pool_.num_available() == pool_.size(), "a block is lost");
  STRETTO_CHECK(running_.size() <= static_cast<std::size_t>(limits_.max_running),
                "too many requests run");
}

}  // namespace stretto
