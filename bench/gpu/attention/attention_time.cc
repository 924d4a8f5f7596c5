#include "bench/gpu/attention/attention_time.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "stretto/base/errors.h"
#include "stretto/compiler.h"
#include "stretto/ir/op_info.h"
#include "stretto/launch/executable.h"
#include "stretto/ops/measure/gpu_time.h"

namespace stretto::bench {
namespace {

constexpr int kCheckedRows = 24;
constexpr double kTolerance = 0x1p-7;  // of bf16 probabilities and results, |v| about 1

struct Operands {
  std::vector<float> q, k, v;
};

// One set of q, caches and output on the device.
struct Buffers {
  cuda::DeviceMemory q, k, v, out;
};

std::vector<std::byte> random_tensor(std::size_t count, DType dtype, std::uint64_t seed,
                                     std::vector<float>& values) {
  std::mt19937_64 bits(seed);
  std::normal_distribution<float> normal;
  std::vector<std::byte> bytes(count * size_bytes(dtype));
  values.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    std::byte* at = bytes.data() + i * size_bytes(dtype);
    store_element(dtype, at, static_cast<double>(normal(bits)));
    values[i] = static_cast<float>(load_element(dtype, at));
  }
  return bytes;
}

std::unique_ptr<Executable> loaded(GpuWorld& world, const Lowered& program) {
  const GpuTarget gpu = world.target();
  return load(prove(program, {.gpu = gpu}), world, generate(program, {.target = gpu}));
}

class AttentionRun {
 public:
  AttentionRun(GpuWorld& world, const AttentionShape& shape, const AttentionConfig& config)
      : world_(world),
        shape_(shape),
        program_(attention(shape.desc, config)),
        executable_(loaded(world, lower(program_))) {}

  void fill(std::uint64_t seed, int sets) {
    const AttentionDesc& d = shape_.desc;
    auto size = [&](std::int64_t rows, std::int64_t cols) {
      return static_cast<std::size_t>(rows * cols);
    };
    std::size_t q = size(d.batch * d.m, d.num_heads * d.head_dim),
                kv = size(d.batch * d.num_kv_heads, d.max_tokens * d.head_dim);
    auto host_q = random_tensor(q, d.dtype, seed, host_.q);
    auto host_k = random_tensor(kv, d.dtype, seed + 1, host_.k);
    auto host_v = random_tensor(kv, d.dtype, seed + 2, host_.v);
    // What lies past the tokens may be anything: NaN shows where it leaks.
    std::size_t step = size_bytes(d.dtype);
    for (std::int64_t h = 0; h < d.batch * d.num_kv_heads; ++h) {
      std::size_t from = size(h * d.max_tokens + shape_.past + shape_.m, d.head_dim) * step;
      std::size_t to = size((h + 1) * d.max_tokens, d.head_dim) * step;
      std::fill(host_k.begin() + static_cast<std::ptrdiff_t>(from),
                host_k.begin() + static_cast<std::ptrdiff_t>(to), std::byte{0xff});
      std::fill(host_v.begin() + static_cast<std::ptrdiff_t>(from),
                host_v.begin() + static_cast<std::ptrdiff_t>(to), std::byte{0xff});
    }
    const cuda::Device& device = world_.device(0);
    const cuda::Stream& stream = world_.stream(0);
    for (int s = 0; s < sets; ++s) {
      Buffers& b = buffers_.emplace_back(Buffers{{device, host_q.size()},
                                                 {device, host_k.size()},
                                                 {device, host_v.size()},
                                                 {device, host_q.size()}});
      stream.upload(b.q.address(), host_q.data(), host_q.size());
      stream.upload(b.k.address(), host_k.data(), host_k.size());
      stream.upload(b.v.address(), host_v.data(), host_v.size());
      stream.fill_bytes(b.out.address(), 0xff, b.out.bytes());
    }
    stream.synchronize();
  }

