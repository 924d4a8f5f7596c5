#include "stretto/engine/serving.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <functional>
#include <limits>
#include <utility>

#include "stretto/base/errors.h"
#include "stretto/base/log.h"
#include "stretto/base/printable.h"
#include "stretto/base/threads.h"
#include "stretto/engine/batch_loop.h"
#include "stretto/engine/run_requests.h"
#include "stretto/engine/step_driver.h"

namespace stretto {
namespace {

constexpr std::chrono::milliseconds kLook{50};
constexpr int kMostFaultsInRow = 3;
constexpr std::chrono::duration<double> kStopped{
    0.5};  // that a thread of a process that runs waits

// Before anything is loaded; the cache is what users can make smaller.
void check_room_for(const CacheSize& size, int num_ranks) {
  const std::size_t cache = static_cast<std::size_t>(size.num_pages) * size.page_bytes;
  const std::size_t others =
      static_cast<std::size_t>(num_ranks) * (size.weight_bytes + size.work_bytes);
  const std::size_t available = available_host_memory();
  if (cache + others <= available) return;
  auto gib = [](std::size_t bytes) { return static_cast<double>(bytes) / (1 << 30); };
  throw UserError(fmt::format(
      "--kv-memory: a cache of {:.1f} GiB, and {:.1f} GiB of weights and steps, do not fit the "
      "memory: {:.1f} GiB are available",
      gib(cache), gib(others), gib(available)));
}

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

ServingSettings plan_serving(const ModelFiles& files, const Engine& engine,
                             const EngineOptions& options, const ServingOptions& serving) {
  const std::int64_t positions = files.config.max_positions;
  ServingSettings plan;
  plan.max_model_len = serving.max_model_len > 0 ? serving.max_model_len : positions;
  if (plan.max_model_len < 2) throw UserError("--max-model-len: need room for 2 tokens at least");
  if (plan.max_model_len > positions) {
    throw UserError(fmt::format("--max-model-len: {} tokens, the model has {} positions ({})",
                                plan.max_model_len, positions, files.config.where));
  }
  if (serving.max_num_seqs < 1) {
    throw UserError(
        fmt::format("--max-num-seqs: {} requests, need one at least", serving.max_num_seqs));
  }
  if (serving.max_num_batched_tokens < serving.max_num_seqs) {
    throw UserError(fmt::format(
        "--max-num-batched-tokens: {} rows of a step, fewer than the {} requests of --max-num-seqs",
        serving.max_num_batched_tokens, serving.max_num_seqs));
  }
  if (options.ulysses) {
    throw UserError("--sequence-parallel: a server keeps whole rows on every rank");
  }
  if (options.data_groups > 1) throw UserError("--dp: a server has one group of ranks");
  plan.batch = {
      .dtype = options.dtype,
      .max_rows = serving.max_num_batched_tokens,
      .max_tokens = plan.max_model_len,
      .cache = {.page = kPageTokens,
                .sequences = serving.max_num_seqs,
                .prompts = options.device == Target::kCuda ? PagedCache::kPromptsOnGpus : 0,
                .fp8 = options.fp8_cache,
                .fastest = serving.fastest},
      .plan_for = options.device,
      .expert_groups = options.expert_groups,
      .ahead = serving.ahead.value_or(options.device == Target::kCuda),
      .fused_experts = options.fused_experts};
  CacheSize size = engine.size_cache(plan.batch, serving.kv_bytes);
  if (size.num_pages * kPageTokens < plan.max_model_len && serving.max_model_len > 0) {
    throw UserError(
        fmt::format("--kv-memory: {} bytes hold {} tokens, less than --max-model-len {}",
                    size.allowed, size.num_pages * kPageTokens, plan.max_model_len));
  }
  if (size.num_pages < 1) {
    throw UserError(fmt::format("--kv-memory: {} bytes hold no page of {} tokens, which has {}",
                                size.allowed, kPageTokens, size.page_bytes));
  }
  if (options.device == Target::kCpu) check_room_for(size, options.world_size);
  plan.max_model_len = std::min(plan.max_model_len, size.num_pages * kPageTokens);
  plan.batch.max_tokens = plan.max_model_len;
  plan.batch.cache.num_pages = size.num_pages;
  plan.memory = size;
  plan.limits = {.max_running = serving.max_num_seqs,
                 .max_rows = serving.max_num_batched_tokens,
                 .max_prompts = static_cast<int>(plan.batch.cache.prompts),
                 .num_blocks = static_cast<int>(size.num_pages),
                 .block_tokens = kPageTokens,
                 .prefix_caching = serving.prefix_caching,
                 .most_waits = serving.most_waits};
  return plan;
}

ServingEngine::ServingEngine(const ModelFiles& files, const EngineOptions& options,
                             const ServingOptions& serving)
    : files_(files),
      options_(serving),
      engine_options_(options),
      engine_(std::make_unique<Engine>(files, options)),
      plan_(plan_serving(files, *engine_, options, serving)),
      orders_(std::make_unique<Orders>(options.world_size)) {
  plan_.batch.progress = &progress_;
  watcher_ = start_thread("the engine's watch", [this] { watch(); });
  try {
    thread_ = start_thread("the engine", [this] { run(); });
  } catch (...) {
    end_watch();
    throw;
  }
}

std::int64_t ServingEngine::cache_tokens() const {
  return plan_.batch.cache.num_pages * kPageTokens;
}

std::size_t ServingEngine::cache_bytes() const {
  return static_cast<std::size_t>(plan_.memory.num_pages) * plan_.memory.page_bytes;
}

std::string ServingEngine::cache_dtype() const {
  return plan_.batch.cache.fp8 ? "fp8" : std::string(name(plan_.batch.dtype));
}

ServingEngine::~ServingEngine() { stop(); }

void ServingEngine::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = draining_ = true;
    for (const Request& request : queue_) request->cancelled = true;
    for (const Request& request : running_) request->cancelled = true;
    changed_.notify_all();
  }
  if (!thread_.joinable()) return;
  thread_.join();
  end_watch();
}

