// Grouped products of the layers that experts_pair.py meets PyTorch with, in configs around the
// default: what the default is chosen by. Times alone; results are `check --only grouped`'s.
#pragma once

#include <cstdint>
#include <string>

namespace stretto::bench {

struct GroupedOptions {
  std::string only;      // part of the layers' texts: "qwen2-moe layer 2 m=16384 f8e4m3"
  bool compile = false;  // the kernels alone; needs no GPU
  std::uint64_t seed = 0;
};

// Prints a line for each config; how many failed.
int search_grouped(const GroupedOptions& options);

}  // namespace stretto::bench
