// Makes the step plan of a model (step/plan_builder.h): the extents, names and buffers that all its
// steps have, and launches with as many rows as they take of the step's.
//
// Before: model_shape.h, model_buffers.h. After: step_plan.h and its parts, which fill it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "stretto/model/transformer/model_shape.h"
#include "stretto/predict/launch_tables.h"
#include "stretto/step/plan_builder.h"

namespace stretto {

// Names of what comes in and goes out of a step. From the host, i32 but for the tables of the
// rotary embedding "cos" and "sin", whose rows are those of the tokens' positions: kTokens and
// kSlots [bound, 1], with ModelShape::chosen kSources [bound, 1], whose row of kChosenBuffer a
// token is, or -1, and of the sequences of each kind (packed_attention.h) pages [sequences, pages
// of one], tokens [sequences, 1], and the prompts' starts [sequences + 1, 1], behind one entry more
// where steps are filled up by kind. The body leaves kHidden [bound, hidden]. The head multiplies
// its first rows, or others that are copied to kWanted [head rows, hidden], and gives kLogits
// [head rows, vocab] f32.
namespace step_buffer {
inline constexpr const char* kTokens = "tokens";
inline constexpr const char* kSources = "token_sources";
inline constexpr const char* kSlots = "cache_slots";
inline constexpr const char* kDecodePages = "decode_pages";
inline constexpr const char* kDecodeTokens = "decode_tokens";
inline constexpr const char* kPromptStarts = "prompt_starts";
inline constexpr const char* kPromptPages = "prompt_pages";
inline constexpr const char* kPromptTokens = "prompt_tokens";
inline constexpr const char* kHidden = "hidden";
inline constexpr const char* kWanted = "wanted";
inline constexpr const char* kLogits = "logits";
}  // namespace step_buffer

// Its sections: from tokens to the last normalised rows, and from the rows that are asked for to
// their logits, which runs once for each so many of them.
inline constexpr const char* kBodySection = "body";
inline constexpr const char* kHeadSection = "head";

// What a group's step has to do.
struct StepRows {
  std::int64_t count = 0;    // rows; 0: only take part in what other groups do
  std::int64_t most = 0;     // that any data group has in this step
  std::int64_t decodes = 0;  // among the rows, those of sequences with one
};

// What a launch of the head has: rows of kWanted, or the first ones of the step; where steps are
// filled up as many as it takes at most.
struct HeadRows {
  std::int64_t wanted = 0, first = 0;
};

// The values of the plan's extents, for a run of the body or of the head. Where steps are filled
// up, prompts have all rows, or none where there are only decodes.
std::vector<std::int64_t> batch_extents(const ModelShape& shape, const StepRows& rows,
                                        const HeadRows& head);

// A plan, and what a program's tables hold in a usual launch, for predictions, by program; nothing
// is known of others.
struct ModelStep {
  step::Plan plan;
  std::map<int, predict::LaunchTables> usual_tables;
};

// `shape` outlives it.
class StepBuilder {
 public:
  using Bindings = std::vector<step::NamedBinding>;
  using Sizes = std::vector<step::Size>;  // a launch's extents in the step's

  // For steps of at most `bound` rows; weights and caches (model_buffers.h) are among its buffers.
  StepBuilder(const ModelShape& shape, std::int64_t bound);

  std::int64_t bound() const { return bound_; }
  std::int64_t head_rows() const { return head_rows_; }  // that a launch of the head takes at most

  Sizes all() const;         // the step's rows
  Sizes all_as_new() const;  // the same, and 0
  Sizes own() const;         // ceil(rows / P)
  Sizes decodes() const;     // rows that are their sequence's only ones, which come first
  Sizes prompts() const;     // the others; where steps are filled up, all
  // Where data groups meet, the rows of the group that has most count for all of them.
  Sizes most_own() const;      // ceil(most / P)
  Sizes of_all_ranks() const;  // as many on each rank
  static Sizes fixed(std::int64_t count) { return {step::Size::of(count)}; }
  step::Size behind_decodes() const;  // the first row that is none of decodes()

  using Kind = step::BufferKind;
  struct Rows {
    std::int64_t rows = 0, cols = 0;
  };
  void buffer(const std::string& name, DType dtype, Rows shape, Kind kind = Kind::kLocal);
  // Other ranks address it; those of other groups, too, where `across_groups`.
  void symmetric(const std::string& name, DType dtype, Rows shape, bool across_groups = false,
                 Kind kind = Kind::kLocal);
  int program(Program program) { return plan_.program(std::move(program)); }
  const Program& program_at(int index) const {
    return plan_.plan().programs[static_cast<std::size_t>(index)];
  }
  void usual_tables(int program, predict::LaunchTables tables) {
    usual_tables_[program] = std::move(tables);
  }
  // A node is named after its program, and the layer whose weights or cache it binds, or the one
  // before it does.
  void launch(int program, Sizes sizes, const Bindings& bindings);
  // Ends the body, and launches the head with bindings but for its rows "x".
  void head(int program, const Bindings& bindings);

  ModelStep finish() { return {plan_.finish(), std::move(usual_tables_)}; }

 private:
  std::string name_of(int program, const Bindings& bindings, bool of_layer);

  const ModelShape& s_;
  std::int64_t bound_, head_rows_;
  step::PlanBuilder plan_;
  std::map<int, predict::LaunchTables> usual_tables_;
  std::string layer_;                 // "layers.3.", of the last node
  std::map<std::string, int> named_;  // how many nodes have that name
};

}  // namespace stretto