  void launch(int set) {
    const Buffers& b = buffers_[static_cast<std::size_t>(set)];
    Args args{.tensors = std::vector<TensorArg>(program_.tensors.size())};
    const std::int64_t extents[] = {shape_.m, shape_.past};
    auto bind = [&](const char* name, const cuda::DeviceMemory& memory) {
      args.tensors[static_cast<std::size_t>(program_.find_tensor(name))].on = {memory.address()};
    };
    bind("q", b.q);
    bind("k_cache", b.k);
    bind("v_cache", b.v);
    bind("out", b.out);
    executable_->prepare(args)->run(extents, 0, world_.stream(0));
  }

  // Rows drawn at random, the first and the last among them, against fp64.
  std::string check(std::uint64_t seed) {
    const AttentionDesc& d = shape_.desc;
    launch(0);
    executable_->wait();
    std::vector<std::byte> bytes(buffers_[0].out.bytes());
    world_.stream(0).download(bytes.data(), buffers_[0].out.address(), bytes.size());
    world_.stream(0).synchronize();
    std::mt19937_64 bits(seed);
    for (int i = 0; i < kCheckedRows; ++i) {
      std::int64_t row = i == 0   ? 0
                         : i == 1 ? shape_.m - 1
                                  : static_cast<std::int64_t>(bits() % std::uint64_t(shape_.m));
      auto head = static_cast<std::int64_t>(bits() % std::uint64_t(d.num_heads));
      auto sequence = static_cast<std::int64_t>(bits() % std::uint64_t(d.batch));
      std::vector<double> want = reference(sequence, row, head);
      for (std::int64_t c = 0; c < d.head_dim; ++c) {
        auto at = static_cast<std::size_t>(query_at(sequence, row, head) + c);
        double got = load_element(d.dtype, bytes.data() + at * size_bytes(d.dtype));
        double expected = want[static_cast<std::size_t>(c)];
        if (!(std::fabs(got - expected) <= kTolerance * (1 + std::fabs(expected)))) {
          return fmt::format("out[{}, {}, head {}, {}] is {}, expected {} (seed {})", sequence, row,
                             head, c, got, expected, seed);
        }
      }
    }
    return "";
  }

  std::vector<double> time(const AttentionOptions& options) {
    return time_gpu(world_.device(0), world_.stream(0), {[&](int set) { launch(set); }},
                    {.num_sets = static_cast<int>(buffers_.size()),
                     .samples = options.samples,
                     .profile = options.profile})[0];
  }

 private:
  // Where a head of a query begins.
  std::int64_t query_at(std::int64_t sequence, std::int64_t row, std::int64_t head) const {
    const AttentionDesc& d = shape_.desc;
    return ((sequence * d.m + row) * d.num_heads + head) * d.head_dim;
  }

  std::vector<double> reference(std::int64_t sequence, std::int64_t row, std::int64_t head) const {
    const AttentionDesc& d = shape_.desc;
    std::int64_t kv = sequence * d.num_kv_heads + head / (d.num_heads / d.num_kv_heads);
    std::int64_t last = d.causal ? shape_.past + row : shape_.past + shape_.m - 1;
    std::int64_t first = d.window > 0 ? std::max<std::int64_t>(0, last - d.window + 1) : 0;
    auto cached = [&](std::int64_t t) {
      return static_cast<std::size_t>((kv * d.max_tokens + t) * d.head_dim);
    };
    auto query = static_cast<std::size_t>(query_at(sequence, row, head));
    auto dim = static_cast<std::size_t>(d.head_dim);
    std::vector<double> scores, out(dim, 0.0);
    double peak = -INFINITY, total = 0;
    for (std::int64_t t = first; t <= last; ++t) {
      double score = 0;
      for (std::size_t i = 0; i < dim; ++i)
        score += host_.q[query + i] * double{host_.k[cached(t) + i]};
      scores.push_back(score / std::sqrt(static_cast<double>(d.head_dim)));
      peak = std::max(peak, scores.back());
    }
    for (std::int64_t t = first; t <= last; ++t) {
      double weight = std::exp(scores[static_cast<std::size_t>(t - first)] - peak);
      total += weight;
      for (std::size_t i = 0; i < dim; ++i) out[i] += weight * host_.v[cached(t) + i];
    }
    for (double& o : out) o /= total;
    return out;
  }

