#include "bench/gpu/experts/grouped.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "bench/gpu/harness/compile_ahead.h"
#include "stretto/base/errors.h"
#include "stretto/ops/measure/gpu_program.h"
#include "stretto/ops/measure/gpu_time.h"
#include "stretto/ops/moe/grouped_gemm.h"

namespace stretto::bench {
namespace {

constexpr int kSets = 3;

struct Layer {
  std::string text;
  std::int64_t tokens = 0, top_k = 0;
  GroupedDesc desc;
};

std::vector<Layer> layers() {
  struct Model {
    const char* name;
    std::int64_t hidden, ffn, experts, top_k;
    std::int64_t parts;  // ranks among which every expert is split
    std::vector<std::int64_t> tokens;
  };
  const std::vector<std::int64_t> many = {2048, 4096, 8192, 16384}, decoding = {16, 64, 256};
  std::vector<Layer> out;
  for (const Model& model : {Model{"mixtral-8x7b", 4096, 14336, 8, 2, 4, many},
                             Model{"qwen2-moe", 2048, 1408, 60, 4, 4, many},
                             Model{"phi-3.5-moe", 4096, 6400, 16, 2, 4, many},
                             Model{"32-experts", 4096, 8192, 32, 2, 1, decoding},
                             Model{"128-experts", 4096, 1536, 128, 8, 1, decoding}}) {
    for (int layer : {1, 2}) {
      for (std::int64_t tokens : model.tokens) {
        for (DType dtype : {DType::kF8E4M3, DType::kBF16}) {
          GroupedDesc d{.m = tokens * model.top_k, .num_experts = model.experts};
          d.n = layer == 1 ? 2 * model.ffn / model.parts : model.hidden;
          d.k = layer == 1 ? model.hidden : model.ffn / model.parts;
          d.a_dtype = d.b_dtype = dtype, d.c_dtype = DType::kBF16;
          if (dtype == DType::kF8E4M3) d.scaling = Scaling::kBlock;
          out.push_back(
              {fmt::format("{} layer {} m={} {}", model.name, layer, tokens, short_name(dtype)),
               tokens, model.top_k, d});
        }
      }
    }
  }
  return out;
}

// The default, and each of its fields otherwise.
std::vector<GroupedConfig> configs_of(const GroupedDesc& d) {
  const GroupedConfig base = default_config(d, Target::kCuda);
  std::vector<GroupedConfig> out = {base};
  std::set<std::string> texts = {to_string(base)};
  auto add = [&](GroupedConfig c) {
    constexpr std::int64_t kSlotBytes = std::int64_t{192} * 1024;
    std::int64_t slots = kSlotBytes / ((c.loop.tile.bm + c.loop.tile.bn) * c.loop.tile.bk *
                                       static_cast<std::int64_t>(size_bytes(d.a_dtype)));
    c.loop.num_stages = static_cast<int>(std::min<std::int64_t>(c.loop.num_stages, slots));
    std::int64_t tiles = d.num_experts * c.row_parts * ceil_div(d.n, c.loop.tile.bn);
    c.loop.num_compute_sms = gpu_workers(tiles, GpuTarget{}.sms);
    if (texts.insert(to_string(c)).second) out.push_back(c);
  };
  auto with = [&](auto change) {
    GroupedConfig c = base;
    change(c);
    add(c);
  };
  for (std::int64_t parts : {1, 2, 4, 8, 16}) {
    with([=](GroupedConfig& c) { c.row_parts = parts; });
  }
  for (int stages : {3, 4, 5, 6}) with([=](GroupedConfig& c) { c.loop.num_stages = stages; });
  for (std::int64_t bn : {64, 128, 192, 256}) {
    // One warpgroup has no registers for products of more columns beside the sums.
    std::int64_t most = base.loop.tile.bm == 64 ? 64 : kScaleBlock;
    bool fits = d.scaling == Scaling::kNone || bn <= most;
    if (fits) with([=](GroupedConfig& c) { c.loop.tile.bn = bn; });
  }
  with([](GroupedConfig& c) { c.loop.tile.bm = 64; });
  // Three warpgroups have registers for the sums of 128 columns, and for no products beside them.
  if (d.scaling == Scaling::kNone) {
    with([](GroupedConfig& c) { c.loop.tile.bm = 192, c.loop.tile.bn = 128; });
  }
  with([](GroupedConfig& c) { c.tickets = !c.tickets; });
  // Tiles that stream weights past few rows.
  for (std::int64_t rows : {8, 16, 32, 64}) {
    GroupedDesc few = d;
    few.m = rows;
    GroupedConfig c = default_config(few, Target::kCuda);
    c.loop.num_compute_sms = gpu_workers(d.num_experts * ceil_div(d.n, c.loop.tile.bn), GpuTarget{}.sms);
    if (d.m < 100 * d.num_experts && texts.insert(to_string(c)).second) out.push_back(c);
  }
  return out;
}

// Where experts' rows begin: every token has top_k of them, any as likely as any other.
std::vector<std::int32_t> random_offsets(const Layer& layer, std::uint64_t seed) {
  auto experts = static_cast<std::size_t>(layer.desc.num_experts);
  std::vector<std::int32_t> offsets(experts + 1), chosen(experts);
  std::iota(chosen.begin(), chosen.end(), 1);
  std::mt19937_64 random(seed);
  for (std::int64_t token = 0; token < layer.tokens; ++token) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(layer.top_k); ++i) {
      std::swap(chosen[i], chosen[i + random() % (experts - i)]);
      ++offsets[static_cast<std::size_t>(chosen[i])];
    }
  }
  std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());
  return offsets;
}

