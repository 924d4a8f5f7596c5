#include "stretto/ops/moe/ep_return.h"

#include <vector>

#include "stretto/lang/program_builder.h"
#include "stretto/ops/gemm/linear.h"

namespace stretto {
namespace {

void check(const EpDesc& d, const ReturnConfig& c) {
  check_sizes("ep_return", {{"m", d.m},
                            {"hidden", d.hidden},
                            {"num_experts", d.num_experts},
                            {"top_k", d.top_k},
                            {"world_size", d.world_size},
                            {"num_workers", c.num_workers}});
  check_dtype("ep_return", "dtype", d.dtype);
  check_split("ep_return", split_of(d));
}

}  // namespace

ReturnConfig default_return_config(const EpDesc& d, Target target) {
  if (target == Target::kCpu) return {};
  return {.num_workers = gpu_workers(d.received_rows()), .threads = row_threads(d.hidden)};
}

Program ep_return(const EpDesc& d, const ReturnConfig& cfg) {
  check(d, cfg);
  const std::int64_t rows = d.rows_per_rank(), ranks = d.world_size;
  const std::int64_t slots_of_all = d.received_rows() * d.top_k;
  ProgramBuilder p("ep_return", d.world_size);
  Index own_rows = ceil_div(p.extent("m", d.m), ranks);
  TensorRef y = p.input("y", d.dtype, {slots_of_all, d.hidden});
  TensorRef slots =
      p.table("slots", {ranks * rows, d.top_k}, {ContractKind::kRange, -1, slots_of_all});
  TensorRef weights = p.input("recv_weights", DType::kF32, {ranks * rows, d.top_k});
  TensorRef positions = p.table("positions", {rows, ranks}, {ContractKind::kRange, -1, rows});
  TensorRef residual = p.input("residual", d.dtype, {own_rows, d.hidden});
  TensorRef parts = p.state("parts", d.dtype, {ranks, rows, d.hidden}, Space::kSymmetric);
  TensorRef out = p.output("out", d.dtype, {own_rows, d.hidden});
  SignalRef ready = p.signal("ready");        // a rank's launch has begun: its parts may be written
  SignalRef returned = p.signal("returned");  // by rank: a row is there, or is none of that rank's

  p.on_start([&] { p.notify_all(ready); });
  // Weighing comes first, so that a worker that takes tiles in order never waits for itself.
  auto weigh = [&](const Index& tile) {
    Index of = p.let("of", (p.rank() + 1 + tile) % ranks);
    Index token = p.let("token", tile / ranks);
    Index row = p.let("row", of * rows + token);
    Index any = 0;
    std::vector<Index> picked;
    std::vector<Value> shares, results;  // all are on their way before the first is used
    for (std::int64_t j = 0; j < d.top_k; ++j) {
      picked.push_back(p.read(slots, {row, j}));
      shares.push_back(p.load(weights.tile({row, j}, 1, 1)));
    }
    for (const Index& slot : picked) {
      any = any || slot >= 0;
      results.push_back(p.load(y.tile({max(slot, 0), 0}, 1, d.hidden).until_row(slot + 1)));
    }
    Value sum = p.zeros(DType::kF32, 1, d.hidden);
    for (std::size_t j = 0; j < results.size(); ++j) {
      sum = sum + cast(results[j], DType::kF32) * shares[j];
    }
    p.wait(ready, of);
    p.when(any, [&] {
      p.store(parts.on(of).tile({p.rank(), token, 0}, 1, d.hidden), cast(sum, d.dtype));
    });
    p.notify(returned, of);
  };
  auto add_up = [&](const Index& token) {
    p.loop(ranks, [&](const Index& r) { p.wait(returned[r], rows); });
    Value sum = p.zeros(DType::kF32, 1, d.hidden);
    p.loop(ranks, [&](const Index& r) {
      Index came = p.let("came", p.read(positions, {token, r}) >= 0);
      Slice part = parts.tile({r, token, 0}, 1, d.hidden).until_row(token + came);
      sum = sum + cast(p.load(part), DType::kF32);
    });
    Value old = p.load(residual.tile({token, 0}, 1, d.hidden));
    p.store(out.tile({token, 0}, 1, d.hidden), cast(sum + cast(old, DType::kF32), d.dtype));
  };
  p.role("combine", Resource::sms(cfg.num_workers), p.range((ranks + 1) * rows),
         [&](const Tile& t) {
           p.when(
               t.index < ranks * rows, [&] { weigh(t.index); },
               [&] { add_up(p.let("own", t.index - ranks * rows)); });
         });
  Program program = p.finish();
  program.roles[0].agents[0].num_threads = cfg.threads;
  return program;
}

}  // namespace stretto
