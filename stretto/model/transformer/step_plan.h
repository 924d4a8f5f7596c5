// What a forward step is, as data: the buffers it works on and the launches over them, in order.
// Two shapes of step: replicated rows (GEMM + all-reduce), and rows that are spread over the ranks
// (all-gather + GEMM, GEMM + reduce-scatter, or around attention whole weights and all-to-alls).
//
// Before: model_shape.h, model_buffers.h. After: batch_plan.h for CPU ranks, batch_runner.h.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "stretto/ir/program.h"
#include "stretto/model/transformer/model_buffers.h"
#include "stretto/model/transformer/model_shape.h"
#include "stretto/predict/launch_tables.h"

namespace stretto {

enum class Rows : std::uint8_t {
  kAll,    // extent: the step's rows
  kOwn,    // extent: ceil(rows / P)
  kFixed,  // extents: PlanLaunch::fixed
  // Where data groups meet, the rows of the group that has most count for all of them.
  kMostOwn,     // extent: ceil(most / P)
  kOfAllRanks,  // extent: as many on each rank
  kAllAsNew,    // extents: the step's rows, 0
  kDecodes,     // extent: the rows that are their sequence's only ones, which come first
  kPrompts,     // extent: the other rows; where steps are filled up, all of them
};

// What a group's step has to do.
struct StepRows {
  std::int64_t count = 0;    // rows; 0: only take part in what other groups do
  std::int64_t most = 0;     // that any data group has in this step
  std::int64_t decodes = 0;  // among the rows, those of sequences with one
};

struct Binding {
  const char* tensor;  // the program's
  std::string buffer;
  bool behind_decodes = false;  // from the first row on that is none of Rows::kDecodes
};

struct PlanLaunch {
  std::size_t program = 0;
  Rows rows = Rows::kAll;
  std::vector<Binding> bindings;
  std::vector<std::int64_t> fixed;  // for Rows::kFixed
};

struct StepPlan {
  std::int64_t bound = 0;  // most rows
  // Tile level; a launch names one, many launches share one. Where there are several data groups,
  // those for all ranks run on all of them at once, those for world_size on a group with rows.
  std::vector<Program> programs;
  std::vector<PlanBuffer> buffers;  // this step's alone
  std::vector<PlanLaunch> launches;
  // The LM head is launched by itself for up to `head_rows` rows of `head_input`, its extent.
  PlanLaunch head;
  std::string head_input;  // bound to the head's tensor "x"
  std::int64_t head_rows = 0;
  // What a program's tables hold in a usual launch, for predictions; nothing is known of other
  // programs.
  std::map<std::size_t, predict::LaunchTables> usual_tables;

  // Names of what comes in and goes out: token ids [bound, 1] i32, logits [head_rows, vocab] f32.
  static constexpr const char* kTokens = "tokens";
  static constexpr const char* kLogits = "logits";
  // From the host, i32 but for the tables of the rotary embedding, whose rows
  // are those of the tokens' positions: slots [bound, 1], and of the sequences of each kind
  // (packed_attention.h) pages [sequences, pages of one], tokens [sequences, 1], and the prompts'
  // starts [sequences + 1, 1], behind one entry more where steps are filled up by kind. What the
  // head multiplies is copied to kWanted [head_rows, hidden].
  static constexpr const char* kSlots = "cache_slots";
  static constexpr const char* kDecodePages = "decode_pages";
  static constexpr const char* kDecodeTokens = "decode_tokens";
  static constexpr const char* kPromptStarts = "prompt_starts";
  static constexpr const char* kPromptPages = "prompt_pages";
  static constexpr const char* kPromptTokens = "prompt_tokens";
  static constexpr const char* kWanted = "wanted";
};

// A step of at most `bound` rows. Every weight that a launch names is among model_buffers(shape).
StepPlan plan_step(const ModelShape& shape, std::int64_t bound);

}  // namespace stretto
