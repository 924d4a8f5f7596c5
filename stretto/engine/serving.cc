#include "stretto/engine/serving.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "stretto/base/errors.h"
#include "stretto/base/log.h"
#include "stretto/base/threads.h"
#include "stretto/engine/batch_loop.h"
#include "stretto/engine/host_memory.h"
#include "stretto/engine/token_loop.h"

namespace stretto {
namespace {

constexpr int kPage = 64;                   // tokens of a page of the cache
constexpr std::int64_t kPromptPiece = 512;  // tokens between two looks at whether to go on
constexpr std::chrono::milliseconds kLook{50};

}  // namespace

// The steps that rank 0 decides, told to each other rank in order: ranks are threads that make the
// same steps, and only rank 0 hears of clients.
class ServingEngine::Orders {
 public:
  using Order = std::shared_ptr<const BatchOrder>;  // none: the end

  explicit Orders(int num_ranks) : told_(static_cast<std::size_t>(num_ranks)) {}

  void tell(const Order& order) {
    std::lock_guard lock(mutex_);
    for (std::size_t rank = 1; rank < told_.size(); ++rank) told_[rank].push_back(order);
    changed_.notify_all();
  }
  // Fault where the world is faulted meanwhile.
  Order hear(Rank& rank) {
    std::unique_lock lock(mutex_);
    auto& told = told_[static_cast<std::size_t>(rank.index())];
    while (!changed_.wait_for(lock, kLook, [&] { return !told.empty(); })) {
      if (rank.aborted()) rank.throw_fault();
    }
    Order out = std::move(told.front());
    told.pop_front();
    return out;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::deque<Order>> told_;  // [rank]
};

// One request on GPUs.
class ServingEngine::Serving final : public TokenVisitor {
 public:
  explicit Serving(ServedRequest& request) : request_(request) {}

  bool needs_logits() const override { return request_.num_logprobs >= 0; }
  bool needs_prompt_logits() const override { return request_.num_prompt_logprobs >= 0; }
  bool go_on() override { return !request_.cancelled; }
  void on_prompt(std::int64_t position, std::span<const float> logits) override {
    auto next = static_cast<std::size_t>(position) + 1;
    if (next >= request_.prompt.size()) return;
    request_.on_prompt(
        logprob_of(request_.prompt[next], logits, request_.num_prompt_logprobs, scratch_));
  }
  bool on_token(int token, std::span<const float> logits) override {
    if (request_.cancelled) return false;
    TokenLogprob told{.token = token};
    if (needs_logits()) told = logprob_of(token, logits, request_.num_logprobs, scratch_);
    bool wants_more = request_.on_token(told);
    if (!wants_more) end_ = ServedRequest::End::kEnough;
    return wants_more;
  }

  ServedRequest::End end() const {
    return request_.cancelled && end_ != ServedRequest::End::kEnough
               ? ServedRequest::End::kCancelled
               : end_;
  }

