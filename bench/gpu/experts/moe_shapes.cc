#include "bench/gpu/experts/moe_shapes.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <set>
#include <utility>

#include "bench/gpu/operand_type.h"
#include "stretto/lang/program_builder.h"
#include "stretto/ops/choose/configs.h"

namespace stretto::bench {
namespace {

struct Model {
  const char* name;
  std::int64_t hidden, ffn, num_experts, top_k;
};
constexpr Model kModels[] = {{"mixtral-8x7b", 4096, 14336, 8, 2},
                             {"qwen2-moe", 2048, 1408, 60, 4},
                             {"phi-3.5-moe", 4096, 6400, 16, 2}};
constexpr Model kWholeModels[] = {{"32-experts", 4096, 8192, 32, 2},
                                  {"128-experts", 4096, 1536, 128, 8}};

// The default one first; one class, few experts in classes, all of them. Where an expert's rows
// fill no tile they would be the same.
std::vector<ExpertTileOrder> orders_of(const ExpertTiles& t, const LayerSizes& sizes) {
  constexpr std::int64_t kFewExperts = 8;
  std::vector<ExpertTileOrder> out = {default_order(t, Target::kCuda, sizes)};
  if (t.shape.world_size == 1 || t.shape.m * t.shape.top_k <= t.shape.num_experts * t.tile_rows)
    return out;
  const std::int64_t few = std::min(kFewExperts, ceil_div(t.shape.num_experts, std::int64_t{2}));
  for (const ExpertTileOrder& order :
       {ExpertTileOrder{}, ExpertTileOrder{t.shape.world_size, few}, {t.shape.world_size}}) {
    auto same = [&](const ExpertTileOrder& o) { return to_string(o) == to_string(order); };
    if (std::none_of(out.begin(), out.end(), same)) out.push_back(order);
  }
  return out;
}

// Every config in the default order, then in the other orders the first of each kind of sending and
// loading: by the number of queues it depends whether one rank's tokens come after another's, and
// sorted rows are there later.
template <typename Candidate, typename Config, typename FirstOf>
std::vector<Candidate> in_orders(const std::vector<Config>& configs, const MoeShape& s,
                                 const auto& desc, const FirstOf& first_of) {
  std::vector<Candidate> out, others;
  std::set<std::pair<int, bool>> kinds;
  for (const Config& c : configs) {
    std::vector<ExpertTileOrder> orders = orders_of(
        tiles_of(desc, c), {.ffn = s.ffn / s.world_size, .hidden = s.layer == 1 ? s.hidden : 0});
    out.push_back({.config = c, .order = orders[0]});
    const AgGroupedConfig& first = first_of(c);
    if (!kinds.insert({first.num_copy_queues, first.sort_rows > 0}).second) continue;
    for (std::size_t i = 1; i < orders.size(); ++i) {
      others.push_back({.config = c, .order = orders[i]});
    }
  }
  out.insert(out.end(), others.begin(), others.end());
  return out;
}

}  // namespace

double MoeShape::flops() const {
  double products = layer == 0 ? 3 : layer == 2 ? 1 : 2;
  return 2.0 * products * static_cast<double>(m * top_k * hidden) *
         static_cast<double>(ffn / world_size);
}

std::string MoeShape::to_string() const {
  return fmt::format("moe-{}{} {} P={} m={}", layer, all_reduce ? "-ar" : "", model, world_size, m) +
         (routing ? ", " + routing->to_string() : "");
}

MoeLayerDesc whole_layer(const MoeShape& s) {
  return {.shape = {.world_size = s.world_size,
                    .m = s.m,
                    .top_k = s.top_k,
                    .num_experts = s.num_experts},
          .hidden = s.hidden,
          .ffn = s.ffn / s.world_size,
          .dtype = kDType};
}

AgGroupedDesc first_layer(const MoeShape& s) { return first_layer(whole_layer(s)); }
GroupedRsDesc second_layer(const MoeShape& s) {
  GroupedRsDesc d = second_layer(whole_layer(s));
  d.all_reduce = s.all_reduce;
  return d;
}

std::vector<MoeShape> moe_shapes(int world_size, bool quick) {
  std::vector<MoeShape> shapes;
  for (const Model& model : kModels) {
    for (std::int64_t m : {4096, 2048, 8192, 16384}) {
      for (int layer : {1, 2}) {
        shapes.push_back({model.name, model.hidden, model.ffn, model.num_experts, model.top_k, m,
                          world_size, layer});
      }
      if (quick) break;
    }
    for (std::int64_t m : {2048, 8192}) {
      if (quick || world_size == 1) break;
      shapes.push_back({model.name, model.hidden, model.ffn, model.num_experts, model.top_k, m,
                        world_size, 2, true});
    }
  }
  for (const Model& model : kWholeModels) {
    for (std::int64_t m : {8192, 4096, 16384, 64, 16}) {
      shapes.push_back(
          {model.name, model.hidden, model.ffn, model.num_experts, model.top_k, m, world_size, 0});
      if (quick) break;
    }
  }
  return shapes;
}

std::vector<MoeShape> routed_shapes(int world_size, std::uint64_t seed, bool quick) {
  std::vector<MoeShape> listed = moe_shapes(world_size, quick), left, out;
  std::erase_if(listed, [](const MoeShape& s) { return s.layer != 1; });
  std::mt19937_64 random(seed);
  for (const Routing& routing : drawn_routings(seed, kNumRoutings)) {
    if (left.empty()) {
      left = listed;
      std::shuffle(left.begin(), left.end(), random);
    }
    for (int layer : {1, 2}) {
      out.push_back(left.back());
      out.back().layer = layer;
      out.back().routing = routing;
    }
    left.pop_back();
  }
  return out;
}

std::vector<std::int32_t> chosen_experts(const MoeShape& s, std::uint64_t seed) {
  if (!s.routing) return random_experts(s, seed);
  return experts_of(*s.routing, {.m = s.m,
                                 .world_size = s.world_size,
                                 .num_experts = s.num_experts,
                                 .top_k = s.top_k});
}

std::vector<std::int32_t> random_experts(const MoeShape& s, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::int32_t> order(static_cast<std::size_t>(s.num_experts)), chosen;
  std::iota(order.begin(), order.end(), 0);
  for (std::int64_t t = 0; t < s.m; ++t) {
    std::shuffle(order.begin(), order.end(), random);
    chosen.insert(chosen.end(), order.begin(), order.begin() + s.top_k);
  }
  return chosen;
}

std::vector<FirstLayerCandidate> first_layer_candidates(const MoeShape& s, int num_sms) {
  const AgGroupedDesc d = first_layer(s);
  auto out =
      in_orders<FirstLayerCandidate>(gpu_configs(d, {.sms = num_sms}), s, d, std::identity());
  std::set<std::string> products;
  for (FirstLayerCandidate& c : out) {
    AgGroupedConfig alone = c.config;  // sends nothing
    alone.num_copy_queues = 0, alone.comm_rows = 1;
    c.new_products = products.insert(to_string(alone)).second;
  }
  return out;
}

std::vector<SecondLayerCandidate> second_layer_candidates(const MoeShape& s, int num_sms) {
  std::vector<SecondLayerCandidate> out;
  for (const GroupedRsConfig& config : gpu_configs(second_layer(s), {.sms = num_sms})) {
    // What tile_products() reads.
    auto same = [&](const SecondLayerCandidate& c) {
      const MainLoop &a = c.config.loop, &b = config.loop;
      return a.tile == b.tile && a.raster == b.raster && a.num_stages == b.num_stages;
    };
    out.push_back({.config = config, .new_products = std::none_of(out.begin(), out.end(), same)});
  }
  return out;
}

std::vector<WholeLayerCandidate> whole_layer_candidates(const MoeShape& s, int num_sms) {
  const MoeLayerDesc d = whole_layer(s);
  auto out = in_orders<WholeLayerCandidate>(gpu_configs(d, {.sms = num_sms}), s, d,
                                            std::mem_fn(&MoeLayerConfig::first));
  std::set<std::string> products;
  for (WholeLayerCandidate& c : out) {
    c.alone = {.loop = {.tile = {.bm = c.config.second.loop.tile.bm, .bn = 256, .bk = 64},
                        .raster = 4,
                        .num_stages = 4}};
    c.new_products = products.insert(products_of(c)).second;
  }
  return out;
}

std::string products_of(const WholeLayerCandidate& c) {
  return to_string(c.config.first) + " | " + to_string(c.alone);
}

Program tile_products(const GroupedRsDesc& d, const GroupedRsConfig& cfg) {
  const auto& [bm, bn, bk] = cfg.loop.tile;
  ExpertTiles tiles = tiles_of(d, cfg);
  ProgramBuilder p("tile_products", d.shape.world_size);
  auto used = p.table("tiles_used", {1}, {ContractKind::kAscending, 0, tiles.num_tiles() + 1});
  auto experts = p.table("tile_experts", {tiles.num_tiles(), 1},
                         {ContractKind::kRange, 0, d.shape.num_experts});
  auto a = p.input("a", d.a_dtype, {tiles.num_rows(), d.k});
  auto b = p.input("b", d.b_dtype, {d.shape.num_experts, d.n, d.k});
  auto products = p.output("products", d.out_dtype, {tiles.num_rows(), d.n});
  p.role("gemm", Resource::sms(GpuTarget{}.sms).pipelined(cfg.loop.num_stages),
         p.grid(tiles.num_tiles(), d.n, 1, bn).raster(cfg.loop.raster), [&](const Tile& t) {
           Index count = p.read(used, {0}), expert = p.read(experts, {t.m, 0});
           Value sum = p.zeros(DType::kF32, bm, bn);
           p.when(t.m < count, [&] {
             p.loop(ceil_div(d.k, bk), [&](const Index& step) {
               Value x = p.load(a.tile({t.m * bm, step * bk}, bm, bk));
               sum = dot(sum, x, p.load(b.tile({expert, t.col, step * bk}, bn, bk)).T());
             });
           });
           p.store(products.tile({t.m * bm, t.col}, bm, bn), cast(sum, d.out_dtype));
         });
  return p.finish();
}

Program weighted_sums(const GroupedRsDesc& d, const GroupedRsConfig& cfg) {
  constexpr std::int64_t kRows = 16, kCols = 256;
  std::int64_t rows = tiles_of(d, cfg).num_rows();
  ProgramBuilder p("weighted_sums", d.shape.world_size);
  auto slots = p.table("slots", {d.shape.m * d.shape.top_k, 1}, {ContractKind::kRange, 0, rows});
  auto weights = p.input("weights", DType::kF32, {d.shape.m, d.shape.top_k});
  auto products = p.input("products", d.out_dtype, {rows, d.n});
  auto partial = p.output("partial", d.out_dtype, {d.shape.m, d.n});
  p.role("sum", Resource::sms(GpuTarget{}.sms), p.grid(d.shape.m, d.n, kRows, kCols),
         [&](const Tile& t) {
           Value sum = p.zeros(DType::kF32, kRows, kCols);
           std::vector<Value> parts, factors;
           auto number = [&](std::int64_t n) { return p.splat(DType::kI32, n); };
           Value token = p.iota_rows(t.row, kRows), exists = token < number(d.shape.m);
           for (std::int64_t j = 0; j < d.shape.top_k; ++j) {
             Value pair = where(exists, token * number(d.shape.top_k) + number(j), number(-1));
             Value slot = p.load_rows(slots.tile({0, 0}, kRows, 1), pair);
             parts.push_back(p.load_rows(products.tile({0, t.col}, kRows, kCols), slot));
             factors.push_back(p.load(weights.tile({t.row, j}, kRows, 1)));
           }
           for (std::size_t j = 0; j < parts.size(); ++j) {
             sum = sum + cast(parts[j], DType::kF32) * factors[j];
           }
           p.store(partial.tile({t.row, t.col}, kRows, kCols), cast(sum, d.out_dtype));
         });
  return p.finish();
}

}  // namespace stretto::bench