void ServingEngine::end_watch() {
  {
    std::lock_guard lock(mutex_);
    watch_ends_ = true;
    watch_changed_.notify_all();
  }
  watcher_.join();
}

void ServingEngine::wait_until_ready() {
  while (!wait_until_ready(std::chrono::hours(1))) continue;
}

bool ServingEngine::wait_until_ready(std::chrono::milliseconds at_most) {
  std::unique_lock lock(mutex_);
  const bool is_over =
      changed_.wait_for(lock, at_most, [&] { return ready_ || failure_ || !died_of_.empty(); });
  if (failure_) std::rethrow_exception(failure_);
  return is_over;
}

void ServingEngine::check(ServedRequest& request) const {
  request.sampling.validate();
  auto prompt = static_cast<std::int64_t>(request.prompt.size());
  if (prompt == 0) throw UserError("the prompt is empty");
  if (prompt + 1 > plan_.max_model_len) {
    throw UserError(
        fmt::format("maximum context length is {}, the prompt has {} tokens and leaves "
                    "no room for an answer",
                    plan_.max_model_len, prompt));
  }
  for (int token : request.prompt) {
    if (token < 0 || token >= files_.config.vocab_size) {
      throw UserError(
          fmt::format("token {} is outside the vocabulary of {}", token, files_.config.vocab_size));
    }
  }
  request.max_tokens = std::min(request.max_tokens, plan_.max_model_len - prompt);
  if (options_.request_seconds <= 0) return;
  auto latest = std::chrono::steady_clock::now() +
                std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                    std::chrono::duration<double>(options_.request_seconds));
  request.deadline = std::min(request.deadline.value_or(latest), latest);
}