 private:
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
      batches_(options.device == Target::kCpu),
      engine_(files, options),
      orders_(std::make_unique<Orders>(options.world_size)) {
  if (max_model_len_ < 2) throw UserError("--max-model-len: need room for 2 tokens at least");
  if (batches_) size_cache(options);
  thread_ = start_thread("the engine", [this] { run(); });
}

void ServingEngine::size_cache(const EngineOptions& options) {
  if (options.ulysses) {
    throw UserError("--sequence-parallel: a server on CPU ranks keeps whole rows on every rank");
  }
  batch_ = {.dtype = options.dtype,
            .max_rows = options_.max_num_batched_tokens,
            .max_tokens = max_model_len_,
            .cache = {.page = kPage, .sequences = options_.max_num_seqs},
            .expert_groups = options.expert_groups};
  ModelShape shape = batch_shape(files_.config, options.world_size, batch_);
  CacheSize size = size_of_cache(shape, options_.kv_bytes);
  if (size.num_pages * kPage < max_model_len_ && options_.max_model_len > 0) {
    throw UserError(
        fmt::format("--kv-memory: {} bytes hold {} tokens, less than --max-model-len {}",
                    size.allowed, size.num_pages * kPage, max_model_len_));
  }
  if (size.num_pages < 1) {
    throw UserError(fmt::format("--kv-memory: {} bytes hold no page of {} tokens, which has {}",
                                size.allowed, kPage, size.page_bytes));
  }
  max_model_len_ = std::min(max_model_len_, size.num_pages * kPage);
  batch_.max_tokens = max_model_len_;
  batch_.cache.num_pages = size.num_pages;
  cache_bytes_ = static_cast<std::size_t>(size.num_pages) * size.page_bytes;
  limits_ = {.max_running = options_.max_num_seqs,
             .max_rows = options_.max_num_batched_tokens,
             .num_blocks = static_cast<int>(size.num_pages),
             .block_tokens = kPage,
             .prefix_caching = options_.prefix_caching};
  Scheduler{limits_};  // says what does not fit together
}

std::int64_t ServingEngine::cache_tokens() const { return batch_.cache.num_pages * kPage; }

ServingEngine::~ServingEngine() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = draining_ = true;
    for (const Request& request : queue_) request->cancelled = true;
    for (const Request& request : running_) request->cancelled = true;
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
  std::size_t at_once = batches_ ? static_cast<std::size_t>(limits_.max_running) : 1;
  std::size_t room = at_once - std::min(at_once, running_.size());
  if (queue_.size() + requests.size() > options_.max_queue + room) {
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
  State state = noted_;
  state.running = running_.size() - noted_.waiting;
  state.waiting += queue_.size();
  state.died_of = died_of_;
  return state;
}

void ServingEngine::run() {
  try {
    if (batches_) {
      engine_.run_batches(batch_, [&](Rank& rank, BatchModel& model) {
        rank.index() == 0 ? lead(model) : follow(rank, model);
      });
    } else {
      engine_.run_model(max_model_len_, [&](int, Rank*, Transformer& model) { serve(model); });
    }
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
    left.insert(left.begin(), running_.begin(), running_.end());
    running_.clear();
    noted_.waiting = 0;
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
    if (!request->cancelled) {
      running_ = {request};
      return request;
    }
    lock.unlock();
    request->on_end(ServedRequest::End::kCancelled, "");
    lock.lock();
  }
}

void ServingEngine::become_ready() {
  std::lock_guard lock(mutex_);
  ready_ = true;
  changed_.notify_all();
}

void ServingEngine::serve(Transformer& model) {
  model.prepare_steps();
  become_ready();
  while (Request request = next()) {
    if (request->on_start && !request->cancelled) request->on_start();
    Serving serving(*request);
    std::optional<std::string> failed;
    try {
      run_tokens(model, request->prompt, request->sampling,
                 {.max_tokens = request->max_tokens, .prompt_piece = kPromptPiece}, serving);
    } catch (const UserError& e) {  // of logits
      failed = e.what();
    }
    request->on_end(failed ? ServedRequest::End::kFailed : serving.end(), failed.value_or(""));
    std::lock_guard lock(mutex_);  // who sees nothing running has heard the end of everything
    running_.clear();
  }
}

void ServingEngine::note(const BatchLoop& loop) {
  std::lock_guard lock(mutex_);
  const Scheduler& scheduler = loop.scheduler();
  running_ = loop.requests();
  noted_.waiting = scheduler.num_waiting();
  noted_.preemptions = scheduler.counters().preemptions;
  noted_.prefix_queries = scheduler.counters().prefix_queries;
  noted_.prefix_hits = scheduler.counters().prefix_hits;
  noted_.cache_use = 1 - static_cast<double>(scheduler.num_available_blocks()) /
                             static_cast<double>(scheduler.num_blocks());
}

bool ServingEngine::take(BatchLoop& loop, std::vector<Request>& came) {
  std::unique_lock lock(mutex_);
  if (loop.is_idle()) changed_.wait(lock, [&] { return !queue_.empty() || stopping_; });
  if (loop.is_idle() && queue_.empty()) return false;
  if (stopping_) loop.cancel_all();
  came.clear();
  while (came.size() < loop.room() && !queue_.empty()) {
    came.push_back(std::move(queue_.front()));
    queue_.pop_front();
  }
  running_.insert(running_.end(), came.begin(), came.end());
  return true;
}

void ServingEngine::lead(BatchModel& model) {
  BatchLoop loop(limits_);
  become_ready();
  std::vector<Request> came;
  while (take(loop, came)) {
    for (const Request& request : came) loop.add(request);
    auto order = std::make_shared<const BatchOrder>(loop.decide());
    note(loop);
    if (order->parts.empty()) continue;
    orders_->tell(order);
    model.step(order->pieces(),
               [&](std::size_t part, std::int64_t row, std::span<const float> logits) {
                 loop.take(part, row, logits);
               });
    loop.complete();
    note(loop);  // who sees nothing running has heard the end of everything
  }
  orders_->tell(nullptr);
}

void ServingEngine::follow(Rank& rank, BatchModel& model) {
  while (auto order = orders_->hear(rank)) model.step(order->pieces(), {});
}

}  // namespace stretto
