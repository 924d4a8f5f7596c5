#include "stretto/ops/choose/candidates.h"

#include <fmt/format.h>

#include <algorithm>

#include "stretto/base/errors.h"
#include "stretto/ops/ag_gemm/ag_columns_shapes.h"
#include "stretto/ops/catalog/catalog.h"
#include "stretto/ops/choose/configs.h"
#include "stretto/ops/gemm/gemm_shapes.h"
#include "stretto/ops/gemm_ag/gemm_ag_shapes.h"
#include "stretto/ops/moe/combine.h"
#include "stretto/ops/moe/ep_place.h"
#include "stretto/ops/moe/ep_return.h"
#include "stretto/ops/moe/ep_send.h"
#include "stretto/ops/moe/grouped_gemm.h"
#include "stretto/ops/moe/moe_shapes.h"
#include "stretto/ops/ulysses/ulysses_shapes.h"

namespace stretto {
namespace {

// Where a product and its collective have nothing to hide behind each other, and prediction does
// not tell. The limits below are where fused programs took longer than the sequence
// (docs/performance/sweep.md, 'Why the defaults are what they are').
bool runs_in_sequence(const AgGemmDesc& d) {
  return d.m > (d.world_size == 2 ? 8 : 16) && d.m <= 256;
}

bool runs_in_sequence(const GemmRsDesc& d) {
  if (d.world_size > 2) return d.m <= 1024;
  return d.m > (d.n < 8192 ? 16 : 0) && d.m <= 256;
}

bool runs_in_sequence(const GemmArDesc& d) {
  if (d.world_size > 2) return d.m > (d.n < 8192 ? 16 : 64) && d.m <= 1024;
  return (d.m > 128 && d.m <= 256) || (d.n >= 8192 && d.m > 8 && d.m <= 32);
}

std::int64_t part(std::int64_t size, const OpShape& s) {
  return ceil_div(size, std::int64_t{s.world_size});
}

OpCandidates of_gemm(const OpShape& s, Scaling scaling, const GpuTarget& gpu) {
  DType factors = scaling == Scaling::kNone ? s.dtype : DType::kF8E4M3;
  GemmDesc desc{.world_size = s.world_size,
                .m = row_bucket(s.m),
                .n = s.n,
                .k = s.k,
                .a_dtype = factors,
                .b_dtype = factors,
                .c_dtype = s.dtype,
                .scaling = scaling};
  OpCandidates out;
  add_configs(out, desc, gpu_configs(desc, gpu), gemm);
  return out;
}

// Of a step: all ranks' rows, n columns; k is 0 for a collective.
template <typename Desc>
OpShape step_shape(const Desc& d, std::int64_t n, std::int64_t k, const GpuTarget& gpu) {
  return {.world_size = rows_of(d).world_size,
          .m = rows_of(d).m,
          .n = n,
          .k = k,
          .dtype = d.a_dtype,
          .target = gpu};
}

template <typename Kind>
std::vector<Kind> in_front(Kind first, std::vector<Kind> kinds) {
  std::stable_partition(kinds.begin(), kinds.end(), [&](Kind kind) { return kind == first; });
  return kinds;
}

// The configs of these kinds one after the other, and the sequence.
template <typename Desc, typename Config, typename Kind>
OpCandidates of_kinds(const Desc& desc, const OpShape& s,
                      Program (*program)(const Desc&, const Config&),
                      const std::vector<Kind>& kinds, const GpuTarget& gpu) {
  OpCandidates out;
  for (Kind kind : kinds) add_configs(out, desc, gpu_configs(desc, kind, gpu), program);
  add_sequence(out, desc, gpu);
  // As they were asked for: descs have rows in buckets.
  for (OpCandidates::Step& step : out.sequence) step.shape.m = s.m;
  return out;
}

OpCandidates of_ag_gemm(const OpShape& s, const std::vector<Gather>& gathers,
                        const GpuTarget& gpu) {
  AgGemmDesc desc{.world_size = s.world_size,
                  .m = row_bucket(s.m),
                  .n = part(s.n, s),
                  .k = s.k,
                  .a_dtype = s.dtype,
                  .b_dtype = s.dtype,
                  .c_dtype = s.dtype};
  Gather first = default_config(desc, gpu).gather;
  return of_kinds(desc, s, ag_gemm, in_front(first, gathers), gpu);
}

// Without a sequence, of which no step sorts gathered columns.
OpCandidates of_ag_columns(const OpShape& s, const GpuTarget& gpu) {
  AgColumnsDesc desc = ag_columns_desc(s);
  OpCandidates out;
  for (Gather gather : in_front(default_config(desc, gpu).gather, {Gather::kSend, Gather::kPush})) {
    add_configs(out, desc, gpu_configs(desc, gather, gpu), ag_columns_gemm);
  }
  return out;
}

// Without one, too.
OpCandidates of_gemm_ag(const OpShape& s, Scaling scaling, const GpuTarget& gpu) {
  GemmAgDesc desc = gemm_ag_desc(s, scaling);
  OpCandidates out;
  add_configs(out, desc, gpu_configs(desc, gpu), gemm_ag);
  return out;
}

OpCandidates of_gemm_rs(const OpShape& s, const std::vector<Scatter>& scatters,
                        const GpuTarget& gpu) {
  GemmRsDesc desc{.world_size = s.world_size,
                  .m = row_bucket(s.m),
                  .n = s.n,
                  .k = part(s.k, s),
                  .a_dtype = s.dtype,
                  .b_dtype = s.dtype,
                  .out_dtype = s.dtype};
  Scatter first = default_config(desc, gpu).scatter;
  return of_kinds(desc, s, gemm_rs, in_front(first, scatters), gpu);
}

OpCandidates of_gemm_ar(const OpShape& s, const std::vector<ReduceShots>& shots,
                        const GpuTarget& gpu) {
  GemmArDesc desc{.world_size = s.world_size,
                  .m = row_bucket(s.m),
                  .n = s.n,
                  .k = part(s.k, s),
                  .a_dtype = s.dtype,
                  .b_dtype = s.dtype,
                  .out_dtype = s.dtype};
  ReduceShots first = default_config(desc, gpu).shots;
  return of_kinds(desc, s, gemm_ar, in_front(first, shots), gpu);
}

OpCandidates of_collective(const OpShape& s, Collective collective, AllReduceKind kind,
                           const GpuTarget& gpu) {
  CollectiveDesc desc{.dtype = s.dtype, .m = s.m, .n = s.n, .world_size = s.world_size};
  OpCandidates out;
  auto make = collective == Collective::kAllGather       ? all_gather
              : collective == Collective::kReduceScatter ? reduce_scatter
                                                         : all_reduce;
  add_configs(out, desc, gpu_configs(desc, collective, kind, gpu), make);
  return out;
}

OpCandidates of_gemm_a2a(const OpShape& s, const GpuTarget& gpu) {
  UlyssesDesc desc = gemm_a2a_desc(s);
  OpCandidates out;
  add_configs(out, desc, gpu_gemm_a2a_configs(desc, gpu), gemm_a2a);
  return out;
}

OpCandidates of_a2a_gemm(const OpShape& s, const GpuTarget& gpu) {
  UlyssesDesc desc = a2a_gemm_desc(s);
  OpCandidates out;
  add_configs(out, desc, gpu_a2a_gemm_configs(desc, gpu), a2a_gemm);
  return out;
}

template <typename Desc, typename Config>
OpCandidates of_experts(const Desc& desc, Program (*program)(const Desc&, const Config&),
                        const GpuTarget& gpu) {
  OpCandidates out;
  add_configs(out, desc, gpu_configs(desc, gpu), program);
  return out;
}

template <typename Desc>
OpCandidates with_sequence(OpCandidates offered, const Desc& desc, const GpuTarget& gpu) {
  add_sequence(offered, desc, gpu);
  return offered;
}

// The products of one layer, rows of an expert after those of the one before.
template <typename Desc>
GroupedDesc products_of(const Desc& d, DType c_dtype) {
  return {.world_size = d.shape.world_size,
          .m = d.shape.m,
          .rows_per_token = d.shape.top_k,
          .num_experts = d.shape.num_experts,
          .n = d.n,
          .k = d.k,
          .a_dtype = d.a_dtype,
          .b_dtype = d.b_dtype,
          .c_dtype = c_dtype};
}

// Of a desc whose program has its default config.
template <typename Desc, typename Config>
OpCandidates::Step default_step(const char* op, const OpShape& shape, const Desc& desc,
                                Program (*make)(const Desc&, const Config&)) {
  return {op, shape, [=] { return make(desc, default_config(desc, shape.target)); },
          even_routing(desc)};
}

// `s` has all sizes, `asked` those of the caller.
OpCandidates made(const OperatorInfo& info, const OpShape& s, const OpShape& asked,
                  const GpuTarget& gpu) {
  const std::string op = info.name;
  if (op == "gemm") return of_gemm(s, Scaling::kNone, gpu);
  if (op == "gemm_fp8") return of_gemm(s, Scaling::kRowWise, gpu);
  if (op == "gemm_fp8_block") return of_gemm(s, Scaling::kBlock, gpu);
  // Engines that fetch are no faster than those that send, and have been seen not to get on in a
  // graph of six launches (docs/decisions/0008-own-signals-come-from-peers.md).
  if (op == "ag_gemm") return of_ag_gemm(s, {Gather::kSend, Gather::kPush}, gpu);
  if (op == "ag_gemm_push") return of_ag_gemm(s, {Gather::kPush}, gpu);
  if (op == "ag_columns_gemm") return of_ag_columns(s, gpu);
  if (op == "gemm_ag") return of_gemm_ag(s, Scaling::kNone, gpu);
  if (op == "gemm_ag_fp8") return of_gemm_ag(s, Scaling::kRowWise, gpu);
  if (op == "gemm_rs") {
    return of_gemm_rs(s, {Scatter::kEpilogue, Scatter::kCopyEngine}, gpu);
  }
  if (op == "gemm_rs_copy") return of_gemm_rs(s, {Scatter::kCopyEngine}, gpu);
  if (op == "gemm_ar") {
    return of_gemm_ar(s, {ReduceShots::kOne, ReduceShots::kShared, ReduceShots::kTwo}, gpu);
  }
  if (op == "gemm_ar_shared") return of_gemm_ar(s, {ReduceShots::kShared}, gpu);
  if (op == "gemm_ar_two_shot") return of_gemm_ar(s, {ReduceShots::kTwo}, gpu);
  if (op == "gemm_a2a") return of_gemm_a2a(s, gpu);
  if (op == "a2a_gemm") return of_a2a_gemm(s, gpu);
  if (op == "ag_grouped_gemm") {
    AgGroupedDesc desc = ag_grouped_gemm_desc(s);
    return with_sequence(of_experts(desc, ag_grouped_gemm, gpu), desc, gpu);
  }
  if (op == "grouped_gemm_rs" || op == "grouped_gemm_ar") {
    GroupedRsDesc desc = grouped_gemm_rs_desc(s, op == "grouped_gemm_ar");
    return with_sequence(of_experts(desc, grouped_gemm_rs, gpu), desc, gpu);
  }
  if (op == "moe_layer") {
    MoeLayerDesc desc = moe_layer_desc(s);
    return with_sequence(of_experts(desc, moe_layer, gpu), desc, gpu);
  }
  if (op == "ep_moe_layer") {
    EpMoeLayerDesc desc = ep_moe_layer_desc(s);
    return with_sequence(of_experts(desc, ep_moe_layer, gpu), desc, gpu);
  }
  if (op == "all_gather") return of_collective(s, Collective::kAllGather, {}, gpu);
  if (op == "reduce_scatter") return of_collective(s, Collective::kReduceScatter, {}, gpu);
  for (AllReduceKind kind :
       {AllReduceKind::kOneShot, AllReduceKind::kTwoShot, AllReduceKind::kPacket}) {
    if (op == all_reduce_info(kind).name)
      return of_collective(s, Collective::kAllReduce, kind, gpu);
  }
  OpCandidates out{.desc = fmt::format("{} P={} m={} n={} k={} {}", op, asked.world_size, asked.m,
                                       asked.n, asked.k, short_name(asked.dtype))};
  out.fused.push_back({"default", [&info, asked] { return info.program(asked); }});
  if (info.tables) out.fused.front().tables = info.tables(asked);
  return out;
}

}  // namespace

void add_sequence(OpCandidates& out, const AgGemmDesc& d, const GpuTarget& gpu) {
  out.sequence = {{"all_gather", step_shape(d, d.k, 0, gpu)},
                  {"gemm", step_shape(d, d.n, d.k, gpu)}};
  out.prefers_sequence = runs_in_sequence(d);
}

CollectiveDesc scattered_sums(const GemmRsDesc& d) {
  return {.dtype = d.out_dtype,
          .m = d.m,
          .n = d.n,
          .world_size = d.world_size,
          .reduction = d.average ? Reduction::kAverage : Reduction::kSum};
}

void add_sequence(OpCandidates& out, const GemmRsDesc& d, const GpuTarget& gpu) {
  out.sequence = {{"gemm", step_shape(d, d.n, d.k, gpu)},
                  {"reduce_scatter", step_shape(d, d.n, 0, gpu)}};
  if (d.average) {
    out.sequence.back().program = [sums = scattered_sums(d), gpu] {
      return reduce_scatter(sums, default_config(sums, gpu));
    };
  }
  out.prefers_sequence = runs_in_sequence(d);
}

void add_sequence(OpCandidates& out, const GemmArDesc& d, const GpuTarget& gpu) {
  // The packet protocol where latency counts, least bytes else.
  constexpr std::int64_t kLatencyBytes = std::int64_t{1} << 20;
  bool small = d.m * d.n * static_cast<std::int64_t>(size_bytes(d.out_dtype)) <= kLatencyBytes;
  out.sequence = {
      {"gemm", step_shape(d, d.n, d.k, gpu)},
      {small ? "all_reduce_packet" : "all_reduce_two_shot", step_shape(d, d.n, 0, gpu)}};
  out.prefers_sequence = runs_in_sequence(d);
}

void add_sequence(OpCandidates& out, const AgGroupedDesc& d, const GpuTarget& gpu) {
  if (!d.gathers) return;
  GroupedDesc product = products_of(d, d.c_dtype);
  product.gathered = true;
  product.swiglu = d.swiglu;
  product.gate = d.gate;
  product.bias = d.bias;
  out.sequence = {
      {"all_gather", step_shape(d, d.k, 0, gpu)},
      default_step("grouped_gemm", step_shape(d, d.n, d.k, gpu), product, grouped_gemm)};
}

void add_sequence(OpCandidates& out, const GroupedRsDesc& d, const GpuTarget& gpu) {
  if (d.bias_ranks > 0) return;  // one product adds its biases on all ranks, or on none
  CombineDesc sums{
      .shape = d.shape, .hidden = d.n, .dtype = d.out_dtype, .sequence_parallel = !d.all_reduce};
  out.sequence = {default_step("grouped_gemm", step_shape(d, d.n, d.k, gpu),
                               products_of(d, d.out_dtype), grouped_gemm),
                  default_step("moe_combine", step_shape(d, d.n, 0, gpu), sums, moe_combine)};
}

void add_sequence(OpCandidates& out, const MoeLayerDesc& d, const GpuTarget& gpu) {
  if (d.bias_ranks > 0) return;
  OpCandidates second;
  add_sequence(out, first_layer(d), gpu);
  add_sequence(second, second_layer(d), gpu);
  out.sequence.insert(out.sequence.end(), second.sequence.begin(), second.sequence.end());
}

void add_sequence(OpCandidates& out, const EpMoeLayerDesc& d, const GpuTarget& gpu) {
  if (d.biases) return;
  const auto [exchange, first, second] = steps_of(d);
  auto step = [&](const char* op, auto&& program) {
    OpShape shape{.world_size = d.shape.world_size,
                  .m = d.shape.m,
                  .n = d.ffn,
                  .k = d.hidden,
                  .dtype = d.dtype,
                  .target = gpu};
    out.sequence.push_back({op, shape, program, even_routing(exchange)});
  };
  auto product = [&](const GroupedDesc& desc) {
    step("grouped_gemm", [=] { return grouped_gemm(desc, default_config(desc, gpu)); });
  };
  step("ep_send", [=] { return ep_send(exchange, default_send_config(exchange, gpu)); });
  step("ep_place", [=] { return ep_place(exchange, default_place_config(exchange, gpu)); });
  product(first);
  product(second);
  step("ep_return", [=] { return ep_return(exchange, default_return_config(exchange, gpu)); });
}

OpCandidates candidates(const OpCandidates::Step& step, const GpuTarget& gpu) {
  if (!step.program) return candidates(step.op, step.shape, gpu);
  return {.desc = step.op, .shape = step.shape, .fused = {{"default", step.program, step.tables}}};
}

OpCandidates candidates(const std::string& op, const OpShape& shape, const GpuTarget& gpu) {
  const OperatorInfo* info = find_operator(op);
  if (info == nullptr) throw UserError(fmt::format("'{}' is not an operator", op));
  OpShape asked = shape;
  asked.target = gpu;
  OpCandidates out = made(*info, with_defaults(asked), asked, gpu);
  out.shape = with_defaults(asked);
  return out;
}

}  // namespace stretto
