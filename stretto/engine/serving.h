// A model that answers requests as they come, many at once (batch_loop.h), until it is told to
// stop: the queue, the thread that runs the model, cancellation in every state. Comes after
// generate.h's Engine; server/ puts clients in front of it.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "stretto/base/env.h"
#include "stretto/base/progress.h"
#include "stretto/engine/generate.h"
#include "stretto/engine/scheduler.h"
#include "stretto/engine/served_request.h"
#include "stretto/model/transformer/batch_runner.h"

namespace stretto {

class BatchLoop;

class EngineBusy : public Error {
 public:
  using Error::Error;
};
// It will not take requests again: it has died, or is told to end.
class EngineGone : public EngineBusy {
 public:
  using EngineBusy::EngineBusy;
};

struct ServingOptions {
  std::int64_t max_model_len = 0;  // tokens of prompt and answer; 0: the model's
  std::size_t max_queue = 2048;
  // Steps after which who waits has the highest priority; 0: it keeps its own.
  int most_waits = 4096;
  double request_seconds = 0;        // that one may take, waiting included; 0: any time
  int max_num_seqs = 64;             // requests that run at once
  int max_num_batched_tokens = 256;  // rows of a step
  std::size_t kv_bytes = 0;          // of the cache, on all ranks; 0: what Engine::size_cache says
  bool prefix_caching = true;
  bool fastest = false;  // model_shape.h: PagedCache
  // Each step is decided while the one before runs (step_driver.h); default: on GPUs.
  std::optional<bool> ahead;
  // Where a rank faults all are started again: requests that run end as kDied, the others wait.
  bool restart_on_fault = false;
  // That a step may take. Where it takes longer, or where a rank does not return once another has
  // faulted, the ranks are lost: nobody can end their threads, so that the engine has died.
  double step_seconds = 300;
  // Then called once, on a thread of the engine's own, after all requests have heard of it.
  std::function<void(const std::string& why)> on_lost = {};
};

// What the steps of a server are made for.
struct ServingSettings {
  BatchOptions batch;
  CacheSize memory;
  SchedulerLimits limits;
  std::int64_t max_model_len = 0;
};
// UserError for options that do not fit each other, the model or the memory.
ServingSettings plan_serving(const ModelFiles& files, const Engine& engine,
                             const EngineOptions& options, const ServingOptions& serving);

// How many rows steps had: [i] counts those of more than 2^(i - 1) and at most 2^i, the last one
// all that are larger.
struct StepSizes {
  std::array<std::uint64_t, 16> counts{};
  std::int64_t rows = 0;  // of all of them

  void count(std::int64_t rows_of_one);
};

class ServingEngine {
 public:
  // Starts to load. `files` outlives the engine. UserError as Engine.
  ServingEngine(const ModelFiles& files, const EngineOptions& options,
                const ServingOptions& serving);
  ~ServingEngine();  // as stop()
  ServingEngine(const ServingEngine&) = delete;
  ServingEngine& operator=(const ServingEngine&) = delete;

  // Returns when every step is proved, compiled and allocated; throws what went wrong with that.
  void wait_until_ready();
  // The same for so long at most: whether it is ready.
  bool wait_until_ready(std::chrono::milliseconds at_most);

  std::int64_t max_model_len() const { return plan_.max_model_len; }
  double request_seconds() const { return options_.request_seconds; }
  // All of them or none. UserError for a prompt that is empty, has ids outside the vocabulary or
  // does not leave room for a token (max_tokens is cut to the room that there is); EngineBusy where
  // the queue is full, EngineGone where nothing is taken any more.
  void submit(const std::vector<std::shared_ptr<ServedRequest>>& requests);
  // In any state; it ends as soon as the model's current step has.
  void cancel(const std::shared_ptr<ServedRequest>& request);

  // submit() refuses from now on; what was taken goes on.
  void drain();
  // Cancels what there is, and waits for the threads: without end where the ranks are lost
  // (State::lost) and do not return. Then submit() refuses, and all else may still be asked.
  void stop();
  struct State {
    std::size_t running = 0, waiting = 0;
    std::int64_t preemptions = 0;
    std::int64_t prefix_queries = 0, prefix_hits = 0;    // tokens, as Scheduler::Counters
    std::int64_t chosen_by_device = 0, chosen_here = 0;  // tokens, as BatchLoop::Chosen
    StepSizes steps;                                     // all that were begun
    double device_works = 0, device_waits = 0;           // seconds: DeviceTimes
    double cache_use = 0;                                // of 1
    std::string died_of;                                 // empty while it lives
    bool lost = false;                                   // it has died: ranks do not return
    std::string fault;          // of a rank, while the others still have to return
    std::int64_t restarts = 0;  // after faults
    std::string restarts_for;   // the fault; empty once it is ready again
    // What it does before it is ready, and for how long; empty once it is, and after its death.
    std::string loads;
  };
  State state() const;

  std::int64_t cache_tokens() const;
  std::size_t cache_bytes() const;  // of all ranks
  std::string cache_dtype() const;  // "bfloat16"; "fp8": e4m3 with scales
  const CacheSize& memory() const { return plan_.memory; }

 private:
  using Request = std::shared_ptr<ServedRequest>;
  class Orders;

  void check(ServedRequest& request) const;
  void become_ready();
  void run();
  void begin_ranks();
  void run_rank(Rank* rank, BatchModel& model);
  void note_return(const Rank* rank, const std::string& fault);
  // Whether they may be followed by others: they are not lost.
  bool end_ranks();
  void watch();
  void pass_over(std::chrono::duration<double> time);
  void end_watch();
  std::string why_lost() const;
  bool restart_for(const std::string& why);
  void die(const std::string& why);
  // The first of CPU ranks, or who drives all GPUs; and the other ranks.
  void lead(BatchModel& model);
  void follow(Rank& rank, BatchModel& model);
  void put_into_queue(const Request& request);
  void let_in_who_has_waited();
  // Those who came and for whom there is room; false: the end.
  bool take(BatchLoop& loop, std::vector<Request>& came);
  void note(const BatchLoop& loop, BatchModel& model);
  void count_step(std::int64_t rows);

  const ModelFiles& files_;
  ServingOptions options_;
  EngineOptions engine_options_;
  std::unique_ptr<Engine> engine_;
  ServingSettings plan_;
  std::unique_ptr<Orders> orders_;  // of rank 0, for the others
  int faults_in_row_ = 0;           // without a step in between; of the engine's thread

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Request> queue_;  // in the order in which they will run
  std::vector<Request> running_;
  std::int64_t num_steps_ = 0;
  State noted_;               // what of it is not counted here
  DeviceTimes times_before_;  // of devices before the last fault
  Progress progress_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();  // to load
  bool ready_ = false, draining_ = false, stopping_ = false;
  std::string died_of_;
  std::exception_ptr failure_;  // before it was ready

  using Clock = std::chrono::steady_clock;
  // Of the ranks that run now. Since when the first one has had something to do, which ends with
  // each step; none: it waits for clients.
  std::optional<Clock::time_point> acts_since_, fault_at_;
  const std::chrono::milliseconds timeout_ = env_timeout();  // for the others, after a fault
  std::string fault_;                                        // the first one
  std::vector<bool> returned_;                               // [rank]
  bool has_ranks_ = false, is_leading_ = false;
  bool lost_ = false, watch_ends_ = false;
  std::condition_variable watch_changed_;
  std::thread watcher_, thread_;
};

}  // namespace stretto