  GpuWorld& world_;
  AttentionShape shape_;
  Program program_;
  std::unique_ptr<Executable> executable_;
  Operands host_;
  std::vector<Buffers> buffers_;
};

AttentionDesc square(std::int64_t batch, std::int64_t tokens, int heads, std::int64_t head_dim,
                     bool causal) {
  return {.dtype = DType::kBF16,
          .weight_dtype = DType::kBF16,
          .batch = batch,
          .m = tokens,
          .max_tokens = tokens,
          .num_heads = heads,
          .num_kv_heads = heads,
          .head_dim = head_dim,
          .causal = causal};
}

}  // namespace

std::vector<AttentionShape> attention_suite() {
  std::vector<AttentionShape> shapes;
  for (std::int64_t head_dim : {128, 64}) {
    for (bool causal : {true, false}) {
      for (std::int64_t tokens : {4096, 8192, 16384}) {
        std::int64_t batch = 16384 / tokens;
        std::string label =
            fmt::format("d={} {} {}x{}", head_dim, causal ? "causal" : "full", batch, tokens);
        shapes.push_back({label, square(batch, tokens, 16, head_dim, causal), tokens, 0});
      }
    }
  }
  return shapes;
}

std::vector<AttentionShape> attention_checks() {
  std::vector<AttentionShape> shapes;
  for (std::int64_t head_dim : {64, 96, 128, 192, 256}) {
    for (bool causal : {true, false}) {
      AttentionDesc d = square(2, 700, 6, head_dim, causal);
      d.num_kv_heads = 3;
      d.m = 384;
      for (auto [m, past] : {std::pair{384, 0}, {384, 316}, {301, 77}, {1, 511}, {130, 0}}) {
        shapes.push_back(
            {fmt::format("d={} {} m={} past={}", head_dim, causal ? "causal" : "full", m, past), d,
             m, past});
      }
      if (!causal) continue;
      d.window = 200;
      shapes.push_back({fmt::format("d={} window m=301 past=277", head_dim), d, 301, 277});
    }
  }
  return shapes;
}

std::vector<AttentionConfig> attention_check_configs(const AttentionShape& shape) {
  const AttentionDesc& d = shape.desc;
  AttentionTile tile = gpu_attention_tile(d.dtype, d.head_dim);
  std::vector<AttentionConfig> configs = {{.tile_rows = tile.rows,
                                           .tile_kv = tile.kv,
                                           .num_workers = 5,
                                           .num_stages = tile.num_stages,
                                           .tickets = shape.m % 2 == 0}};
  if (!d.causal && d.head_dim == 128) {
    configs.push_back({.tile_rows = 2 * tile.rows,
                       .tile_kv = 176,
                       .num_workers = 3,
                       .num_stages = tile.num_stages,
                       .query_slots = 1,
                       .cluster_size = 2});
  }
  return configs;
}

