#include "stretto/engine/batch_loop.h"

#include <algorithm>
#include <utility>

#include "stretto/base/errors.h"

namespace stretto {
namespace {

constexpr const char* kLate = "the time limit of the request has passed";

}  // namespace

std::vector<BatchPiece> BatchOrder::pieces() const {
  std::vector<BatchPiece> out;
  for (const Part& p : parts) {
    out.push_back({.tokens = p.tokens,
                   .source = p.source,
                   .first = p.first,
                   .pages = p.pages,
                   .wanted = p.wanted});
  }
  return out;
}

std::int64_t BatchOrder::num_rows() const {
  std::int64_t rows = 0;
  for (const Part& p : parts) rows += std::ssize(p.tokens);
  return rows;
}

BatchLoop::BatchLoop(const SchedulerLimits& limits, std::int64_t vocab)
    : limits_(limits), vocab_(static_cast<std::size_t>(vocab)), scheduler_(limits) {}

void BatchLoop::add(const Request& request) {
  if (request->cancelled) return request->tell_end(ServedRequest::End::kCancelled, "");
  if (request->is_late()) return request->tell_end(ServedRequest::End::kLate, kLate);
  RequestId id = scheduler_.add({.tokens = request->prompt,
                                 .max_tokens = request->max_tokens,
                                 .priority = request->priority,
                                 .salt = request->salt,
                                 .every_row = request->num_prompt_logprobs >= 0});
  live_.emplace(id, Live{.request = request, .sampler = Sampler(request->sampling)});
}

bool BatchLoop::tells_prompt(const Live& live) const {
  return live.request->num_prompt_logprobs >= 0 &&
         live.prompt_told + 1 < static_cast<std::int64_t>(live.request->prompt.size());
}

BatchOrder BatchLoop::decide() {
  for (auto at = live_.begin(); at != live_.end();) {
    auto here = at++;
    const ServedRequest& request = *here->second.request;
    if (!here->second.end) {
      if (!request.cancelled && !request.is_late()) continue;
      here->second.end =
          request.cancelled ? ServedRequest::End::kCancelled : ServedRequest::End::kLate;
      if (!request.cancelled) here->second.failure = kLate;
    }
    scheduler_.cancel(here->first);
    finish(here);
  }
  BatchOrder order;
  if (live_.empty()) return order;
  Step step{.pieces = scheduler_.decide(), .sources = {}, .chosen = {}, .in_vain = {}};
  for (const Piece& p : step.pieces) {
    Live& live = live_.at(p.id);
    const Scheduler::Course course = scheduler_.course(p.id);
    live.request->cached_tokens = course.cached;
    live.request->preemptions = course.preemptions;
    if (!std::exchange(live.started, true) && live.request->on_start) live.request->on_start();
    BatchOrder::Part part{.tokens = {0}, .pages = {}, .first = p.first};
    if (p.follows) {
      part.source = steps_.front().sources.at(p.id);
    } else {
      auto tokens = scheduler_.tokens(p.id).subspan(static_cast<std::size_t>(p.first),
                                                    static_cast<std::size_t>(p.count));
      part.tokens.assign(tokens.begin(), tokens.end());
    }
    std::span<const int> pages = scheduler_.blocks(p.id);
    part.pages.assign(pages.begin(), pages.end());
    part.wanted = tells_prompt(live) ? p.count : p.last ? 1 : 0;
    order.parts.push_back(std::move(part));
  }
  if (!step.pieces.empty()) steps_.push_back(std::move(step));
  return order;
}

BatchLoop::Live* BatchLoop::live_of(const Piece& piece) {
  auto found = live_.find(piece.id);
  const bool counts = found != live_.end() && !found->second.end;
  return counts && !steps_.front().in_vain.contains(piece.id) ? &found->second : nullptr;
}

template <typename Act>
void BatchLoop::guarded(Live& live, const Act& act) {
  try {
    act();
  } catch (const ConstraintError& e) {
    live.end = ServedRequest::End::kRefused;
    live.failure = e.what();
  } catch (const UserError& e) {  // of logits
    live.end = ServedRequest::End::kFailed;
    live.failure = e.what();
  }
}

RowVisitor::Want BatchLoop::want(std::size_t part, std::int64_t row, ChoiceWish& wish) {
  Step& step = steps_.front();
  const Piece& p = step.pieces[part];
  Live* found = live_of(p);
  if (found == nullptr) return Want::kNothing;
  Live& live = *found;
  const ServedRequest& request = *live.request;
  const bool chooses = p.last && row + 1 == p.count && !tells_prompt(live);
  const bool looks =
      request.on_logits || request.num_logprobs > kMostChoiceTop || live.chooses_here;
  if (!chooses || looks) return Want::kLogits;
  Want out = Want::kNothing;
  guarded(live, [&] {
    std::span<const std::uint32_t> allowed;
    if (!constrain(p.id, live, allowed)) return;
    wish = live.sampler.wish(vocab_, scheduler_.tokens(p.id), num_generated(p.id, live), allowed);
    wish.row.num_top = request.num_logprobs;
    out = Want::kToken;
    step.sources.emplace(p.id, static_cast<int>(step.sources.size()));
  });
  return out;
}

void BatchLoop::take_choice(std::size_t part, std::int64_t, const ChoiceResult& result) {
  const Piece& p = steps_.front().pieces[part];
  const RequestId id = p.id;
  Live* found = live_of(p);
  if (found == nullptr) return;
  Live& live = *found;
  live.sampler.count_draw();
  ++num_chosen_.by_device;
  const bool tells = live.request->num_logprobs >= 0;
  keep(id, live,
       tells ? logprob_of(result) : TokenLogprob{.token = static_cast<int>(result.token)});
}

void BatchLoop::take(std::size_t part, std::int64_t row, std::span<const float> logits) {
  const Piece& p = steps_.front().pieces[part];
  Live* found = live_of(p);
  if (found == nullptr) return;
  Live& live = *found;
  live.chooses_here = false;
  guarded(live, [&] {
    if (tells_prompt(live)) tell_prompt(live, p.first + row, logits);
    if (p.last && row + 1 == p.count) choose(p.id, live, logits);
  });
}

void BatchLoop::miss(std::size_t part, std::int64_t /*row*/) {
  const Piece& p = steps_.front().pieces[part];
  Live* live = live_of(p);
  if (live == nullptr) return;
  live->chooses_here = true;
  scheduler_.begin_again(p.id);
  for (Step& step : steps_) step.in_vain.insert(p.id);
}

void BatchLoop::tell_prompt(Live& live, std::int64_t position, std::span<const float> logits) {
  const ServedRequest& request = *live.request;
  if (position < live.prompt_told) return;  // computed again
  auto next = static_cast<std::size_t>(position) + 1;
  if (next >= request.prompt.size()) return;
  ++live.prompt_told;
  request.on_prompt(
      logprob_of(request.prompt[next], logits, request.num_prompt_logprobs, probabilities_));
}

bool BatchLoop::constrain(RequestId id, Live& live, std::span<const std::uint32_t>& allowed) const {
  if (!live.request->constraint) return true;
  const auto next =
      live.request->constraint->after(scheduler_.tokens(id).last(num_generated(id, live)));
  allowed = next.bits;
  if (next.is_complete) live.end = ServedRequest::End::kComplete;
  return !next.is_complete;
}

std::size_t BatchLoop::num_generated(RequestId id, const Live& live) const {
  return scheduler_.tokens(id).size() - live.request->prompt.size();
}

void BatchLoop::choose(RequestId id, Live& live, std::span<const float> logits) {
  const ServedRequest& request = *live.request;
  if (request.on_logits) request.on_logits(logits);
  std::span<const std::uint32_t> allowed;
  if (!constrain(id, live, allowed)) return;
  logits_.assign(logits.begin(), logits.end());
  const int token =
      live.sampler.sample(logits_, scheduler_.tokens(id), num_generated(id, live), allowed);
  ++num_chosen_.here;
  TokenLogprob told{.token = token};
  if (request.num_logprobs >= 0) {
    told = logprob_of(token, logits, request.num_logprobs, probabilities_);
  }
  keep(id, live, told);
}

void BatchLoop::keep(RequestId id, Live& live, const TokenLogprob& told) {
  steps_.front().chosen[id] = told.token;
  untold_.push_back({.id = id, .request = live.request, .token = told});
  const auto generated = static_cast<std::int64_t>(num_generated(id, live)) + 1;
  if (generated == live.request->max_tokens) live.end = ServedRequest::End::kLength;
}

void BatchLoop::tell() {
  using End = ServedRequest::End;
  std::map<RequestId, std::string> enough;  // with why it failed, or nothing
  for (Untold& u : std::exchange(untold_, {})) {
    auto stopped = enough.find(u.id);
    if (u.end) {
      // Its last token was one that ends it anyway.
      if (u.end == End::kLength && stopped != enough.end()) {
        u.failure = stopped->second;
        u.end = u.failure.empty() ? End::kEnough : End::kFailed;
      }
      u.request->tell_end(*u.end, u.failure);
      continue;
    }
    std::string failure;
    try {
      if (u.request->on_token(u.token)) continue;
    } catch (const UserError& e) {
      failure = e.what();
    }
    enough[u.id] = failure;
    if (auto at = live_.find(u.id); at != live_.end()) {
      at->second.end = failure.empty() ? End::kEnough : End::kFailed;
      at->second.failure = std::move(failure);
    }
  }
}

void BatchLoop::complete() {
  const Step step = std::move(steps_.front());
  steps_.pop_front();
  auto each_that_ends = [&](const auto& act) {
    for (const Piece& p : step.pieces) {
      auto at = live_.find(p.id);
      if (at != live_.end() && at->second.end) act(at);
    }
  };
  each_that_ends([&](auto at) { scheduler_.cancel(at->first); });
  scheduler_.complete(step.chosen);
  each_that_ends([&](auto at) { finish(at); });
}

void BatchLoop::finish(std::map<RequestId, Live>::iterator at) {
  Live& live = at->second;
  untold_.push_back({.id = at->first,
                     .request = std::move(live.request),
                     .end = live.end.value(),
                     .failure = std::move(live.failure)});
  live_.erase(at);
}

void BatchLoop::cancel_all() {
  for (auto& [id, live] : live_) live.request->cancelled = true;
}

std::vector<BatchLoop::Request> BatchLoop::requests() const {
  std::vector<Request> out;
  for (const auto& [id, live] : live_) out.push_back(live.request);
  for (const Untold& u : untold_) {
    if (u.end) out.push_back(u.request);
  }
  return out;
}

}  // namespace stretto
