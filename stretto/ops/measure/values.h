// Values for the tensors of a launch that nobody gives: random ones, and tables of what their
// contracts allow.
#pragma once

#include <cstdint>
#include <vector>

#include "stretto/base/dtype.h"
#include "stretto/ir/program.h"

namespace stretto {

// Row-major values of one tensor on one rank, at the bound shape.
using Values = std::vector<double>;

// Random values in [-1, 1) rounded to `dtype`; the sequence depends on the seed alone.
Values random_values(std::size_t count, DType dtype, std::uint64_t seed);
Values round_to(const Values& values, DType dtype);
// A table of integers filled with its smallest permitted values, partitions into even parts.
Values table_values(const Program& program, std::size_t tensor_idx);
// What a launch is measured with [tensor]: random floats, such tables, nothing for outputs and
// buffers.
std::vector<Values> launch_values(const Program& program, int rank, std::uint64_t seed);

}  // namespace stretto
