// A transformer that takes rows of many sequences in one step, over a cache of pages: pieces of
// prompts beside sequences that go on by one token. On CPU ranks each rank has one; on GPUs one
// drives all ranks. In float32 on CPU ranks a row's logits are the same bits whoever is beside it,
// and however its sequence was cut into pieces.
//
// Before: engine/scheduler.h decides the pieces. After: batch_runner.h, the device beneath.
// Families (Llama, Mistral, Qwen) differ in data only (checkpoint/config.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "stretto/base/progress.h"
#include "stretto/model/transformer/batch_runner.h"
#include "stretto/model/transformer/rope_table.h"
#include "stretto/runtime/world.h"

namespace stretto {

struct BatchOptions {
  DType dtype = DType::kF32;    // activations and cache
  std::int64_t max_rows = 256;  // in a step
  std::int64_t max_tokens = 0;  // in a sequence; 0: the model's positions
  PagedCache cache;
  // Whose configs the steps use; CPU ranks can run the plan of a GPU, which tests do.
  Target plan_for = Target::kCpu;
  int expert_groups = 1;  // model_shape.h
  int data_groups = 1;    // likewise
  bool ulysses = false;   // likewise
  // Steps may be given before the tokens are known that the one before chooses
  // (BatchPiece::source).
  bool ahead = false;
  FusedExperts fused_experts = FusedExperts::kAuto;
  bool poison = false;           // on CPU ranks, for tests: step/cpu_runner.h
  Progress* progress = nullptr;  // hears what making the model does; outlives that
};

// UserError where `num_ranks` ranks are no whole number for each data group, or the experts of the
// model, if it has any, cannot be spread over so many groups.
void check_groups(const ModelConfig& config, int num_ranks, int data_groups, int expert_groups);

// What the options make of a config on `num_ranks` ranks; weight_dtype is left to the runner.
// UserError as check_groups and check_blocks (weights.h), and for e4m3 weights with ulysses.
//
// On GPUs a step is filled up with rows of nobody to a number that its plan is made for, so that
// its launches are proved and captured for no others; such rows have a page of their own, one more
// than the options say, the last.
ModelShape batch_shape(const ModelConfig& config, int num_ranks, const BatchOptions& options);

// Rows of one sequence in a step.
struct BatchPiece {
  std::span<const int> tokens;  // at least one; what stands here does not count with a source
  // Where the token of its only row, which the last step chose, stands among that one's choices, in
  // the order in which they were wanted (Want::kToken); -1: the host knows the tokens.
  int source = -1;
  std::int64_t first = 0;      // position of the first of them; those before are in the cache
  std::span<const int> pages;  // the sequence's, as many as all these tokens need
  // Rows whose logits are wanted: the last ones.
  std::int64_t wanted = 0;
};

// Who looks at the rows of a step, piece by piece and row by row of those that the device chooses
// from, and then of the others.
class RowVisitor {
 public:
  RowVisitor() = default;
  virtual ~RowVisitor() = default;
  RowVisitor(const RowVisitor&) = delete;
  RowVisitor& operator=(const RowVisitor&) = delete;

  // What is wanted of a row: a token, where the device chooses tokens (BatchStep::chooses);
  // `wish` is then filled in, its spans valid until the step is over.
  enum class Want : std::uint8_t { kLogits, kToken, kNothing };
  virtual Want want(std::size_t piece, std::int64_t row, ChoiceWish& wish) = 0;
  // A token that was chosen; the status is kChosen.
  virtual void take_choice(std::size_t piece, std::int64_t row, const ChoiceResult& result) = 0;
  // Logits [vocab], also where a choice came to nothing; valid during the call.
  virtual void take(std::size_t piece, std::int64_t row, std::span<const float> logits) = 0;
  // A choice came to nothing, and the logits are gone, since another step was given meanwhile.
  virtual void miss(std::size_t piece, std::int64_t row);
};

class BatchModel {
 public:
  // Makes the steps: every step is ready afterwards, proved, compiled and allocated. Collective, as
  // all calls, where ranks are threads.
  BatchModel(std::unique_ptr<BatchRunner> runner, std::int64_t max_rows,
             Progress* progress = nullptr);
  // On a CPU rank. `checkpoint` is read here only, `config` must outlive the model.
  BatchModel(Rank& rank, const ModelConfig& config, const Checkpoint& checkpoint,
             const BatchOptions& options);

