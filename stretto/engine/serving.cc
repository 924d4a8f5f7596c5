#include "stretto/engine/serving.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "stretto/base/errors.h"
#include "stretto/base/log.h"
#include "stretto/base/threads.h"
#include "stretto/engine/token_loop.h"

namespace stretto {
namespace {

constexpr std::int64_t kPromptPiece = 512;  // tokens between two looks at whether to go on
constexpr std::chrono::milliseconds kLook{50};

// The `count` best ones.
std::vector<std::pair<int, double>> best_tokens(std::span<const double> logprobs, int count) {
  std::vector<int> ids(logprobs.size());
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int>(i);
  auto kept = std::min(ids.size(), static_cast<std::size_t>(count));
  std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(kept), ids.end(),
                    [&](int a, int b) {
                      double x = logprobs[static_cast<std::size_t>(a)];
                      double y = logprobs[static_cast<std::size_t>(b)];
                      return x != y ? x > y : a < b;
                    });
  std::vector<std::pair<int, double>> out;
  for (std::size_t i = 0; i < kept; ++i) {
    out.emplace_back(ids[i], logprobs[static_cast<std::size_t>(ids[i])]);
  }
  return out;
}

TokenLogprob logprob_of(int token, std::span<const float> logits, int num_top,
                        std::vector<double>& scratch) {
  scratch.resize(logits.size());
  log_softmax(logits, scratch);
  const double own = scratch[static_cast<std::size_t>(token)];
  auto better = std::count_if(scratch.begin(), scratch.end(), [&](double x) { return x > own; });
  return {.token = token, .logprob = own, .rank = 1 + better, .top = best_tokens(scratch, num_top)};
}

}  // namespace

// What rank 0 decides, told to each other rank in order: ranks are threads that run the same loop,
// and only rank 0 hears of clients.
class ServingEngine::Decisions {
 public:
  struct Decision {
    bool go_on = true;
    Request request = nullptr;  // the next one, where it is asked for
  };

  explicit Decisions(int num_ranks) : told_(static_cast<std::size_t>(num_ranks)) {}

  void tell(const Decision& decision) {
    std::lock_guard lock(mutex_);
    for (std::size_t rank = 1; rank < told_.size(); ++rank) told_[rank].push_back(decision);
    changed_.notify_all();
  }
  // Fault where the world is faulted meanwhile.
  Decision hear(Rank& rank) {
    std::unique_lock lock(mutex_);
    auto& told = told_[static_cast<std::size_t>(rank.index())];
    while (!changed_.wait_for(lock, kLook, [&] { return !told.empty(); })) {
      if (rank.aborted()) rank.throw_fault();
    }
    Decision out = std::move(told.front());
    told.pop_front();
    return out;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::deque<Decision>> told_;  // [rank]
};

// One request on one rank. Rank 0 talks to the client.
class ServingEngine::Serving final : public TokenVisitor {
 public:
  Serving(Decisions& decisions, Rank* follower, ServedRequest& request)
      : decisions_(decisions), follower_(follower), request_(request) {}

  bool needs_logits() const override { return request_.num_logprobs >= 0; }
  bool needs_prompt_logits() const override { return request_.num_prompt_logprobs >= 0; }
  bool go_on() override {
    if (follower_ != nullptr) return decisions_.hear(*follower_).go_on;
    return decide(!request_.cancelled);
  }
  void on_prompt(std::int64_t position, std::span<const float> logits) override {
    auto next = static_cast<std::size_t>(position) + 1;
    if (follower_ != nullptr || next >= request_.prompt.size()) return;
    request_.on_prompt(
        logprob_of(request_.prompt[next], logits, request_.num_prompt_logprobs, scratch_));
  }
  bool on_token(int token, std::span<const float> logits) override {
    if (follower_ != nullptr) return decisions_.hear(*follower_).go_on;
    if (request_.cancelled) return decide(false);
    TokenLogprob told{.token = token};
    if (needs_logits()) told = logprob_of(token, logits, request_.num_logprobs, scratch_);
    bool wants_more = request_.on_token(told);
    if (!wants_more) end_ = ServedRequest::End::kEnough;
    return decide(wants_more);
  }

  ServedRequest::End end() const {
    return request_.cancelled && end_ != ServedRequest::End::kEnough
               ? ServedRequest::End::kCancelled
               : end_;
  }

 private:
  bool decide(bool go_on) {
    decisions_.tell({.go_on = go_on});
    return go_on;
  }

  Decisions& decisions_;
  Rank* follower_;  // null on rank 0
  ServedRequest& request_;
  ServedRequest::End end_ = ServedRequest::End::kLength;
  std::vector<double> scratch_;
};

ServingEngine::ServingEngine(const ModelFiles& files, const EngineOptions& options,
                             const ServingOptions& serving)
    : files_(files),
      options_(serving),
      max_model_len_(serving.max_model_len > 0
                         ? std::min(serving.max_model_len, files.config.max_positions)
                         : files.config.max_positions),
      engine_(files, options),
      decisions_(
          std::make_unique<Decisions>(options.device == Target::kCpu ? options.world_size : 1)) {
  if (max_model_len_ < 2) throw UserError("--max-model-len: need room for 2 tokens at least");
  thread_ = start_thread("the engine", [this] { run(); });
}

ServingEngine::~ServingEngine() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = draining_ = true;
    for (const Request& request : queue_) request->cancelled = true;
    if (running_) running_->cancelled = true;
    changed_.notify_all();
  }
  thread_.join();
}