std::vector<AttentionConfig> gpu_attention_configs(const AttentionDesc& d, int num_sms) {
  std::vector<AttentionConfig> configs;
  // Groups of 4 heads were as fast as groups of 16 or up to 5 % faster (H200, 2026-11-21).
  constexpr int kGroup = 4;
  auto add = [&](std::int64_t rows, std::int64_t kv, int stages, bool tickets, int query_slots = 2,
                 int cluster = 1, ProductOrder products = ProductOrder::kAhead) {
    configs.push_back({.tile_rows = rows * cluster,
                       .tile_kv = kv,
                       .num_workers = num_sms / cluster,
                       .num_stages = stages,
                       .query_slots = query_slots,
                       .tickets = tickets,
                       .head_group = d.num_heads % kGroup == 0 ? kGroup : 0,
                       .cluster_size = cluster,
                       .products = products});
  };
  bool small = d.head_dim <= 64;
  AttentionTile tile = gpu_attention_tile(d.dtype, d.head_dim);
  if (small) tile = {.rows = 192, .kv = 128, .num_stages = 3};
  add(tile.rows, tile.kv, tile.num_stages, true);
  if (!d.causal) {
    add(tile.rows, tile.kv, tile.num_stages, false);
    add(tile.rows, tile.kv, tile.num_stages, false, 2, 2);
  }
  if (small) {
    add(tile.rows, tile.kv, 4, d.causal);
    add(tile.rows, 160, 3, d.causal, 1);
    return configs;
  }
  // More keys a step, with room for one tile of queries.
  add(tile.rows, 176, 2, true, 1);
  if (!d.causal) {
    add(tile.rows, 176, 2, false, 1);
    add(tile.rows, 176, 2, false, 1, 2);
    add(tile.rows, 160, 2, false, 1, 2);
  }
  return configs;
}

double AttentionResult::flops() const {
  const AttentionDesc& d = shape.desc;
  double full = 4.0 * static_cast<double>(d.batch * d.num_heads) * static_cast<double>(shape.m) *
                static_cast<double>(shape.m + shape.past) * static_cast<double>(d.head_dim);
  return d.causal ? full / 2 : full;
}

std::string AttentionResult::to_string() const {
  std::string out = fmt::format(
      "{:24} rows {} kv {} group {} stages {} slots {}{}{}{}: ", shape.label, config.tile_rows,
      config.tile_kv, config.head_group, config.num_stages, config.query_slots,
      config.tickets ? " tickets" : "",
      config.cluster_size > 1 ? fmt::format(" cluster {}", config.cluster_size) : "",
      config.products == ProductOrder::kAhead ? "" : fmt::format(" {}", name(config.products)));
  if (!error.empty()) return out + "FAILED: " + error;
  if (ms.empty()) return out + "ok";
  const double middle = median(ms);
  return out + fmt::format("{:.4f} ms, {:.0f} TFLOP/s", middle, flops() / middle * 1e-9);
}

Json AttentionResult::to_json() const {
  Json out = {{"label", shape.label},
              {"tile_rows", config.tile_rows},
              {"tile_kv", config.tile_kv},
              {"head_group", config.head_group},
              {"num_stages", config.num_stages},
              {"query_slots", config.query_slots},
              {"cluster_size", config.cluster_size},
              {"products", name(config.products)},
              {"tickets", config.tickets}};
  if (!error.empty()) out["error"] = error;
  if (!ms.empty()) {
    out["tflops"] = flops() / median(ms) * 1e-9;
    out["ms"] = ms;
  }
  return out;
}

AttentionResult run_attention(GpuWorld& world, const AttentionShape& shape,
                              const AttentionConfig& config, const AttentionOptions& options) {
  AttentionResult result{.shape = shape, .config = config};
  try {
    AttentionRun run(world, shape, config);
    const AttentionDesc& d = shape.desc;
    auto bytes =
        static_cast<std::size_t>(2 * d.batch * d.head_dim * d.num_heads * (d.m + d.max_tokens)) *
        size_bytes(d.dtype);
    auto l2 = static_cast<std::size_t>(world.device(0).properties().l2_bytes);
    run.fill(options.seed, options.samples > 0 ? num_buffer_sets(bytes, l2) : 1);
    result.error = run.check(options.seed);
    if (result.error.empty() && options.samples > 0) result.ms = run.time(options);
  } catch (const Error& e) {
    result.error = e.what();
  }
  return result;
}

}  // namespace stretto::bench