  // One step: at most max_rows rows of at most cache.sequences sequences, of each sequence one
  // piece. Then visit(piece, row of the piece, its logits [vocab]) for all wanted rows, piece by
  // piece and row by row; the same bits on every rank, valid during the call. A rank that does not
  // look has no visitor.
  using Visit = std::function<void(std::size_t, std::int64_t, std::span<const float>)>;
  void step(std::span<const BatchPiece> pieces, const Visit& visit);
  // The same, where rows' tokens are chosen by the device if it does so.
  void step(std::span<const BatchPiece> pieces, RowVisitor& visitor);
  // Such a step in parts: what is between them is done while it runs, if runs_beside_host(). Only
  // choose() asks what is wanted. Whether that is nothing but tokens: then the next step may begin
  // before finish(), which tells what came of the rows. choose() and begin() take the same pieces.
  void begin(std::span<const BatchPiece> pieces);
  bool choose(std::span<const BatchPiece> pieces, RowVisitor& visitor);
  void finish(RowVisitor& visitor);
  void finish(std::span<const BatchPiece> pieces, RowVisitor& visitor) {
    choose(pieces, visitor);
    finish(visitor);
  }
  // Until the layers of the step that began last are done and only its choice is left; where
  // nothing runs beside the host they are.
  void wait_for_layers() { bucket_->step->wait_for_body(); }
  bool runs_beside_host() const { return runner_->runs_beside_host(); }

  // With BatchOptions::ahead on a CPU rank: the tokens that choose() chose, which the other ranks
  // are given before the next step.
  std::span<const std::int32_t> chosen() const;
  void set_chosen(std::span<const std::int32_t> tokens);

  // The host has nothing for the device until it begins a step.
  void rest() { runner_->rest(); }
  DeviceTimes times() const { return runner_->times(); }

  // Makes one step of the other data groups that share experts, in which this one has no tokens.
  // False where no group has any, and then in all groups at once. A group that is done calls it
  // until then. Collective.
  bool step_with_others();

  const ModelShape& shape() const { return runner_->shape(); }
  BatchStep& last_step() { return *bucket_->step; }  // that step() took, for measuring

 private:
  // `most` rows are what the data group has that has most.
  StepRows place(std::span<const BatchPiece> pieces, std::int64_t most);
  std::int64_t most_prompts() const;  // in the step
  void place_rows(const BatchPiece& piece, std::int64_t row);
  void place_pages(const BatchPiece& piece, std::int64_t sequence, bool decodes);
  // How many sequences have rows so far: those that decode apart, and the others.
  struct Sequences {
    std::int64_t decodes = 0, prompts = 0;
  };
  void place_piece(const BatchPiece& piece, bool apart, StepRows& rows, Sequences& sequences);
  void fill_up(std::int64_t full, StepRows& rows, Sequences& sequences);
  // False where no group has rows.
  bool run(std::span<const BatchPiece> pieces);
  // A row whose logits are wanted.
  struct Wanted {
    std::size_t piece = 0;
    std::int64_t row = 0;  // the piece's
  };
  std::vector<Wanted> wanted_rows(std::span<const BatchPiece> pieces) const;
  std::vector<std::int64_t> rows_of_step(std::span<const Wanted> wanted) const;
  void choose_there(std::span<const Wanted> wanted, RowVisitor& visitor);
  void choose_here(std::span<const Wanted> wanted, RowVisitor& visitor);
  void choose_here(const Wanted& wanted, std::span<const float> logits, RowVisitor& visitor);
  void take_choices();
  using VisitWanted = std::function<void(const Wanted&, std::span<const float>)>;
  void visit_logits(std::span<const Wanted> wanted, const VisitWanted& visit);

  struct Bucket {
    BatchBounds bounds;
    std::unique_ptr<BatchStep> step;
  };

  std::unique_ptr<BatchRunner> runner_;
  RopeTable rope_;
  std::vector<Bucket> buckets_;     // ascending, so that few rows do not walk over tiles of many
  const Bucket* bucket_ = nullptr;  // the step's
  std::vector<std::int64_t> first_row_;  // the step's, by piece

  // What was wanted of a step, until finish().
  struct Asked {
    BatchStep* step = nullptr;
    std::vector<Wanted> tokens, logits;  // rows
    std::vector<ChoiceResult> results;   // of the first tokens: those that were waited for
    std::vector<float> kept;             // of `logits`, row by row, where the host has them already
    bool waits = false;                  // for logits: another step must not begin before
    bool is_last = true;                 // no step was given since
  };
  Asked asked_;
  std::size_t num_chosen_ = 0;  // of the last step, in chosen()
  std::vector<float> scratch_;
  ChoiceScratch choice_scratch_;
};

}  // namespace stretto
