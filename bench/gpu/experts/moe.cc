#include "bench/gpu/experts/moe.h"

#include <fmt/format.h>

#include <cmath>
#include <random>
#include <set>

#include "bench/gpu/experts/moe_comparison.h"
#include "stretto/ops/moe/even_routing.h"

namespace stretto::bench {
namespace {

std::vector<MoeShape> selected(int world_size, const MoeOptions& options) {
  std::vector<MoeShape> shapes = options.routings
                                     ? routed_shapes(world_size, options.seed, options.quick)
                                     : moe_shapes(world_size, options.quick);
  std::erase_if(shapes, [&](const MoeShape& s) {
    return s.to_string().find(options.only) == std::string::npos;
  });
  return shapes;
}

// Of a candidate for the first layer: tables, and what it makes.
struct FirstTables {
  std::vector<TileTables> host;
  DeviceTables device;  // empty where a program made them
  SymmetricGpuMemory c;
};

class FirstLayer : public Comparison {
 public:
  FirstLayer(GpuWorld& world, const cuda::NcclRanks& nccl, RandomFill& random,
             const MoeShape& shape, const MoeOptions& options)
      : Comparison(world, nccl, random, shape, options),
        candidates_(first_layer_candidates(shape, world.device(0).properties().num_sms)),
        x_(random.allocate(bf16_bytes(share_, shape.hidden))),
        all_(random.allocate(bf16_bytes(shape.m, shape.hidden))),
        a_(random.allocate(bf16_bytes(shape.m, shape.hidden))),
        fused_(candidates_.size()),
        alone_(candidates_.size()) {
    AgGroupedDesc d = first_layer(shape);
    for (SymmetricGpuMemory* b : {&gate_, &up_}) {
      *b = random.allocate(bf16_bytes(d.shape.num_experts * d.n, d.k));
    }
    copy_own_tokens(x_, a_);
    collective();
    world.synchronize();
  }

 protected:
  std::size_t num_candidates() const override { return candidates_.size(); }
  bool has_new_products(std::size_t i) const override { return candidates_[i].new_products; }

  Made fused_at(std::size_t i) override { return make(i, true); }
  Made product_at(std::size_t i) override { return make(i, false); }

  void prepare(std::size_t fused, std::size_t product) override {
    chosen_fused_ = &fused_[fused];
    chosen_alone_ = &alone_[product];
  }
  void before_products() override { collective(); }
  void collective() override {
    nccl_.all_gather(parts(x_, all_), at(share_ * shape_.hidden), kMoeDType);
  }

  // Rows of tokens and experts drawn by lot, which lie in other places of the two results.
  std::string difference() override {
    constexpr int kRows = 200;
    std::mt19937_64 random(options_.seed);
    std::size_t cols = at(first_layer(shape_).n);
    double allowed = 0x1p-6 * std::sqrt(static_cast<double>(shape_.hidden));
    std::vector<std::uint16_t> ours(cols), theirs(cols);
    for (int i = 0; i < kRows; ++i) {
      auto r = at(static_cast<std::int64_t>(random() % at(world_.size())));
      std::size_t pair = random() % chosen_.size();
      row(*chosen_fused_, r, pair, ours);
      row(*chosen_alone_, r, pair, theirs);
      for (std::size_t c = 0; c < cols; ++c) {
        float got = bf16_to_f32(ours[c]), want = bf16_to_f32(theirs[c]);
        if (std::abs(got - want) <= 0x1p-6 * std::abs(want) + allowed) continue;
        return fmt::format("rank {}: pair {} column {} is {}, in sequence {}", r, pair, c, got,
                           want);
      }
    }
    return "";
  }

 private:
  Made make(std::size_t i, bool fused) {
    FirstLayerCandidate candidate = candidates_[i];
    AgGroupedDesc d = first_layer(shape_);
    d.gathers = fused;
    if (!fused) candidate.order = {};
    FirstTables& t = (fused ? fused_ : alone_)[i];
    ExpertTiles tiles = tiles_of(d, candidate.config);
    t.host = tables(tiles, candidate.order);
    const MadeTables* made = fused ? &made_tables(tiles, candidate.order) : nullptr;
    for (int r = 0; !fused && r < world_.size(); ++r) in_global_order(t.host[at(r)], r);
    if (!fused) t.device = on_devices(t.host);
    const DeviceTables& device = fused ? made->tables : t.device;
    t.c = allocate_poisoned(world_,
                            bf16_bytes(static_cast<std::int64_t>(t.host[0].tokens.size()), d.n));
    Tensors tensors = {{"tiles_used", &device.used},
                       {"tile_experts", &device.experts},
                       {"tile_needs", &device.needs},
                       {"row_tokens", &device.tokens},
                       {"a", fused ? &a_ : &all_},
                       {"b_gate", &gate_},
                       {"b_up", &up_},
                       {"c", &t.c}};
    return {in_order(candidate), load(ag_grouped_gemm(d, candidate.config), tensors), made};
  }

