// What the steps of expert parallelism have in common: tokens to the ranks that have their experts
// (ep_send.h), rows of the own experts (ep_place.h), and the way back (ep_return.h). Nothing
// depends on how many tokens go where: every source has a block of rows at every rank that holds
// all its tokens, so that no routing overflows.
#pragma once

#include <cstdint>
#include <string>

#include "stretto/base/dtype.h"
#include "stretto/ir/expr.h"
#include "stretto/ops/moe/expert_shape.h"
#include "stretto/ops/moe/expert_split.h"
#include "stretto/ops/operator/named_fields.h"

namespace stretto {

struct EpDesc {
  ExpertShape shape;
  DType dtype = DType::kF32;  // the tokens'
  std::int64_t hidden = 1;
  int expert_groups = 1;  // expert_split.h

  std::int64_t received_rows() const { return shape.rows_per_rank() * shape.world_size; }
  friend bool operator==(const EpDesc&, const EpDesc&) = default;
};

ExpertSplit split_of(const EpDesc& desc);
NamedFields fields_of(EpDesc& desc);

}  // namespace stretto
