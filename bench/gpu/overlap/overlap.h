// Fused operators against the vendor's libraries on several GPUs: the best of a few configs of
// ours, cuBLASLt's unsplit product of each rank alone, the collective of NCCL alone, the two in
// sequence, and the product while engines move as many bytes, call by call in turn, slowest rank.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/gpu/harness/compile_ahead.h"
#include "bench/gpu/overlap/overlap_shapes.h"
#include "stretto/base/json.h"
#include "stretto/gpu/gpu_world.h"
#include "stretto/ops/measure/gpu_time.h"

namespace stretto::bench {

struct OverlapOptions {
  std::string only;                  // shapes whose text contains this
  std::vector<std::string> configs;  // instead of the list (overlap_config.h)
  bool quick = false;
  bool graphs = false;  // all in captured graphs too, not only what decodes
  int samples = 40;
  std::uint64_t seed = 0;
};

// Milliseconds of the slowest rank, sample by sample.
struct OverlapSamples {
  std::vector<double> ours, gemm, collective, sequence;
  std::vector<double> busy;  // the product beside equal traffic; may be empty

  MedianInterval speedup() const { return paired_ratio(sequence, ours); }
  // 1 - (ours - gemm) / (sequence - gemm), sample by sample: the part of the time that the sequence
  // spends beside the product and ours does not.
  MedianInterval hidden() const { return hidden(ours); }
  // The same of the product beside equal traffic: what contention leaves of an overlap.
  MedianInterval hidden_at_most() const { return hidden(busy); }
  std::string to_string() const;
  Json to_json() const;

 private:
  MedianInterval hidden(const std::vector<double>& together) const;
};

struct OverlapTime {
  std::string family, config;
  double ms = 0;      // median of a few calls; 0: not timed
  std::string error;  // why it is out: it does not compile, or its result is wrong

  std::string to_string() const;  // lines, each behind a line's end
  Json to_json() const;
};

struct OverlapResult {
  OverlapShape shape;
  std::string error;  // empty where all was measured
  std::vector<OverlapTime> configs;
  std::string chosen;
  std::optional<OverlapSamples> eager, graph;

  std::string to_string() const;  // lines of the table
  Json to_json() const;           // every sample
};

// The programs that compare_overlap would run.
std::vector<LabelledProgram> overlap_programs(int world_size, int num_sms,
                                              const OverlapOptions& options);

// Calls `done` after each shape. What fails for a shape is in its result.
void compare_overlap(GpuWorld& world, const OverlapOptions& options,
                     const std::function<void(const OverlapResult&)>& done);

}  // namespace stretto::bench
