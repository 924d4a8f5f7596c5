// The launches of attention over a cache of pages within a step (step_plan.h), shared by all
// layers: rotary embedding, the write of new keys and values to their pages, and attention of the
// rows that are their sequence's only ones apart from that of prompts. Both add up in the same
// order, so that a token's result does not depend on which of them it went through.
#pragma once

#include <cstdint>
#include <map>

#include "stretto/model/transformer/step_builder.h"

namespace stretto {

// Whether decodes and prompts of such steps add up in one order, where each goes its own way.
bool has_prompt_order(const ModelShape& shape);

class PagedPlan {
 public:
  // Adds programs and buffers to the plan, but for "qkv"; `shape` and `plan` must outlive it.
  PagedPlan(const ModelShape& shape, StepBuilder& plan);

  // "attended" = attention of "qkv"; `rope` binds what rotary embedding reads.
  void add(std::int64_t layer, StepBuilder::Bindings rope) const;

 private:
  bool has_prompts() const;
  bool has_decodes() const;
  bool shares_rows() const;  // each of a step's rows is of a sequence that goes one of the two ways

  const ModelShape& s_;
  StepBuilder& plan_;
  int rope_ = 0, write_ = 0;
  std::map<std::int64_t, int> prompts_, decodes_;  // by window
};

}  // namespace stretto
