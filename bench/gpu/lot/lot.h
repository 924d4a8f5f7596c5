// What is chosen without a measurement, on shapes drawn by lot: beside cuBLASLt with NCCL's and
// with our collective, in turn.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/gpu/harness/compile_ahead.h"
#include "bench/gpu/overlap/overlap_shapes.h"
#include "stretto/base/json.h"
#include "stretto/base/statistics.h"
#include "stretto/gpu/gpu_world.h"

namespace stretto::bench {

struct LotOptions {
  int count = 96;    // shapes
  int samples = 40;  // of fast operators; slow ones get fewer
  // Of the shapes, and of random inputs. A newly drawn one is written into the results.
  std::uint64_t seed = 0;
  std::string machine;  // file or name that is predicted on; "": the built-in one of so many GPUs
};

struct LotResult {
  // By the whole interval of the chosen one's time over the faster sequence's: below 1, above 1.
  enum class Verdict : std::uint8_t { kWon, kLost, kNeither, kSequence };

  OverlapShape shape;
  std::string error;      // empty where all was measured
  std::string chosen;     // a config, or the steps of the sequence
  bool sequence = false;  // chosen: cuBLASLt with our collective, which cannot win against itself
  int num_sets = 0;       // of buffers in turn, together past the L2 cache twice
  // Of the slowest rank, sample by sample: the chosen config, empty of a sequence; cuBLASLt with
  // either collective.
  std::vector<double> fused_ms, nccl_ms, own_ms;

  // The chosen one / the faster sequence.
  MedianInterval over_sequence() const;
  Verdict verdict() const;
  std::string to_string() const;  // a line
  Json to_json() const;           // every sample
};

// What is chosen of a shape where nothing is measured.
struct LotChoice {
  OverlapShape shape;
  std::string config;
  bool sequence = false;
  Program program;    // empty of a sequence
  std::string error;  // why there is none
};
std::vector<LotChoice> lot_choices(int world_size, const LotOptions& options);

// Kernels of the choices and of the sequences' collectives.
std::vector<LabelledProgram> lot_programs(const std::vector<LotChoice>& choices);

// Checks and times each. Calls `done` after each; what fails for a shape is in its result.
void measure_lot(GpuWorld& world, const std::vector<LotChoice>& choices, const LotOptions& options,
                 const std::function<void(const LotResult&)>& done);

}  // namespace stretto::bench