void ServingEngine::submit(const std::vector<Request>& requests) {
  for (const Request& request : requests) check(*request);
  const auto at_once = static_cast<std::size_t>(plan_.limits.max_running);
  // Not the sum of both, which may be more than there are numbers.
  if (requests.size() > at_once && requests.size() - at_once > options_.max_queue) {
    throw UserError(fmt::format("{} answers at once, at most {} run and {} wait (--max-queue)",
                                requests.size(), at_once, options_.max_queue));
  }
  std::lock_guard lock(mutex_);
  if (!died_of_.empty()) throw EngineGone("the engine has died: " + died_of_);
  if (draining_) throw EngineGone("the server is shutting down");
  const std::size_t room = at_once - std::min(at_once, running_.size());
  const std::size_t would_wait = queue_.size() + requests.size();
  if (would_wait > room && would_wait - room > options_.max_queue) {
    throw EngineBusy(fmt::format("{} requests are waiting already, of at most {}", queue_.size(),
                                 options_.max_queue));
  }
  for (const Request& request : requests) {
    request->came_at_step = num_steps_;
    put_into_queue(request);
  }
  if (is_leading_ && !acts_since_) acts_since_ = Clock::now();
  changed_.notify_all();
}

// Highest priority first, of equals the earliest.
void ServingEngine::put_into_queue(const Request& request) {
  auto behind = std::upper_bound(
      queue_.begin(), queue_.end(), request,
      [](const Request& one, const Request& other) { return one->priority > other->priority; });
  queue_.insert(behind, request);
}

void ServingEngine::let_in_who_has_waited() {
  constexpr int kHighest = std::numeric_limits<int>::max();
  if (options_.most_waits == 0) return;
  bool any = false;
  for (const Request& request : queue_) {
    if (num_steps_ - request->came_at_step < options_.most_waits) continue;
    any |= std::exchange(request->priority, kHighest) != kHighest;
  }
  if (any) std::ranges::stable_sort(queue_, std::greater(), &ServedRequest::priority);
}

void ServingEngine::cancel(const Request& request) {
  request->cancelled = true;
  {
    std::lock_guard lock(mutex_);
    auto at = std::find(queue_.begin(), queue_.end(), request);
    if (at == queue_.end()) return;  // it runs, which ends it, or has ended
    queue_.erase(at);
  }
  request->tell_end(ServedRequest::End::kCancelled, "");
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
  state.lost = lost_;
  if (has_ranks_) state.fault = fault_;
  const bool loads = !ready_ || !noted_.restarts_for.empty();
  if (!loads || !died_of_.empty()) return state;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began_;
  const std::string now = progress_.text();
  state.loads = fmt::format("{:.0f} s so far{}{}", took.count(), now.empty() ? "" : ": ", now);
  return state;
}

void ServingEngine::run() {
  for (;;) {
    std::string why;
    begin_ranks();
    try {
      engine_->run_batches(plan_.batch,
                           [&](Rank* rank, BatchModel& model) { run_rank(rank, model); });
      end_ranks();
      return;
    } catch (const std::exception& e) {
      std::lock_guard lock(mutex_);
      if (!ready_) failure_ = std::current_exception();
      why = reason_of(e);
    }
    if (!end_ranks()) return;
    if (!restart_for(why)) return die(why);
  }
}

void ServingEngine::run_rank(Rank* rank, BatchModel& model) {
  try {
    rank == nullptr || rank->index() == 0 ? lead(model) : follow(*rank, model);
  } catch (const std::exception& e) {
    note_return(rank, reason_of(e));
    throw;
  }
  note_return(rank, "");
}

void ServingEngine::begin_ranks() {
  std::lock_guard lock(mutex_);
  has_ranks_ = true;
  is_leading_ = false;
  acts_since_.reset();
  fault_at_.reset();
  fault_.clear();
  const bool on_cpu = engine_options_.device == Target::kCpu;
  returned_.assign(on_cpu ? static_cast<std::size_t>(engine_options_.world_size) : 1, false);
}

bool ServingEngine::end_ranks() {
  std::lock_guard lock(mutex_);
  has_ranks_ = is_leading_ = false;
  return !lost_;
}

