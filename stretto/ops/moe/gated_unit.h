// How the two products of an expert's first layer become one, in fp32, before it is rounded.
#pragma once

#include <limits>

#include "stretto/lang/program_builder.h"
#include "stretto/ops/operator/named_fields.h"

namespace stretto {

// g * sigmoid(alpha * g) * (u + beta) of g = a * b_gate^T, no more than `limit`, and u = a * b_up^T
// between -limit and limit, with their biases. As it stands silu(g) * u; of GPT-OSS {1.702, 1, 7}.
// A gate that is NaN stays NaN; an `up` that is NaN becomes the limit, where there is one.
struct GatedUnit {
  double alpha = 1, beta = 0;
  double limit = std::numeric_limits<double>::infinity();
  friend bool operator==(const GatedUnit&, const GatedUnit&) = default;
};

// Text leaves out what silu(g) * u has: " alpha=1.702 beta=1 limit=7".
NamedFields fields_of(GatedUnit& unit);
// UserError unless alpha and beta are finite and the limit is more than 0, and for any but silu(g)
// * u where there is no gate.
void check(const char* op, const GatedUnit& unit, bool swiglu);
// For f32 values.
Value gated(ProgramBuilder& p, const GatedUnit& unit, const Value& gate, const Value& up);

}  // namespace stretto