void ServingEngine::wait_until_ready() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ready_ || failure_ || !died_of_.empty(); });
  if (failure_) std::rethrow_exception(failure_);
}

void ServingEngine::check(ServedRequest& request) const {
  request.sampling.validate();
  auto prompt = static_cast<std::int64_t>(request.prompt.size());
  if (prompt == 0) throw UserError("the prompt is empty");
  if (prompt + 1 > max_model_len_) {
    throw UserError(
        fmt::format("maximum context length is {}, the prompt has {} tokens and leaves "
                    "no room for an answer",
                    max_model_len_, prompt));
  }
  for (int token : request.prompt) {
    if (token < 0 || token >= files_.config.vocab_size) {
      throw UserError(
          fmt::format("token {} is outside the vocabulary of {}", token, files_.config.vocab_size));
    }
  }
  request.max_tokens = std::min(request.max_tokens, max_model_len_ - prompt);
}

void ServingEngine::submit(const std::vector<Request>& requests) {
  for (const Request& request : requests) check(*request);
  std::lock_guard lock(mutex_);
  if (!died_of_.empty()) throw EngineBusy("the engine has died: " + died_of_);
  if (draining_) throw EngineBusy("the server is shutting down");
  if (queue_.size() + requests.size() > options_.max_queue + (running_ ? 0 : 1)) {
    throw EngineBusy(fmt::format("{} requests are waiting already, of at most {}", queue_.size(),
                                 options_.max_queue));
  }
  queue_.insert(queue_.end(), requests.begin(), requests.end());
  changed_.notify_all();
}

void ServingEngine::cancel(const Request& request) {
  request->cancelled = true;
  {
    std::lock_guard lock(mutex_);
    auto at = std::find(queue_.begin(), queue_.end(), request);
    if (at == queue_.end()) return;  // it runs, which ends it, or has ended
    queue_.erase(at);
  }
  request->on_end(ServedRequest::End::kCancelled, "");
}

void ServingEngine::drain() {
  std::lock_guard lock(mutex_);
  draining_ = true;
}

ServingEngine::State ServingEngine::state() const {
  std::lock_guard lock(mutex_);
  return {.running = running_ ? std::size_t{1} : 0, .waiting = queue_.size(), .died_of = died_of_};
}

void ServingEngine::run() {
  try {
    engine_.run_model(max_model_len_,
                      [&](int rank, Rank* host, Transformer& model) { serve(rank, host, model); });
  } catch (const std::exception& e) {
    std::unique_lock lock(mutex_);
    if (!ready_) failure_ = std::current_exception();
    lock.unlock();
    die(e.what());
  }
}

void ServingEngine::die(const std::string& why) {
  std::deque<Request> left;
  {
    std::lock_guard lock(mutex_);
    died_of_ = why;
    left.swap(queue_);
    if (running_) left.push_front(std::exchange(running_, nullptr));
    changed_.notify_all();
  }
  log_warning("the engine has died: " + why);
  for (const Request& request : left) request->on_end(ServedRequest::End::kDied, why);
}

ServingEngine::Request ServingEngine::next() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return !queue_.empty() || stopping_; });
    if (queue_.empty()) return nullptr;
    Request request = std::move(queue_.front());
    queue_.pop_front();
    if (!request->cancelled) return running_ = request;
    lock.unlock();
    request->on_end(ServedRequest::End::kCancelled, "");
    lock.lock();
  }
}

void ServingEngine::serve(int rank, Rank* host, Transformer& model) {
  const bool leads = rank == 0;
  model.prepare_steps();
  if (leads) {
    std::lock_guard lock(mutex_);
    ready_ = true;
    changed_.notify_all();
  }
  for (;;) {
    Request request;
    if (leads) {
      request = next();
      decisions_->tell({.request = request});
    } else {
      request = decisions_->hear(*host).request;
    }
    if (!request) return;
    if (leads && request->on_start && !request->cancelled) request->on_start();
    Serving serving(*decisions_, leads ? nullptr : host, *request);
    std::optional<std::string> failed;
    try {
      run_tokens(model, request->prompt, request->sampling,
                 {.max_tokens = request->max_tokens, .prompt_piece = kPromptPiece}, serving);
    } catch (const UserError& e) {  // of logits, at the same token on all ranks
      failed = e.what();
    }
    if (!leads) continue;
    if (failed) {
      request->on_end(ServedRequest::End::kFailed, *failed);
    } else {
      request->on_end(serving.end(), "");
    }
    std::lock_guard lock(mutex_);  // who sees nothing running has heard the end of everything
    running_ = nullptr;
  }
}

}  // namespace stretto