void ServingEngine::note_return(const Rank* rank, const std::string& fault) {
  std::lock_guard lock(mutex_);
  returned_[rank != nullptr ? static_cast<std::size_t>(rank->index()) : 0] = true;
  if (fault.empty() || fault_at_) return;
  fault_at_ = Clock::now();
  fault_ = fault;
}

// Why the ranks are lost; empty while they are not.
std::string ServingEngine::why_lost() const {
  if (!has_ranks_) return "";
  const auto now = Clock::now();
  if (fault_at_) {
    if (now - *fault_at_ < timeout_) return "";
    std::string left;
    for (std::size_t rank = 0; rank < returned_.size(); ++rank) {
      if (!returned_[rank]) left += fmt::format("{}{}", left.empty() ? "" : ", ", rank);
    }
    return fmt::format("{}; since then these ranks have not returned from their step: {}", fault_,
                       left);
  }
  if (!acts_since_ || now - *acts_since_ < std::chrono::duration<double>(options_.step_seconds)) {
    return "";
  }
  return fmt::format("a step has not ended for {:g} s (--step-timeout)", options_.step_seconds);
}

// Time in which the whole process stood still (SIGSTOP, a container that was paused).
void ServingEngine::pass_over(std::chrono::duration<double> time) {
  for (auto* since : {&acts_since_, &fault_at_}) {
    if (!*since) continue;
    **since = std::min(**since + std::chrono::duration_cast<Clock::duration>(time), Clock::now());
  }
}

// Of the ranks, which may stand still in the middle of anything: what it does needs nothing that
// they hold but for the mutex, which nobody holds for long.
void ServingEngine::watch() {
  using Seconds = std::chrono::duration<double>;
  const Seconds shortest = std::min<Seconds>(Seconds(options_.step_seconds), timeout_);
  const Seconds look = std::clamp<Seconds>(shortest / 4, Seconds(0.005), Seconds(1));
  std::unique_lock lock(mutex_);
  auto looked = Clock::now();
  while (!watch_changed_.wait_for(lock, look, [&] { return watch_ends_; })) {
    const auto now = Clock::now();
    const Seconds late = now - std::exchange(looked, now) - look;
    if (late > kStopped) pass_over(late);
    const std::string why = why_lost();
    if (why.empty()) continue;
    lost_ = true;
    lock.unlock();
    die(why);
    if (options_.on_lost) options_.on_lost(why);
    return;
  }
}

// Whether there are ranks again, which have nothing of the old ones.
bool ServingEngine::restart_for(const std::string& why) {
  std::vector<Request> left;
  {
    std::lock_guard lock(mutex_);
    const bool begins_again = options_.restart_on_fault && ready_ && !stopping_;
    if (!begins_again || ++faults_in_row_ >= kMostFaultsInRow) return false;
    left.swap(running_);
    noted_.waiting = 0;
    noted_.cache_use = 0;
    times_before_ = {.works = noted_.device_works, .waits = noted_.device_waits};
    noted_.restarts_for = why;
    began_ = std::chrono::steady_clock::now();
    progress_.within("");
    ++noted_.restarts;
  }
  log_warning("the engine starts again after a fault: " + why);
  for (const Request& request : left) {
    request->tell_end(ServedRequest::End::kDied, why);
  }
  try {
    engine_.reset();  // before the memory is asked for again
    engine_ = std::make_unique<Engine>(files_, engine_options_);
    orders_ = std::make_unique<Orders>(engine_options_.world_size);
    return true;
  } catch (const std::exception& e) {
    log_warning(fmt::format("the engine does not start again: {}", reason_of(e)));
    return false;
  }
}

