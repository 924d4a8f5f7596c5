// Where each register of an agent lives on the GPU: spread over the agent's threads in a layout, or
// in shared memory as a slot that a product reads.
//
// Registers that meet in elementwise operations share one layout, so that no value ever moves
// between threads except through an operation that says so: products with 16- or 8-bit operands use
// the accumulator fragment of wgmma, everything else rows over groups of lanes. Generated code goes
// by it, and so does the proof where it asks which thread touches an element
// (proof/access_paths.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stretto/ir/program.h"

namespace stretto {

// How a product is computed.
enum class DotKind : std::uint8_t { kNone, kWgmma, kSimt };
DotKind dot_kind(const Agent& agent, const Op& op);
// The equal parts of a product's columns of which the tensor core leaves out those without any of
// the columns that the operation names; 1: it multiplies all.
int column_parts(const Agent& agent, const Op& op);

struct ValuePlan {
  bool used_by_dot = false;     // as a factor
  bool used_elsewhere = false;  // needs registers
  bool from_slot = false;       // result of kPipeGet, or a transpose of one
  bool transposed = false;      // of a slot
  int slot_reg = -1;            // from_slot: the register that the kPipeGet wrote
  bool fragment = false;        // wgmma fragment layout, else rows
  int lanes = 1, vec = 1;       // row layout
};

struct AgentPlan {
  int num_threads = 0;
  int cluster = 1;  // a tile's rows are split over that many blocks
  std::vector<ValuePlan> values;

  int warpgroups() const { return num_threads / 128; }
  // Rows of a value that one block holds.
  std::int64_t rows_here(const ValueType& type) const;
  // "MmaLayout<128, 256, 2>".
  std::string layout_text(const ValueType& type, const ValuePlan& plan) const;
  // Whether several warps hold a copy of each element: of a row those that share out other rows, of
  // a column those that share its rows.
  bool copied_in_warps(const ValueType& type, const ValuePlan& plan) const;
  int row_slots(const ValueType& type, const ValuePlan& plan) const;
  int col_slots(const ValueType& type, const ValuePlan& plan) const;
};

// `max_threads`: what the block leaves to this agent where the schedule does not say.
AgentPlan plan_values(const Agent& agent, int cluster);

}  // namespace stretto
