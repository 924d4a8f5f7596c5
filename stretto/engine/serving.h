// A model that answers requests as they come, until it is told to stop: the queue, the thread that
// runs the model, cancellation in every state. One request runs at a time, in the order in which
// they came. Comes after generate.h's Engine; server/ puts clients in front of it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "stretto/engine/generate.h"

namespace stretto {

// A token with its logarithm of probability (natural, of what the model computed before sampling
// changes it), and the most likely ones beside it.
struct TokenLogprob {
  int token = 0;
  double logprob = 0;
  std::int64_t rank = 1;                         // among all, 1 for the most likely
  std::vector<std::pair<int, double>> top = {};  // most likely first, of equals the lowest id
};

// One answer. Its functions are called on the engine's thread and must not block.
struct ServedRequest {
  std::vector<int> prompt;
  std::int64_t max_tokens = 16;
  SamplingParams sampling;
  // How many alternatives each logprob has; -1: no logprobs.
  int num_logprobs = -1, num_prompt_logprobs = -1;

  // Before the prompt is run.
  std::function<void()> on_start;
  // Of the prompt's tokens from the second on, in order, all before the first token.
  std::function<void(const TokenLogprob&)> on_prompt;
  // False: that was the last one that anybody wants. Without logprobs only `token` is set.
  std::function<bool(const TokenLogprob&)> on_token;
  enum class End : std::uint8_t {
    kEnough,     // on_token said so
    kLength,     // max_tokens
    kCancelled,  // cancel()
    kFailed,     // the model could not go on: `what` says why
    kDied,       // the engine cannot: `what` says why
  };
  // Exactly once, after everything else.
  std::function<void(End, const std::string& what)> on_end;

  std::atomic<bool> cancelled{false};
};

class EngineBusy : public Error {
 public:
  using Error::Error;
};

struct ServingOptions {
  std::int64_t max_model_len = 0;  // tokens of prompt and answer; 0: the model's
  std::size_t max_queue = 2048;
};

class ServingEngine {
 public:
  // Starts to load. `files` outlives the engine. UserError as Engine.
  ServingEngine(const ModelFiles& files, const EngineOptions& options,
                const ServingOptions& serving);
  // Cancels what there is, and waits for the thread.
  ~ServingEngine();
  ServingEngine(const ServingEngine&) = delete;
  ServingEngine& operator=(const ServingEngine&) = delete;

  // Returns when every step is proved, compiled and allocated; throws what went wrong with that.
  void wait_until_ready();

  std::int64_t max_model_len() const { return max_model_len_; }
  // All of them or none. UserError for a prompt that is empty, has ids outside the vocabulary or
  // does not leave room for a token (max_tokens is cut to the room that there is); EngineBusy where
  // the queue is full, or nothing is taken any more.
  void submit(const std::vector<std::shared_ptr<ServedRequest>>& requests);
  // In any state; it ends as soon as the model's current step has.
  void cancel(const std::shared_ptr<ServedRequest>& request);

  // submit() refuses from now on; what was taken goes on.
  void drain();
  struct State {
    std::size_t running = 0, waiting = 0;
    std::string died_of;  // empty while it lives
  };
  State state() const;

 private:
  using Request = std::shared_ptr<ServedRequest>;
  class Decisions;
  class Serving;

  void check(ServedRequest& request) const;
  void run();
  Request next();  // none: the end
  void serve(int rank, Rank* host, Transformer& model);
  void die(const std::string& why);

  const ModelFiles& files_;
  ServingOptions options_;
  std::int64_t max_model_len_;
  Engine engine_;
  std::unique_ptr<Decisions> decisions_;  // of rank 0, for the others

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Request> queue_;
  Request running_;
  bool ready_ = false, draining_ = false, stopping_ = false;
  std::string died_of_;
  std::exception_ptr failure_;  // before it was ready
  std::thread thread_;
};

}  // namespace stretto