double time_config(GpuWorld& world, const Layer& layer, const GroupedConfig& config,
                   const SymmetricGpuMemory& offsets, std::uint64_t seed) {
  RandomFill random(world, seed, layer.desc.a_dtype);
  GpuProgram ready(world, grouped_gemm(layer.desc, config), kSets, random);
  for (int set = 0; set < kSets; ++set) ready.bind("offsets", set, offsets);
  auto ms = time_gpu(world.device(0), world.stream(0), {ready.call()},
                     {.num_sets = kSets, .warmup_ms = 50, .samples = 15});
  ready.executable().wait();
  return median(ms.front());
}

int search_layer(GpuWorld& world, const Layer& layer, std::uint64_t seed) {
  const GroupedDesc& d = layer.desc;
  std::vector<std::int32_t> starts = random_offsets(layer, seed);
  SymmetricGpuMemory offsets = world.allocate(starts.size() * sizeof(starts[0]));
  world.stream(0).upload(offsets.on[0].address(), starts.data(), starts.size() * sizeof(starts[0]));
  world.synchronize();
  int failed = 0;
  fmt::print("{}\n", layer.text);
  for (const GroupedConfig& c : configs_of(d)) {
    try {
      double ms = time_config(world, layer, c, offsets, seed);
      double flops = 2.0 * static_cast<double>(d.m * d.n * d.k);
      fmt::print("  {:6.1f} TFLOP/s {:8.4f} ms  {}\n", flops / ms / 1e9, ms, to_string(c));
    } catch (const Error& e) {
      ++failed;
      fmt::print("  FAILED {}: {}\n", to_string(c), e.what());
    }
    std::fflush(stdout);
  }
  return failed;
}

}  // namespace

int search_grouped(const GroupedOptions& options) {
  std::vector<Layer> all = layers();
  std::erase_if(all, [&](const Layer& l) { return l.text.find(options.only) == l.text.npos; });
  std::vector<LabelledProgram> programs;
  for (const Layer& layer : all) {
    for (const GroupedConfig& c : configs_of(layer.desc)) {
      try {
        programs.push_back({layer.text + " " + to_string(c), grouped_gemm(layer.desc, c)});
      } catch (const UserError&) {  // its own turn says so
      }
    }
  }
  int spilled = 0;
  for (const CompiledKernel& kernel : compile_ahead(programs)) {
    if (kernel.is_clean()) continue;
    ++spilled;
    fmt::print("{}\n", kernel.to_string());
  }
  fmt::print("{} kernels, {} that are not as they were meant\n", programs.size(), spilled);
  if (options.compile) return 0;
  GpuWorld world({.size = 1});
  int failed = 0;
  for (const Layer& layer : all) failed += search_layer(world, layer, options.seed);
  return failed;
}

}  // namespace stretto::bench
