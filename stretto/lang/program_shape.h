// What is asked of a program file from outside, where it leaves its sizes open: the file defines
//   stretto::Program stretto_program(const stretto::ProgramShape& shape);
// and `--m 8192 --n 22016 --k 4096 --size heads=32 --dtype bfloat16 --ranks 4` of the commands
// arrive here. Sizes other than m, n, k have names that the file gives them:
//   const std::int64_t heads = shape.size("heads", 8);
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "stretto/base/dtype.h"

namespace stretto {

struct ProgramShape {
  int world_size = 1;
  std::int64_t m = 0, n = 0, k = 0;  // global sizes; 0: not given, the file has a default
  std::map<std::string, std::int64_t> sizes = {};  // the others that were given
  DType dtype = DType::kF32;
  // SMs of each GPU that the program is for, which the workers of its roles share; 0: CPU ranks.
  int num_sms = 0;

  // What was given for a size, also for "m", "n" or "k"; the default where nothing was. One that is
  // given and that the file does not ask for is refused.
  std::int64_t size(const std::string& name, std::int64_t otherwise) const {
    asked.insert(name);
    std::int64_t given = 0;
    if (name == "m" || name == "n" || name == "k") {
      given = name == "m" ? m : name == "n" ? n : k;
    } else if (auto it = sizes.find(name); it != sizes.end()) {
      given = it->second;
    }
    return given != 0 ? given : otherwise;
  }

  mutable std::set<std::string> asked = {};  // names that size() was called with
};

}  // namespace stretto
