// What is asked of a program file from outside, where it leaves its sizes open: the file defines
//   stretto::Program stretto_program(const stretto::ProgramShape& shape);
// and `--m 8192 --n 22016 --k 4096 --dtype bfloat16 --ranks 4` of the commands arrive here.
#pragma once

#include <cstdint>

#include "stretto/base/dtype.h"

namespace stretto {

struct ProgramShape {
  int world_size = 1;
  std::int64_t m = 0, n = 0, k = 0;  // global sizes; 0: not given, the file has a default
  DType dtype = DType::kF32;
  // SMs of each GPU that the program is for, which the workers of its roles share; 0: CPU ranks.
  int num_sms = 0;
};

}  // namespace stretto