  void row(const FirstTables& t, std::size_t rank, std::size_t pair,
           std::vector<std::uint16_t>& out) const {
    auto at_row = static_cast<std::size_t>(t.host[rank].slots[pair]) * out.size();
    const cuda::Stream& stream = world_.stream(static_cast<int>(rank));
    stream.download(out.data(), t.c.on[rank].address() + 2 * at_row, 2 * out.size());
    stream.synchronize();
  }

  std::vector<FirstLayerCandidate> candidates_;
  SymmetricGpuMemory x_, all_, a_, gate_, up_;
  std::vector<FirstTables> fused_, alone_;
  const FirstTables *chosen_fused_ = nullptr, *chosen_alone_ = nullptr;
};

class SecondLayer : public Comparison {
 public:
  SecondLayer(GpuWorld& world, const cuda::NcclRanks& nccl, RandomFill& random,
              const MoeShape& shape, const MoeOptions& options)
      : Comparison(world, nccl, random, shape, options),
        candidates_(second_layer_candidates(shape, world.device(0).properties().num_sms)),
        desc_(second_layer(shape)),
        b_(random.allocate(bf16_bytes(desc_.shape.num_experts * desc_.n, desc_.k))),
        partial_(allocate_poisoned(world, bf16_bytes(shape.m, shape.hidden))),
        ours_(allocate_poisoned(world, bf16_bytes(result_rows(), shape.hidden))),
        theirs_(allocate_poisoned(world, bf16_bytes(result_rows(), shape.hidden))),
        weights_(equal_weights()) {
    ExpertTiles tiles = tiles_of(desc_, candidates_[0].config);  // all have the same
    made_ = &made_tables(tiles, {});
    a_ = random.allocate(bf16_bytes(tiles.num_rows(), desc_.k));
    products_ = allocate_poisoned(world, bf16_bytes(tiles.num_rows(), desc_.n));
    world.synchronize();
  }

 protected:
  std::size_t num_candidates() const override { return candidates_.size(); }
  bool has_new_products(std::size_t i) const override { return candidates_[i].new_products; }

  Made fused_at(std::size_t i) override {
    const GroupedRsConfig& config = candidates_[i].config;
    Tensors tensors = {{"tiles_used", &made_->tables.used},
                       {"tile_experts", &made_->tables.experts},
                       {"slots", &made_->tables.slots},
                       {"weights", &weights_},
                       {"a", &a_},
                       {"b", &b_},
                       {"out", &ours_}};
    return {to_string(config), load(grouped_gemm_rs(desc_, config), tensors), made_};
  }
  Made product_at(std::size_t i) override {
    const GroupedRsConfig& config = candidates_[i].config;
    Tensors tensors = {{"tiles_used", &made_->tables.used},
                       {"tile_experts", &made_->tables.experts},
                       {"a", &a_},
                       {"b", &b_},
                       {"products", &products_}};
    return {to_string(config), load(tile_products(desc_, config), tensors)};
  }
  void prepare(std::size_t, std::size_t product) override {
    Tensors tensors = {{"slots", &made_->tables.slots},
                       {"weights", &weights_},
                       {"products", &products_},
                       {"partial", &partial_}};
    sum_ = load(weighted_sums(desc_, candidates_[product].config), tensors);
  }
  void after_products() override {
    sum_->launch();
    collective();
  }
  void collective() override {
    std::size_t count = at(result_rows() * shape_.hidden);
    if (desc_.all_reduce) return nccl_.all_reduce(parts(partial_, theirs_), count, kMoeDType);
    nccl_.reduce_scatter(parts(partial_, theirs_), count, kMoeDType);
  }
  std::string difference() override {
    double magnitude = std::sqrt(static_cast<double>(desc_.k));
    return compare_bf16(world_, ours_, theirs_, shape_.hidden,
                        {.relative = 0x1p-6, .absolute = 0x1p-6 * magnitude * world_.size()});
  }

 private:
  std::int64_t result_rows() const { return desc_.all_reduce ? shape_.m : share_; }

