#include "bench/gpu/attention_ranks.h"

#include <fmt/format.h>

#include "stretto/base/errors.h"
#include "stretto/gpu/gpu_world.h"
#include "stretto/ops/attention/flash_decode.h"
#include "stretto/ops/attention/sequence_attention.h"
#include "stretto/ops/gpu_harness/gpu_program.h"
#include "stretto/ops/gpu_harness/gpu_time.h"
#include "stretto/ops/ulysses/ulysses.h"

namespace stretto::bench {
namespace {

struct Row {
  AttentionRanksResult result;
  std::function<Program(int world_size)> program;
};

// 32 heads of 128 with 8 of keys, as in Llama 3 8B.
enum class Form { kGathered, kRing, kTokenRing };

Program sequence_program(const SequenceAttentionDesc& d, Form form) {
  switch (form) {
    case Form::kGathered:
      return sequence_attention(d, default_config(d, Target::kCuda));
    case Form::kRing:
      return ring_attention(d, default_ring_config(d, Target::kCuda));
    case Form::kTokenRing:
      break;
  }
  return token_ring(d, default_token_ring_config(d, Target::kCuda));
}

Row sequence_row(std::int64_t m, Form form) {
  constexpr const char* kNames[] = {"gathered", "ring", "token ring"};
  Row row{.program = [=](int world_size) {
    SequenceAttentionDesc d{.dtype = DType::kBF16,
                            .m = m,
                            .num_heads = 32,
                            .num_kv_heads = 8,
                            .head_dim = 128,
                            .world_size = world_size};
    return sequence_program(d, form);
  }};
  row.result.label = fmt::format("{} m={}", kNames[static_cast<int>(form)], m);
  row.result.flops = 2.0 * 32 * 128 * static_cast<double>(m) * static_cast<double>(m);
  return row;
}

// The projections of the same model around attention with spread heads.
Row projection_row(std::int64_t m, bool queries) {
  std::int64_t hidden = 4096, n = queries ? hidden * 3 / 2 : hidden;
  Row row{.program = [=](int world_size) {
    UlyssesDesc d{.world_size = world_size,
                  .m = m,
                  .n = n,
                  .k = hidden,
                  .dtype = DType::kBF16,
                  .weight_dtype = DType::kBF16};
    return queries ? gemm_a2a(d, default_gemm_a2a_config(d, Target::kCuda))
                   : a2a_gemm(d, default_a2a_gemm_config(d, Target::kCuda));
  }};
  row.result.label = fmt::format("{} m={}", queries ? "gemm_a2a" : "a2a_gemm", m);
  row.result.flops = 2.0 * static_cast<double>(m * n) * static_cast<double>(hidden);
  return row;
}

// One query token over a cache of n.
Row decode_row(std::int64_t n) {
  Row row{.program = [=](int world_size) {
    FlashDecodeDesc d{.dtype = DType::kBF16,
                      .max_tokens = n,
                      .num_heads = 32,
                      .num_kv_heads = 8,
                      .head_dim = 128,
                      .world_size = world_size};
    return flash_decode(d, default_config(d, Target::kCuda));
  }};
  row.result.label = fmt::format("decode tokens={}", n);
  row.result.bytes = 2.0 * 2 * 8 * 128 * static_cast<double>(n);
  return row;
}

std::vector<Row> rows() {
  std::vector<Row> all;
  for (std::int64_t n : {65536, 262144, 1048576}) all.push_back(decode_row(n));
  for (Form form : {Form::kGathered, Form::kRing, Form::kTokenRing}) {
    for (std::int64_t m : {8192, 16384, 32768, 65536}) all.push_back(sequence_row(m, form));
  }
  for (bool queries : {true, false}) {
    for (std::int64_t m : {8192, 32768}) all.push_back(projection_row(m, queries));
  }
  return all;
}

double median(const std::vector<double>& ms) { return median_interval(ms).median; }

std::vector<double> measured(GpuWorld& world, Row& row, RandomFill& random,
                             const AttentionRanksOptions& options) {
  if (!row.result.error.empty()) return {};
  try {
    return time_program(world, row.program(world.size()), random, {.samples = options.samples});
  } catch (const Error& e) {
    row.result.error = fmt::format("on {} GPUs: {}", world.size(), e.what());
  }
  return {};
}

}  // namespace

double AttentionRanksResult::efficiency() const { return median(one) / (world_size * median(all)); }

std::string AttentionRanksResult::to_string() const {
  if (!error.empty()) return fmt::format("{:24} FAILED: {}", label, error);
  auto rate = [&](const std::vector<double>& ms) {
    return flops > 0 ? fmt::format("{:5.0f} TFLOP/s", flops / median(ms) * 1e-9)
                     : fmt::format("{:5.0f} GB/s", bytes / median(ms) * 1e-6);
  };
  return fmt::format("{:24} one {:9.4f} ms {} | {} GPUs {:9.4f} ms {} | {:.3f} of 1/{}", label,
                     median(one), rate(one), world_size, median(all), rate(all), efficiency(),
                     world_size);
}

Json AttentionRanksResult::to_json() const {
  Json out = {{"label", label}, {"ranks", world_size}};
  if (!error.empty()) {
    out["error"] = error;
    return out;
  }
  out.update({{"efficiency", efficiency()}, {"one_ms", one}, {"all_ms", all}});
  return out;
}

void measure_attention_ranks(const AttentionRanksOptions& options,
                             const std::function<void(const AttentionRanksResult&)>& done) {
  std::vector<Row> all = rows();
  std::erase_if(all, [&](const Row& row) {
    return row.result.label.find(options.only) == std::string::npos;
  });
  {
    GpuWorld one({.size = 1});
    RandomFill random(one, options.seed);
    for (Row& row : all) row.result.one = measured(one, row, random, options);
  }
  GpuWorld world({.size = options.world_size});
  RandomFill random(world, options.seed);
  for (Row& row : all) {
    row.result.world_size = options.world_size;
    row.result.all = measured(world, row, random, options);
    done(row.result);
  }
}

}  // namespace stretto::bench
