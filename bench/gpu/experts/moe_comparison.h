// One comparison of moe.h: what the first layer, the second and both in one launch have in common.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bench/gpu/experts/loaded.h"
#include "bench/gpu/experts/moe.h"
#include "bench/gpu/harness/each_shape.h"
#include "bench/gpu/harness/traces.h"
#include "bench/gpu/overlap/overlap_buffers.h"
#include "stretto/base/errors.h"
#include "stretto/ops/measure/gpu_time.h"
#include "stretto/ops/measure/ranks_time.h"
#include "stretto/ops/moe/expert_tables.h"

namespace stretto::bench {

// Tables of every rank's tiles (expert_tiles.h), where programs read them.
struct DeviceTables {
  SymmetricGpuMemory used, experts, needs, tokens, slots;
};

// visit(memory, part): each of them and what part(tables) of a rank's it holds.
template <typename Visit>
void each_table(DeviceTables& to, const Visit& visit) {
  visit(to.used, [](const TileTables& t) { return std::span(&t.used, 1); });
  visit(to.experts, [](const TileTables& t) { return std::span(t.experts); });
  visit(to.needs, [](const TileTables& t) { return std::span(t.needs); });
  visit(to.tokens, [](const TileTables& t) { return std::span(t.tokens); });
  visit(to.slots, [](const TileTables& t) { return std::span(t.slots); });
}

// Tables and the program that makes them (expert_tables.h).
struct MadeTables {
  DeviceTables tables;
  std::unique_ptr<Loaded> program;
};

class Comparison {
 public:
  Comparison(GpuWorld& world, const cuda::NcclRanks& nccl, RandomFill& random,
             const MoeShape& shape, const MoeOptions& options)
      : world_(world),
        nccl_(nccl),
        random_(random),
        shape_(shape),
        options_(options),
        chosen_(chosen_experts(shape, options.seed)),
        share_(shape.m / shape.world_size),
        experts_(world.allocate(chosen_.size() * sizeof(std::int32_t))) {
    result_.shape = shape;
    for (int r = 0; r < world.size(); ++r) {
      world.stream(r).upload(experts_.on[at(r)].address(), chosen_.data(),
                             chosen_.size() * sizeof(std::int32_t));
    }
    world.synchronize();
  }
  virtual ~Comparison() = default;
  Comparison(const Comparison&) = delete;

  MoeResult run() {
    if (options_.profile) return run_for_profilers();
    std::vector<std::size_t> all(num_candidates());
    std::iota(all.begin(), all.end(), std::size_t{0});
    // The default alone where routings are by lot: nobody knows one before it comes.
    std::vector<std::size_t> to_fuse = options_.routings ? std::vector{std::size_t{0}} : all;
    Best fused = fastest("fused", to_fuse, [&](std::size_t i) { return fused_at(i); });
    std::erase_if(all, [&](std::size_t i) { return !has_new_products(i); });
    Best product = fastest("product", all, [&](std::size_t i) { return product_at(i); });
    if (!fused.program || !product.program) {
      result_.error = "no config of ours runs";
      return std::move(result_);
    }
    result_.chosen = fused.config;
    prepare(fused.index, product.index);
    auto sequence = [&] { launch_sequence(*product.program); };
    std::vector<RanksCall> calls = {[&](int) { fused.program->launch(); },
                                    [&](int) { product.program->launch(); },
                                    [&](int) { collective(); },
                                    [&](int) { sequence(); },
                                    [&](int) { fused.tables->program->launch(); },
                                    [&](int) {
                                      fused.tables->program->launch();
                                      fused.program->launch();
                                    }};
    auto ms = time_ranks(world_, calls, {.warmup_ms = 200, .samples = options_.samples});
    fused.program->wait();
    result_.samples =
        OverlapSamples{std::move(ms[0]), std::move(ms[1]), std::move(ms[2]), std::move(ms[3])};
    result_.tables_ms = std::move(ms[4]);
    result_.with_tables_ms = std::move(ms[5]);
    fused.program->launch();
    sequence();
    world_.synchronize();
    result_.error = difference();
    if (!options_.traces.empty()) trace(fused.index, product.index);
    return std::move(result_);
  }

