// What operations cost an agent, before it is known what else runs: the cost model's table, one row
// per operation. timetable_builder.h adds rows up and turns sums into pieces of work.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "stretto/ir/program.h"
#include "stretto/predict/machine.h"

namespace stretto::predict {

// Bytes between the own GPU and another.
struct RemoteBytes {
  int rank = 0;
  double read = 0, written = 0;
};

struct Cost {
  double tensor = 0;        // seconds of the whole tensor capacity of the GPU
  double vector_ops = 0;    // elementwise operations
  double num_loads = 0;     // that the agent waits for before it goes on
  double remote_loads = 0;  // the same, from other GPUs
  double num_stores = 0;    // tiles
  double num_steps = 0;     // iterations of pipelined loops
  double num_copies = 0;
  double read = 0, written = 0;  // bytes of own memory
  std::vector<RemoteBytes> remote;
  double packets = 0;  // of what is written to other GPUs
  double picked = 0;   // of what is read into slots: rows that threads pick one by one
  double outside = 0;  // of slots: rows and columns beyond what is read into them

  void add(const Cost& other, double times);
  RemoteBytes& to(int rank);
  bool is_zero() const;
};

// The part of an operation that does not depend on where it reads and writes: arithmetic.
// UserError naming the dtype where the machine has no rate for a product.
void add_arithmetic(const Op& op, std::span<const ValueType> values, const Machine& machine,
                    Cost& cost);

}  // namespace stretto::predict