  std::vector<SecondLayerCandidate> candidates_;
  GroupedRsDesc desc_;
  SymmetricGpuMemory b_, partial_, ours_, theirs_, weights_, a_, products_;
  const MadeTables* made_ = nullptr;
  std::unique_ptr<Loaded> sum_;
};

}  // namespace

std::string MoeResult::to_string() const {
  std::string out = shape.to_string();
  if (samples) {
    auto rate = [&](const std::vector<double>& ms) {
      return shape.flops() / median(ms) * 1e-9;
    };
    out += fmt::format("\n  {}\n  TFLOP/s: ours {:.0f} gemm {:.0f} sequence {:.0f}",
                       samples->to_string(), rate(samples->ours), rate(samples->gemm),
                       rate(samples->sequence));
    out += fmt::format("\n  tables {:.4f} ms, with them {:.4f}", median(tables_ms),
                       median(with_tables_ms));
  }
  if (!chosen.empty()) out += "\n  chosen: " + chosen;
  for (const OverlapTime& t : configs) out += t.to_string();
  if (!error.empty()) out += "\n  FAILED: " + error;
  return out;
}

Json MoeResult::to_json() const {
  Json out = {{"layer", shape.layer},
              {"model", shape.model},
              {"ranks", shape.world_size},
              {"m", shape.m},
              {"flops", shape.flops()}};
  if (shape.all_reduce) out["all_reduce"] = true;
  if (shape.routing) {
    out["routing"] = shape.routing->to_string();
    out["kind"] = name(shape.routing->kind);
    out["routing_seed"] = shape.routing->seed;
  }
  for (const OverlapTime& t : configs) out["configs"].push_back(t.to_json());
  if (!error.empty()) out["error"] = error;
  if (!chosen.empty()) out["chosen"] = chosen;
  if (samples) {
    out["eager"] = samples->to_json();
    out["eager"]["tables_ms"] = tables_ms;
    out["eager"]["with_tables_ms"] = with_tables_ms;
  }
  return out;
}

std::vector<LabelledProgram> moe_programs(int world_size, int num_sms, const MoeOptions& options) {
  std::vector<LabelledProgram> out;
  predict::LaunchTables tables;  // of what is added
  auto add = [&](const MoeShape& s, const std::string& config, const Program& program) {
    out.push_back({.label = fmt::format("{} | {} {}", s.to_string(), program.name, config),
                   .program = program,
                   .tables = tables});
  };
  // Of several candidates the same.
  auto add_tables = [&](const ExpertTiles& tiles, const ExpertTileOrder& order) {
    ExpertTablesDesc d{.tiles = tiles, .order = order};
    LabelledProgram made{.label = to_string(d),
                         .program = expert_tables(d, default_config(d, Target::kCuda)),
                         .tables = even_routing(d)};
    tables = even_routing(tiles, order);
    auto same = [&](const LabelledProgram& p) { return p.label == made.label; };
    if (std::none_of(out.begin(), out.end(), same)) out.push_back(std::move(made));
  };
  std::set<std::string> shapes;  // of several routings the same
  for (MoeShape s : selected(world_size, options)) {
    s.routing.reset();
    if (!shapes.insert(s.to_string()).second) continue;
    if (s.layer == 0) {
      for (const WholeLayerCandidate& c : whole_layer_candidates(s, num_sms)) {
        AgGroupedDesc alone = first_layer(s);
        alone.gathers = false;
        add_tables(tiles_of(whole_layer(s), c.config), c.order);
        add(s, in_order(c), moe_layer(whole_layer(s), c.config));
        if (!c.new_products) continue;
        add(s, to_string(c.config.first), ag_grouped_gemm(alone, c.config.first));
        add(s, to_string(c.alone), tile_products(second_layer(s), c.alone));
      }
      add(s, "", weighted_sums(second_layer(s), second_layer_candidates(s, num_sms)[0].config));
      continue;
    }
    if (s.layer == 2) {
      bool fused = true;
      for (const auto& [c, new_products] : second_layer_candidates(s, num_sms)) {
        add_tables(tiles_of(second_layer(s), c), {});
        if (fused) add(s, to_string(c), grouped_gemm_rs(second_layer(s), c));
        if (new_products) add(s, to_string(c), tile_products(second_layer(s), c));
        fused = !options.routings;
      }
      add(s, "", weighted_sums(second_layer(s), second_layer_candidates(s, num_sms)[0].config));
      continue;
    }
    bool fused = true;
    for (const FirstLayerCandidate& c : first_layer_candidates(s, num_sms)) {
      AgGroupedDesc d = first_layer(s);
      if (fused) add_tables(tiles_of(d, c.config), c.order);
      if (fused) add(s, in_order(c), ag_grouped_gemm(d, c.config));
      fused = !options.routings;
      if (!c.new_products) continue;
      d.gathers = false;
      add(s, to_string(c.config), ag_grouped_gemm(d, c.config));
    }
  }
  return out;
}

void compare_moe(GpuWorld& world, const MoeOptions& options,
                 const std::function<void(const MoeResult&)>& done) {
  auto compare = [&](const cuda::NcclRanks& nccl, RandomFill& random, const MoeShape& shape) {
    if (shape.layer == 0) return compare_whole_layer(world, nccl, random, shape, options);
    if (shape.layer == 2) return SecondLayer(world, nccl, random, shape, options).run();
    return FirstLayer(world, nccl, random, shape, options).run();
  };
  for_each_shape<MoeResult>(world, selected(world.size(), options), options.seed, compare, done);
}

}  // namespace stretto::bench
