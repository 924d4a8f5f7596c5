// How long it takes until an operator runs: compiled for the first time, found in the cache, and
// with a number of rows that it has not had before.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "stretto/base/json.h"
#include "stretto/gpu/gpu_world.h"

namespace stretto::bench {

struct StartupOptions {
  std::string only;  // operators whose text contains this
  int starts = 9;    // with a warm cache
  int num_m = 1000;  // different numbers of rows
  std::uint64_t seed = 0;
};

// Host time. A start is passes, proof, code and loading on every rank, up to an instance that can
// be launched.
struct StartupResult {
  std::string op;
  std::string error;                     // empty where all was measured
  double cold_s = 0;                     // a start with an empty cache
  double nvrtc_s = 0;                    // of which NVRTC
  std::vector<double> warm_ms;           // starts with what the cold one left, the first first
  std::vector<double> code_ms, load_ms;  // their parts: up to the kernel, and loading it
  std::vector<double> new_m_ms;          // a launch on all ranks with an m that is new
  int compiled = 0;                      // kernels compiled meanwhile

  std::string to_string() const;  // a line
  Json to_json() const;           // every sample
};

// Products, attention and the fused operators of all ranks, the default config of each. Calls
// `done` after each. Keeps its cache in a directory of its own, which it removes.
void measure_startup(GpuWorld& world, const StartupOptions& options,
                     const std::function<void(const StartupResult&)>& done);

}  // namespace stretto::bench