 protected:
  struct Made {
    std::string config;
    std::unique_ptr<Loaded> program;
    const MadeTables* tables = nullptr;  // of what is fused
  };

  std::unique_ptr<Loaded> load(const Program& program, const Tensors& tensors) const {
    return std::make_unique<Loaded>(world_, program, tensors, records_);
  }

  virtual std::size_t num_candidates() const = 0;
  // Whether its products by themselves are not those of a candidate before.
  virtual bool has_new_products(std::size_t) const { return true; }
  virtual Made fused_at(std::size_t i) = 0;
  virtual Made product_at(std::size_t i) = 0;
  // Of the candidates that were chosen.
  virtual void prepare(std::size_t fused, std::size_t product) = 0;
  // Of the sequence.
  virtual void before_products() {}
  virtual void after_products() {}
  virtual void collective() = 0;         // all of it that NCCL does
  virtual std::string difference() = 0;  // "" where both give the same

  std::vector<cuda::NcclPart> parts(const SymmetricGpuMemory& from,
                                    const SymmetricGpuMemory& to) const {
    std::vector<cuda::NcclPart> out;
    for (int r = 0; r < world_.size(); ++r) {
      out.push_back({&world_.stream(r), from.on[at(r)].address(), to.on[at(r)].address()});
    }
    return out;
  }

  std::vector<TileTables> tables(const ExpertTiles& tiles, const ExpertTileOrder& order) const {
    std::vector<TileTables> out;
    for (int r = 0; r < world_.size(); ++r) {
      out.push_back(tile_tables(tiles, r, shape_.m, chosen_, order));
    }
    return out;
  }

  DeviceTables on_devices(const std::vector<TileTables>& of_rank) const {
    DeviceTables out;
    each_table(out, [&](SymmetricGpuMemory& to, auto&& part) {
      std::size_t bytes = part(of_rank[0]).size_bytes();
      to = world_.allocate(bytes);
      for (int r = 0; r < world_.size(); ++r) {
        world_.stream(r).upload(to.on[at(r)].address(), part(of_rank[at(r)]).data(), bytes);
      }
    });
    world_.synchronize();
    return out;
  }

  // By the program, once for all candidates that have the same. InternalError where they are not
  // what the host makes.
  const MadeTables& made_tables(const ExpertTiles& tiles, const ExpertTileOrder& order) {
    MadeTables& out = made_by_program_[{tiles.tile_rows, to_string(order)}];
    if (out.program) return out;
    std::vector<TileTables> want = tables(tiles, order);
    each_table(out.tables, [&](SymmetricGpuMemory& to, auto&& part) {
      to = allocate_poisoned(world_, part(want[0]).size_bytes());
    });
    ExpertTablesDesc d{.tiles = tiles, .order = order};
    Program program = expert_tables(d, default_config(d, Target::kCuda));
    auto loaded = std::make_unique<Loaded>(world_, program,
                                           Tensors{{"experts", &experts_},
                                                   {"tiles_used", &out.tables.used},
                                                   {"tile_experts", &out.tables.experts},
                                                   {"tile_needs", &out.tables.needs},
                                                   {"row_tokens", &out.tables.tokens},
                                                   {"slots", &out.tables.slots}});
    loaded->launch();
    loaded->wait();
    each_table(out.tables, [&](const SymmetricGpuMemory& got, auto&& part) {
      for (int r = 0; r < world_.size(); ++r) expect_on(r, got, part(want[at(r)]));
    });
    out.program = std::move(loaded);
    return out;
  }

  // 1 / top_k of all pairs of token and expert.
  SymmetricGpuMemory equal_weights() const {
    std::vector<float> weights(chosen_.size(), 1.0F / static_cast<float>(shape_.top_k));
    std::size_t bytes = weights.size() * sizeof(float);
    SymmetricGpuMemory memory = world_.allocate(bytes);
    for (int r = 0; r < world_.size(); ++r) {
      world_.stream(r).upload(memory.on[at(r)].address(), weights.data(), bytes);
    }
    world_.synchronize();
    return memory;
  }

