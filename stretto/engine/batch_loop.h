// What rank 0 does between steps of a batch: requests go to the scheduler, logits become tokens,
// clients hear of them. serving.h runs it; every rank makes the steps (model/.../batch_model.h).
//
// Tokens and ends are kept until tell(), so that GPUs have their next step before anybody hears of
// the last one. A request that then has enough is in that step once more, in vain. A step may also
// be decided before the rows of the last one are taken (scheduler.h): then those who have enough
// are in one more. What comes of rows in vain nobody hears.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "stretto/engine/scheduler.h"
#include "stretto/engine/served_request.h"
#include "stretto/model/transformer/batch_model.h"

namespace stretto {

// A step as every rank is told of it.
struct BatchOrder {
  struct Part {
    std::vector<int> tokens, pages;
    std::int64_t first = 0, wanted = 0;  // as BatchPiece
    int source = -1;                     // likewise
  };
  std::vector<Part> parts;
  // What the last step chose, where ranks are told so that have not chosen (BatchModel::chosen).
  std::vector<int> chosen = {};

  std::vector<BatchPiece> pieces() const;  // of this order's memory
  std::int64_t num_rows() const;
};

class BatchLoop final : public RowVisitor {
 public:
  using Request = std::shared_ptr<ServedRequest>;

  BatchLoop(const SchedulerLimits& limits, std::int64_t vocab);

  // Requests that may be added before others end.
  std::size_t room() const { return static_cast<std::size_t>(limits_.max_running) - live_.size(); }
  // Checked already: it fits (Scheduler::add). Where it was cancelled or is late it ends here.
  void add(const Request& request);
  bool is_idle() const { return live_.empty() && steps_.empty(); }

  // The next step, after those who were cancelled or are late have ended; no parts: nothing is to
  // do, or not before complete(). One step may be under way meanwhile, if all that it asked for
  // were tokens (Want::kToken).
  BatchOrder decide();
  // The rows of the earliest step that is not complete: first what is wanted of all of them.
  Want want(std::size_t part, std::int64_t row, ChoiceWish& wish) override;
  void take_choice(std::size_t part, std::int64_t row, const ChoiceResult& result) override;
  void take(std::size_t part, std::int64_t row, std::span<const float> logits) override;
  void miss(std::size_t part, std::int64_t row) override;
  // All of its rows have been taken.
  void complete();
  // Requests hear of the tokens and ends since the last call. Before the rows of a next step are
  // taken, and before anybody waits.
  void tell();
  void cancel_all();

  // Tokens that were chosen by the device, and here from logits.
  struct Chosen {
    std::int64_t by_device = 0, here = 0;
  };
  const Chosen& chosen() const { return num_chosen_; }
  const Scheduler& scheduler() const { return scheduler_; }
  std::vector<Request> requests() const;  // that have not heard of their end

 private:
  struct Live {
    Request request;
    Sampler sampler;
    std::int64_t prompt_told = 0;  // tokens of the prompt whose logprobs were told
    bool started = false;
    bool chooses_here = false;                   // from logits, since the device could not
    std::optional<ServedRequest::End> end = {};  // once the step that is under way is over
    std::string failure = {};
  };

  bool tells_prompt(const Live& live) const;
  void tell_prompt(Live& live, std::int64_t position, std::span<const float> logits);
  // What the constraint allows of the next token; false: the answer is complete, which ends it.
  bool constrain(RequestId id, Live& live, std::span<const std::uint32_t>& allowed) const;
  std::size_t num_generated(RequestId id, const Live& live) const;
  // What fails in there ends the request.
  template <typename Act>
  void guarded(Live& live, const Act& act);
  void choose(RequestId id, Live& live, std::span<const float> logits);
  void keep(RequestId id, Live& live, const TokenLogprob& told);
  void finish(std::map<RequestId, Live>::iterator at);

  // What a request has not heard yet: a token, or its end.
  struct Step {
    std::vector<Piece> pieces;
    std::map<RequestId, int> sources;  // which of the step's choices theirs is
    std::map<RequestId, int> chosen;
    std::set<RequestId> in_vain;  // begun again meanwhile
  };
  // Of a piece of the earliest step; null: its request has ended, or begins again.
  Live* live_of(const Piece& piece);

  struct Untold {
    RequestId id = 0;
    Request request;
    TokenLogprob token = {};
    std::optional<ServedRequest::End> end = {};
    std::string failure = {};
  };

  SchedulerLimits limits_;
  std::size_t vocab_;
  Scheduler scheduler_;
  std::map<RequestId, Live> live_;
  std::deque<Step> steps_;      // not complete, the earliest first
  std::vector<Untold> untold_;  // in order
  Chosen num_chosen_;
  std::vector<float> logits_;          // scratch of sampling
  std::vector<double> probabilities_;  // scratch of logprobs
};

}  // namespace stretto
