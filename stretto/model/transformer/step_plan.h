// What a forward step is, as data: the buffers it works on and the launches over them, in order.
// Two shapes of step: replicated rows (GEMM + all-reduce), and rows that are spread over the ranks
// (all-gather + GEMM, GEMM + reduce-scatter, or around attention whole weights and all-to-alls).
//
// Before: the checkpoint's config. After: batch_plan.h for CPU ranks, batch_runner.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "stretto/ir/program.h"
#include "stretto/model/checkpoint/config.h"
#include "stretto/ops/operator/target.h"
#include "stretto/predict/launch_tables.h"

namespace stretto {

namespace predict {
struct Machine;
}

// Products of more rows than this take the config that is predicted to be the fastest, where a
// machine is known; fewer rows those that were measured.
constexpr std::int64_t kMostRowsOfDefaults = 256;

// A cache of pages for many sequences at once (batch_model.h).
struct PagedCache {
  std::int64_t page = 0;       // tokens
  std::int64_t num_pages = 0;  // of each layer
  std::int64_t sequences = 0;  // most of a step
  // Most of them with more rows than one; 0: all may. On GPUs attention of prompts takes a turn for
  // each that there may be (ModelShape::prompt_sequences).
  std::int64_t prompts = 0;
  static constexpr std::int64_t kPromptsOnGpus = 32;  // that servers and commands let into a step
  // Keys and values are e4m3 with a scale for each token of each head (ops/attention/cached_rows.h)
  // in place of the activations' dtype.
  bool fp8 = false;
  // What rows go through. CPU ranks compute the same each way, GPUs by the first two.
  enum class Attention : std::uint8_t {
    // paged_decode in the order of paged_attention where they are their sequence's only ones, else
    // paged_attention.
    kByKind,
    kPrompts,  // paged_attention
    kDecodes,  // paged_decode, on GPUs in the order that is fastest: steps have no other rows
  };
  Attention attention = Attention::kByKind;

};

// What all steps of a model have in common.
struct ModelShape {
  const ModelConfig* config = nullptr;
  int world_size = 1;                // tensor-parallel ranks
  DType dtype = DType::kF32;         // activations, and the cache unless paged.fp8
  DType weight_dtype = DType::kF32;  // weights.h: weight_dtype()
  std::int64_t max_tokens = 0;       // of a sequence
  PagedCache paged = {};
  Target target = Target::kCpu;
  // Of ranks, in a mixture of experts: ops/moe/expert_split.h. Several are groups of all_ranks().
  int expert_groups = 1;
  // Of world_size consecutive ranks, each with sequences and a cache of its own. Where experts are
  // spread over several of them, they make their steps together, with one exchange.
  int data_groups = 1;
  // Prompts through sequence-parallel attention: the rows of steps that are not small are spread
  // over the ranks, which multiply their own ones with all of attention's weights. Every rank then
  // has these beside its share.
  bool ulysses = false;
  const predict::Machine* machine = nullptr;  // that products are chosen for; null: default configs

  int all_ranks() const { return world_size * data_groups; }
  // Steps on GPUs have all rows that they are made for, some of nobody (batch_model.h).
  bool fills_steps() const { return target == Target::kCuda; }
  // And each row in them goes through attention of its kind: tables say which rows are of which,
  // since extents are at their bounds.
  bool fills_by_kind() const {
    return fills_steps() && paged.attention == PagedCache::Attention::kByKind;
  }
  // Sequences that attention of prompts is made for in a step of so many rows: those of nobody,
  // which fill it up, are such, too.
  std::int64_t prompt_sequences(std::int64_t rows) const {
    const bool some = paged.prompts > 0 && paged.attention == PagedCache::Attention::kByKind;
    const std::int64_t nobodys = (rows + max_tokens - 1) / max_tokens;
    return some ? std::min(paged.prompts + nobodys, paged.sequences) : paged.sequences;
  }
  // Whether so many rows are their sequences' only ones.
  bool only_decodes(std::int64_t rows) const { return fills_by_kind() && rows == 1; }
  bool has_whole_attention() const { return ulysses && world_size > 1; }
  // Whether tokens of different data groups meet at the experts.
  bool shares_experts() const { return data_groups > 1 && expert_groups > 1; }
  // Ranks that have all of a mixture's experts together.
  int expert_ranks() const { return expert_groups > 1 ? all_ranks() : world_size; }
};

// Those of the data group that one of shape.all_ranks() is in.
std::vector<int> ranks_of_group(const ModelShape& shape, int rank);

// One rank's [rows, cols], dense, the same shape on every rank.
struct PlanBuffer {
  std::string name;
  DType dtype = DType::kF32;
  std::int64_t rows = 0, cols = 0;
  bool symmetric = false;      // other ranks address it
  bool across_groups = false;  // and if so, those of other data groups too
  bool input = false;          // the host writes it before a step
  bool state = false;          // of the step, which keeps what it holds

  std::size_t bytes() const;
};

// Weights and caches, which all steps share: "embedding", "layers.3.qkv", "layers.3.k_cache",
// "layers.3.k_scales" of an fp8 cache. The weights are those of weights.h: for_each_weight().
std::vector<PlanBuffer> model_buffers(const ModelShape& shape);
std::string layer_buffer(std::int64_t layer, const char* part);
// Of a page, in a layer's cache of keys or of values on one rank.
std::int64_t page_rows(const ModelShape& shape);

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
  std::int64_t most = 0;     // of any data group in this step
  std::int64_t decodes = 0;  // of the rows, those of sequences with one
};

struct Binding {
  const char* tensor;  // of the program
  std::string buffer;
  bool behind_decodes = false;  // from the first row on that is none of Rows::kDecodes
};

struct PlanLaunch {
  std::size_t program = 0;
  Rows rows = Rows::kAll;
  std::vector<Binding> bindings;
  std::vector<std::int64_t> fixed;  // of Rows::kFixed
};

struct StepPlan {
  std::int64_t bound = 0;  // most rows
  // Tile level; a launch names one, many launches share one. Where there are several data groups,
  // those for all ranks run on all of them at once, those for world_size on a group with rows.
  std::vector<Program> programs;
  std::vector<PlanBuffer> buffers;  // of this step alone
  std::vector<PlanLaunch> launches;
  // The LM head, launched by itself for up to `head_rows` rows of `head_input`, extent: those rows.
  PlanLaunch head;
  std::string head_input;  // bound to the head's tensor "x"
  std::int64_t head_rows = 0;
  // What the tables of a program hold in a usual launch, for predictions; of others nothing is
  // known.
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
