// What a server's start proves and compiles, made ahead: the next start with the same options finds
// all of it in the cache. Reads no weights.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "stretto/engine/serving.h"

namespace stretto {

// A program that is ready, of so many.
struct WarmedProgram {
  std::size_t done = 0, total = 0;
  std::string label;  // "gemm, step of 64 rows"
  double seconds = 0;
};
using OnWarmed = std::function<void(const WarmedProgram&)>;  // of one thread at a time

// The steps that ServingEngine would make with these options, on all processors: the same plans, on
// CPU ranks proved, on GPUs proved for them and compiled, too, with the kernel that chooses tokens.
// Returns the number of programs. UserError as ServingEngine, Rejected and errors of the compiler
// as compiler.h and gpu_code.h.
std::size_t warm_model(const ModelFiles& files, const EngineOptions& options,
                       const ServingOptions& serving, const OnWarmed& told = {});

}  // namespace stretto