void ServingEngine::die(const std::string& why) {
  std::deque<Request> left;
  bool was_ready = false;  // else who waits for that is told
  {
    std::lock_guard lock(mutex_);
    was_ready = ready_;
    died_of_ = why;
    left.swap(queue_);
    left.insert(left.begin(), running_.begin(), running_.end());
    for (const Request& request : left) request->cancelled = true;  // for ranks that return yet
    running_.clear();
    noted_.waiting = 0;
    changed_.notify_all();
  }
  if (was_ready) log_warning("the engine has died: " + why);
  for (const Request& request : left) request->tell_end(ServedRequest::End::kDied, why);
}

void ServingEngine::become_ready() {
  std::lock_guard lock(mutex_);
  ready_ = true;
  is_leading_ = true;
  acts_since_ = Clock::now();
  noted_.restarts_for.clear();
  changed_.notify_all();
}

void StepSizes::count(std::int64_t rows_of_one) {
  const int log =
      std::bit_width(static_cast<std::uint64_t>(std::max<std::int64_t>(rows_of_one, 1) - 1));
  ++counts[std::min(static_cast<std::size_t>(log), counts.size() - 1)];
  rows += rows_of_one;
}

void ServingEngine::count_step(std::int64_t rows) {
  std::lock_guard lock(mutex_);
  noted_.steps.count(rows);
  ++num_steps_;
}

void ServingEngine::note(const BatchLoop& loop, BatchModel& model) {
  const DeviceTimes times = model.times();
  std::lock_guard lock(mutex_);
  if (lost_) return;
  noted_.device_works = times_before_.works + times.works;
  noted_.device_waits = times_before_.waits + times.waits;
  const Scheduler& scheduler = loop.scheduler();
  running_ = loop.requests();
  noted_.waiting = scheduler.num_waiting();
  noted_.preemptions = scheduler.counters().preemptions;
  noted_.prefix_queries = scheduler.counters().prefix_queries;
  noted_.prefix_hits = scheduler.counters().prefix_hits;
  noted_.chosen_by_device = loop.chosen().by_device;
  noted_.chosen_here = loop.chosen().here;
  noted_.cache_use = 1 - static_cast<double>(scheduler.num_available_blocks()) /
                             static_cast<double>(scheduler.num_blocks());
}

bool ServingEngine::take(BatchLoop& loop, std::vector<Request>& came) {
  std::unique_lock lock(mutex_);
  if (loop.is_idle() && queue_.empty()) acts_since_.reset();
  if (loop.is_idle()) changed_.wait(lock, [&] { return !queue_.empty() || stopping_ || lost_; });
  if (lost_ || (loop.is_idle() && queue_.empty())) return false;
  acts_since_ = Clock::now();
  if (stopping_) loop.cancel_all();
  came.clear();
  for (auto at = queue_.begin(); at != queue_.end();) {  // whose turn will not come in time
    at = (*at)->is_late() ? (came.push_back(std::move(*at)), queue_.erase(at)) : at + 1;
  }
  let_in_who_has_waited();
  std::size_t late = came.size();
  while (came.size() - late < loop.room() && !queue_.empty()) {
    came.push_back(std::move(queue_.front()));
    queue_.pop_front();
  }
  running_.insert(running_.end(), came.begin(), came.end());
  return true;
}

void ServingEngine::lead(BatchModel& model) {
  BatchLoop loop(plan_.limits, files_.config.vocab_size);
  become_ready();
  StepDriver driver(model, loop, plan_.batch.ahead, [&](const StepDriver::Order& order) {
    note(loop, model);  // a step may take seconds
    orders_->tell(order);
    count_step(order->num_rows());  // before anybody hears of its tokens
  });
  std::vector<Request> came;
  while (true) {
    driver.wait_for_turn();
    if (!take(loop, came)) break;
    for (const Request& request : came) loop.add(request);
    if (driver.round()) faults_in_row_ = 0;
    note(loop, model);  // who sees nothing running has heard the end of everything
  }
  orders_->tell(nullptr);
}

void ServingEngine::follow(Rank& rank, BatchModel& model) {
  while (auto order = orders_->hear(rank)) {
    model.set_chosen(order->chosen);
    model.step(order->pieces(), {});
  }
}

}  // namespace stretto