  // The own tokens are the first of all that a fused layer reads.
  void copy_own_tokens(const SymmetricGpuMemory& x, const SymmetricGpuMemory& a) const {
    for (int r = 0; r < world_.size(); ++r) {
      world_.stream(r).copy(a.on[at(r)].address(), x.on[at(r)].address(),
                            bf16_bytes(share_, shape_.hidden));
    }
  }

  // Of the tokens of all ranks as NCCL gathers them.
  void in_global_order(TileTables& t, int rank) const {
    for (std::int32_t& token : t.tokens) {
      if (token < 0) continue;
      std::int64_t owner = (token / share_ + rank) % world_.size();
      token = static_cast<std::int32_t>(owner * share_ + token % share_);
    }
    for (std::int32_t& n : t.needs) n = n > 0 ? world_.size() : 0;
  }

  GpuWorld& world_;
  const cuda::NcclRanks& nccl_;
  RandomFill& random_;
  MoeShape shape_;
  const MoeOptions& options_;
  std::vector<std::int32_t> chosen_;
  std::int64_t share_;  // tokens of a rank
  MoeResult result_;

 private:
  struct Best {
    std::string config;
    std::size_t index = 0;
    std::unique_ptr<Loaded> program;
    const MadeTables* tables = nullptr;
  };

  void expect_on(int rank, const SymmetricGpuMemory& memory,
                 std::span<const std::int32_t> want) const {
    std::vector<std::int32_t> got(want.size());
    const cuda::Stream& stream = world_.stream(rank);
    stream.download(got.data(), memory.on[at(rank)].address(), want.size_bytes());
    stream.synchronize();
    auto [g, w] = std::mismatch(got.begin(), got.end(), want.begin());
    if (g == got.end()) return;
    throw InternalError(fmt::format("expert_tables: rank {}: entry {} of {} is {}, not {}", rank,
                                    g - got.begin(), got.size(), *g, *w));
  }

  void launch_sequence(const Loaded& product) {
    before_products();
    product.launch();
    after_products();
  }

  // The two once more, with the recorder, in turn with the sequence as they were timed.
  void trace(std::size_t fused_index, std::size_t product_index) {
    records_ = true;
    Made fused = fused_at(fused_index), product = product_at(product_index);
    prepare(fused_index, product_index);
    auto launch_fused = [&] { fused.program->launch(); };
    auto sequence = [&] { launch_sequence(*product.program); };
    write_traces(world_,
                 {traced("fused", fused.config, launch_fused, fused.program.get()),
                  traced("in sequence", product.config, sequence, product.program.get())},
                 options_.traces, shape_.to_string());
    records_ = false;
  }

  // One launch of the first config of each between marks.
  MoeResult run_for_profilers() {
    Made fused = fused_at(0), product = product_at(0);
    result_.chosen = fmt::format("{}; products: {}", fused.config, product.config);
    time_gpu(world_.device(0), world_.stream(0),
             {[&](int) { fused.program->launch(); }, [&](int) { product.program->launch(); }},
             {.profile = true});
    return std::move(result_);
  }

  template <typename Make>
  Best fastest(const char* family, const std::vector<std::size_t>& candidates, const Make& make) {
    Best best;
    for (std::size_t i : candidates) {
      OverlapTime time{.family = family, .config = "", .ms = 0, .error = ""};
      try {
        Made made = make(i);
        time.config = made.config;
        Contest found = contest(world_, *made.program, best.program.get());
        time.ms = found.ms;
        if (found.won) best = {made.config, i, std::move(made.program), made.tables};
      } catch (const Fault& e) {
        time.error = e.what();
        world_.synchronize();
        world_.clear_fault();
      } catch (const Error& e) {
        time.error = e.what();
      }
      result_.configs.push_back(time);
    }
    return best;
  }

  bool records_ = false;                                                        // what is loaded
  SymmetricGpuMemory experts_;                                                  // chosen_
  std::map<std::pair<std::int64_t, std::string>, MadeTables> made_by_program_;  // rows of a tile
};

// Both layers in one launch.
MoeResult compare_whole_layer(GpuWorld& world, const cuda::NcclRanks& nccl, RandomFill& random,
                              const MoeShape& shape, const MoeOptions& options);

}  // namespace stretto::bench
