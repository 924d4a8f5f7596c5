#include "stretto/ops/moe/combine.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "stretto/lang/program_builder.h"
#include "stretto/ops/gemm/linear.h"

namespace stretto {
namespace {

void check(const CombineDesc& d, const CombineConfig& c) {
  check_sizes("moe_combine", {{"m", d.shape.m},
                              {"hidden", d.hidden},
                              {"top_k", d.shape.top_k},
                              {"world_size", d.shape.world_size},
                              {"tile_rows", c.tile_rows},
                              {"num_workers", c.num_workers}});
  check_sizes("moe_combine", {{"num_experts", d.shape.num_experts}});
  check_split("moe_combine", split_of(d));
  check_dtype("moe_combine", "dtype", d.dtype);
}

}  // namespace

ExpertSplit split_of(const CombineDesc& d) {
  return {.num_experts = d.shape.num_experts,
          .world_size = d.shape.world_size,
          .groups = d.expert_groups};
}

NamedFields fields_of(CombineDesc& d) {
  return {{"m", d.shape.m},
          {"hidden", d.hidden},
          NamedField("top_k", d.shape.top_k).as("top {}"),
          NamedField("num_experts", d.shape.num_experts, 1).as("of {} experts"),
          NamedField("expert_groups", d.expert_groups, 1).as("in {} groups"),
          {"sequence_parallel", d.sequence_parallel},
          NamedField("dtype", d.dtype).as("{}"),
          NamedField("world_size", d.shape.world_size).as("P={}")};
}

Program moe_combine(const CombineDesc& d, const CombineConfig& cfg) {
  check(d, cfg);
  bool alone = d.shape.world_size == 1;
  ExpertSplit split = split_of(d);
  ProgramBuilder p("moe_combine", d.shape.world_size);
  Index m = p.extent("m", d.shape.m);
  Index rows = m * d.shape.top_k;
  Index own_rows = max(ceil_div(m, d.shape.world_size), 1);
  TensorRef y = p.input("y", d.dtype, {rows, d.hidden});
  TensorRef slots = p.table("slots", {m, d.shape.top_k}, {ContractKind::kRange, 0, rows});
  TensorRef offsets;
  if (d.expert_groups > 1) {
    offsets =
        p.table("offsets", {d.shape.num_experts + 1}, {ContractKind::kPartition, 0, rows + 1});
  }
  TensorRef weights = p.input("weights", DType::kF32, {m, d.shape.top_k});
  Index out_rows = d.sequence_parallel ? ceil_div(m, d.shape.world_size) : m;
  TensorRef residual = p.input("residual", d.dtype, {out_rows, d.hidden});
  TensorRef out = p.output("out", d.dtype, {out_rows, d.hidden});
  auto finish = [&](const Index& row, const Value& sum) {
    Value old = p.load(residual.tile({row, 0}, cfg.tile_rows, d.hidden));
    p.store(out.tile({row, 0}, cfg.tile_rows, d.hidden),
            cast(sum + cast(old, DType::kF32), d.dtype));
  };
  TensorRef parts;
  SignalRef combined, done;  // by rank: tiles of its parts that are there; of mine that it has read
  if (!alone) {
    parts = p.buffer("parts", d.dtype, {m, d.hidden}, {.space = Space::kSymmetric});
    combined = p.signal("combined");
    done = p.signal("done");
  }

  TileSpace tiles = p.grid(d.shape.m, 1, cfg.tile_rows, 1);
  p.role("combine", Resource::sms(cfg.num_workers), tiles, [&](const Tile& t) {
    Value exists = p.iota_rows(t.row, cfg.tile_rows) < p.splat(DType::kI32, m);
    Value begin, end;  // of the own experts' rows
    if (d.expert_groups > 1) {
      begin = p.splat(DType::kI32, p.read(offsets, {split.first(p.rank())}));
      end = p.splat(DType::kI32, p.read(offsets, {split.end(p.rank())}));
    }
    // Loads stand side by side: all are on their way before the first is used.
    std::vector<Value> picked, shares, results;
    for (std::int64_t j = 0; j < d.shape.top_k; ++j) {
      picked.push_back(p.load(slots.tile({t.row, j}, cfg.tile_rows, 1)));
      shares.push_back(p.load(weights.tile({t.row, j}, cfg.tile_rows, 1)));
    }
    for (Value& slot : picked) {
      Value used = d.expert_groups > 1 ? exists && slot >= begin && slot < end : exists;
      slot = where(used, slot, p.splat(DType::kI32, -1));
    }
    for (const Value& slot : picked) {
      results.push_back(p.load_rows(y.tile({0, 0}, cfg.tile_rows, d.hidden), slot));
    }
    Value sum = p.zeros(DType::kF32, cfg.tile_rows, d.hidden);
    for (std::size_t j = 0; j < results.size(); ++j) {
      sum = sum + cast(results[j], DType::kF32) * shares[j];
    }
    if (alone) return finish(t.row, sum);
    p.store(parts.tile({t.row, 0}, cfg.tile_rows, d.hidden), cast(sum, d.dtype));
    p.notify_all(combined);
  });
  auto finished = [&] {
    Program program = p.finish();
    for (Role& role : program.roles) role.agents[0].num_threads = cfg.threads;
    return program;
  };
  if (alone) return finished();

  TileSpace sums = p.grid(d.sequence_parallel ? ceil_div(d.shape.m, d.shape.world_size) : d.shape.m,
                          1, cfg.tile_rows, 1);
  p.role("sum", Resource::sms(cfg.num_workers), sums, [&](const Tile& t) {
    Index row = d.sequence_parallel ? p.rank() * own_rows + t.row : t.row;
    Index end = d.sequence_parallel ? min((p.rank() + 1) * own_rows, m) : m;
    Value sum = p.zeros(DType::kF32, cfg.tile_rows, d.hidden);
    p.loop(d.shape.world_size, [&](const Index& r) {
      p.wait(combined[r], tiles.count());
      sum = sum + cast(p.load(parts.on(r).tile({row, 0}, cfg.tile_rows, d.hidden).until_row(end)),
                       DType::kF32);
    });
    p.notify_all(done);
    finish(t.row, sum);
  });
  p.on_end(
      [&] { p.loop(d.shape.world_size, [&](const Index& r) { p.wait(done[r], sums.count()); }); });
  return finished();
}

NamedFields fields_of(CombineConfig& c) {
  return {{"tile_rows", c.tile_rows}, {"workers", c.num_workers}, {"threads", c.threads, 0}};
}

}  // namespace stretto
