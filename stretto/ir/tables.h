// Tables: integer tensors whose entries decide indices, each within the tensor's contract. Who
// writes one decides what may follow from an entry: the verifier, the split into agents, the proof
// and both backends ask here.
#pragma once

#include "stretto/ir/program.h"

namespace stretto {

inline bool is_table(const Tensor& t) { return t.contract.kind != ContractKind::kNone; }

// A table that the launch makes for itself: a buffer. Each entry is stored at most once a launch,
// before it is read, and checked where it is read.
inline bool is_made_table(const Tensor& t) { return is_table(t) && t.kind == TensorKind::kBuffer; }

// Every read of an entry in a launch gives the same value, so that agents who go by it agree.
inline bool is_steady_table(const Tensor& t) {
  return is_table(t) && (t.kind == TensorKind::kInput || t.kind == TensorKind::kBuffer);
}

}  // namespace stretto
