// Attention forward on one GPU: small ragged cases and large ones, checked on rows drawn at random
// against plain fp64, and the time of the large ones. The baselines (cuDNN and FlashAttention
// through PyTorch) are measured beside it by attention_torch.py.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stretto/base/json.h"
#include "stretto/gpu/gpu_world.h"
#include "stretto/ops/attention/attention.h"

namespace stretto::bench {

struct AttentionShape {
  std::string label;
  AttentionDesc desc;
  std::int64_t m = 0, past = 0;  // of the launch
};

// 16 heads, sequences of 4k (batch 4), 8k (2) and 16k (1).
std::vector<AttentionShape> attention_suite();
std::vector<AttentionShape> attention_checks();
// Few workers, so that each has several tiles.
std::vector<AttentionConfig> attention_check_configs(const AttentionShape& shape);
// What attention_suite() times.
std::vector<AttentionConfig> gpu_attention_configs(const AttentionDesc& desc, int num_sms);

struct AttentionResult {
  AttentionShape shape;
  AttentionConfig config;
  std::string error;
  std::vector<double> ms;

  double flops() const;
  std::string to_string() const;
  Json to_json() const;
};

struct AttentionOptions {
  int samples = 0;       // 0: checks only
  bool profile = false;  // GpuTimeOptions::profile
  std::uint64_t seed = 0;
};
AttentionResult run_attention(GpuWorld& world, const AttentionShape& shape,
                              const AttentionConfig& config, const AttentionOptions& options);

}  // namespace stretto::bench
