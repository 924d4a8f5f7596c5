#include "stretto/ops/moe/ep_send.h"

#include <vector>

#include "stretto/lang/program_builder.h"
#include "stretto/ops/gemm/linear.h"

namespace stretto {
namespace {

void check(const EpDesc& d, const SendConfig& c) {
  check_sizes("ep_send", {{"m", d.m},
                          {"hidden", d.hidden},
                          {"num_experts", d.num_experts},
                          {"top_k", d.top_k},
                          {"world_size", d.world_size},
                          {"num_workers", c.num_workers}});
  check_dtype("ep_send", "dtype", d.dtype);
  check_split("ep_send", split_of(d));
}

}  // namespace

SendConfig default_send_config(const EpDesc& d, Target target) {
  if (target == Target::kCpu) return {};
  return {.num_workers = gpu_workers(d.rows_per_rank())};
}

Program ep_send(const EpDesc& d, const SendConfig& cfg) {
  check(d, cfg);
  const std::int64_t rows = d.rows_per_rank(), ranks = d.world_size;
  const ExpertSplit split = split_of(d);
  ProgramBuilder p("ep_send", d.world_size);
  Index m = p.extent("m", d.m), own_rows = ceil_div(m, ranks);
  TensorRef x = p.input("x", d.dtype, {own_rows, d.hidden});
  TensorRef experts =
      p.table("experts", {own_rows, d.top_k}, {ContractKind::kRange, 0, d.num_experts});
  TensorRef weights = p.input("weights", DType::kF32, {own_rows, d.top_k});
  TensorRef recv = p.state("recv", d.dtype, {ranks * rows, d.hidden}, Space::kSymmetric);
  TensorRef recv_experts =
      p.output("recv_experts", DType::kI32, {ranks * rows, d.top_k}, Space::kSymmetric);
  TensorRef recv_weights =
      p.output("recv_weights", DType::kF32, {ranks * rows, d.top_k}, Space::kSymmetric);
  TensorRef positions = p.output("positions", DType::kI32, {rows, ranks});
  SignalRef ready = p.signal("ready");  // a rank's launch has begun: its tensors may be written
  SignalRef sent = p.signal("sent");    // by source: a token is there, or goes elsewhere
  Index own_end = min(own_rows, m - p.rank() * own_rows);

  p.on_start([&] { p.notify_all(ready); });
  p.role("send", Resource::sms(cfg.num_workers), p.range(rows), [&](const Tile& t) {
    Index token = t.index;
    Index row = p.let("row", p.rank() * rows + token);
    Value data = p.load(x.tile({token, 0}, 1, d.hidden));  // [1, hidden]
    Value ids = p.load(experts.tile({token, 0}, 1, d.top_k));
    Value shares = p.load(weights.tile({token, 0}, 1, d.top_k));
    p.wait_all(ready);
    Value nowhere = p.full(DType::kI32, 1, 1, -1);
    p.when(
        token < own_end,
        [&] {
          std::vector<Index> chosen;
          for (std::int64_t j = 0; j < d.top_k; ++j) {
            chosen.push_back(p.read(experts, {token, j}));
          }
          p.loop(ranks, [&](const Index& i) {
            Index to = p.let("to", (p.rank() + 1 + i) % ranks);
            Index first = p.let("first", split.first(to)), end = p.let("end", split.end(to));
            Index any = 0;
            for (const Index& expert : chosen) any = any || (first <= expert && expert < end);
            Index goes = p.let("goes", any);
            p.when(goes, [&] { p.store(recv.on(to).tile({row, 0}, 1, d.hidden), data); });
            p.store(recv_experts.on(to).tile({row, 0}, 1, d.top_k), ids);
            p.store(recv_weights.on(to).tile({row, 0}, 1, d.top_k), shares);
            p.store(positions.tile({token, to}, 1, 1),
                    p.splat(DType::kI32, select(goes, token, -1)));
          });
        },
        [&] {
          p.loop(ranks, [&](const Index& to) {
            p.store(recv_experts.on(to).tile({row, 0}, 1, d.top_k), broadcast(nowhere, 1, d.top_k));
            p.store(recv_weights.on(to).tile({row, 0}, 1, d.top_k),
                    p.zeros(DType::kF32, 1, d.top_k));
            p.store(positions.tile({token, to}, 1, 1), nowhere);
          });
        });
    p.notify_all(sent);
  });
  p.on_end([&] { p.loop(ranks, [&](const Index& from) { p.wait(sent[from], rows); }); });
  return p.finish();
}

}  // namespace stretto
