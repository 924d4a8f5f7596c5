#include "stretto/ops/choose/candidates.h"

#include <fmt/format.h>

#include <algorithm>

#include "stretto/base/errors.h"
#include "stretto/ops/catalog/catalog.h"
#include "stretto/ops/choose/configs.h"
#include "stretto/ops/gemm/gemm_case.h"

namespace stretto {
namespace {

std::int64_t part(std::int64_t size, const OpShape& s) {
  return ceil_div(size, std::int64_t{s.world_size});
}

OpCandidates of_gemm(const OpShape& s, Scaling scaling, int num_sms) {
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
  add_configs(out, desc, gpu_configs(desc, num_sms), gemm);
  return out;
}

OpShape with(OpShape s, std::int64_t m, std::int64_t n, std::int64_t k) {
  s.m = m;
  s.n = n;
  s.k = k;
  return s;
}

OpCandidates of_ag_gemm(const OpShape& s, const std::vector<Gather>& gathers, int num_sms) {
  AgGemmDesc desc{.world_size = s.world_size,
                  .m = row_bucket(s.m),
                  .n = part(s.n, s),
                  .k = s.k,
                  .a_dtype = s.dtype,
                  .b_dtype = s.dtype,
                  .c_dtype = s.dtype};
  OpCandidates out;
  std::vector<Gather> ordered = gathers;
  Gather first = default_config(desc, Target::kCuda).gather;
  std::stable_partition(ordered.begin(), ordered.end(), [&](Gather g) { return g == first; });
  for (Gather gather : ordered) add_configs(out, desc, gpu_configs(desc, gather, num_sms), ag_gemm);
  out.sequence = {{"all_gather", with(s, s.m, s.k, 0)}, {"gemm", with(s, s.m, desc.n, s.k)}};
  return out;
}

OpCandidates of_gemm_rs(const OpShape& s, const std::vector<Scatter>& scatters, int num_sms) {
  GemmRsDesc desc{.world_size = s.world_size,
                  .m = row_bucket(s.m),
                  .n = s.n,
                  .k = part(s.k, s),
                  .a_dtype = s.dtype,
                  .b_dtype = s.dtype,
                  .out_dtype = s.dtype};
  OpCandidates out;
  std::vector<Scatter> ordered = scatters;
  Scatter first = default_config(desc, Target::kCuda).scatter;
  std::stable_partition(ordered.begin(), ordered.end(), [&](Scatter s) { return s == first; });
  for (Scatter scatter : ordered)
    add_configs(out, desc, gpu_configs(desc, scatter, num_sms), gemm_rs);
  out.sequence = {{"gemm", with(s, s.m, s.n, desc.k)}, {"reduce_scatter", with(s, s.m, s.n, 0)}};
  return out;
}

OpCandidates of_gemm_ar(const OpShape& s, const std::vector<ReduceShots>& shots, int num_sms) {
  GemmArDesc desc{.world_size = s.world_size,
                  .m = row_bucket(s.m),
                  .n = s.n,
                  .k = part(s.k, s),
                  .a_dtype = s.dtype,
                  .b_dtype = s.dtype,
                  .out_dtype = s.dtype};
  OpCandidates out;
  for (ReduceShots kind : shots) add_configs(out, desc, gpu_configs(desc, kind, num_sms), gemm_ar);
  // The packet protocol where latency counts, least bytes else.
  constexpr std::int64_t kLatencyBytes = std::int64_t{1} << 20;
  bool small = s.m * s.n * static_cast<std::int64_t>(size_bytes(s.dtype)) <= kLatencyBytes;
  out.sequence = {{"gemm", with(s, s.m, s.n, desc.k)},
                  {small ? "all_reduce_packet" : "all_reduce_two_shot", with(s, s.m, s.n, 0)}};
  return out;
}

OpCandidates of_collective(const OpShape& s, Collective collective, AllReduceKind kind) {
  CollectiveDesc desc{.dtype = s.dtype, .m = s.m, .n = s.n, .world_size = s.world_size};
  OpCandidates out;
  auto make = collective == Collective::kAllGather       ? all_gather
              : collective == Collective::kReduceScatter ? reduce_scatter
                                                         : all_reduce;
  add_configs(out, desc, gpu_configs(desc, collective, kind), make);
  return out;
}

// `s` has all sizes, `asked` those of the caller.
OpCandidates made(const OperatorInfo& info, const OpShape& s, const OpShape& asked, int num_sms) {
  const std::string op = info.name;
  if (op == "gemm") return of_gemm(s, Scaling::kNone, num_sms);
  if (op == "gemm_fp8") return of_gemm(s, Scaling::kRowWise, num_sms);
  if (op == "gemm_fp8_block") return of_gemm(s, Scaling::kBlock, num_sms);
  if (op == "ag_gemm") return of_ag_gemm(s, {Gather::kPull, Gather::kSend, Gather::kPush}, num_sms);
  if (op == "ag_gemm_push") return of_ag_gemm(s, {Gather::kPush}, num_sms);
  if (op == "gemm_rs") {
    return of_gemm_rs(s, {Scatter::kEpilogue, Scatter::kCopyEngine}, num_sms);
  }
  if (op == "gemm_rs_copy") return of_gemm_rs(s, {Scatter::kCopyEngine}, num_sms);
  if (op == "gemm_ar") return of_gemm_ar(s, {ReduceShots::kOne, ReduceShots::kTwo}, num_sms);
  if (op == "gemm_ar_two_shot") return of_gemm_ar(s, {ReduceShots::kTwo}, num_sms);
  if (op == "all_gather") return of_collective(s, Collective::kAllGather, {});
  if (op == "reduce_scatter") return of_collective(s, Collective::kReduceScatter, {});
  for (AllReduceKind kind :
       {AllReduceKind::kOneShot, AllReduceKind::kTwoShot, AllReduceKind::kPacket}) {
    if (op == all_reduce_info(kind).name) return of_collective(s, Collective::kAllReduce, kind);
  }
  OpCandidates out{.desc = fmt::format("{} P={} m={} n={} k={} {}", op, asked.world_size, asked.m,
                                       asked.n, asked.k, short_name(asked.dtype))};
  out.fused.push_back({"default", [&info, asked] { return info.program(asked); }});
  return out;
}

}  // namespace

OpCandidates candidates(const std::string& op, const OpShape& shape, int num_sms) {
  const OperatorInfo* info = find_operator(op);
  if (info == nullptr) throw UserError(fmt::format("'{}' is not an operator", op));
  OpShape asked = shape;
  asked.target = Target::kCuda;
  OpCandidates out = made(*info, with_defaults(asked), asked, num_sms);
  out.shape = with_defaults(asked);
  return out;
}

}  // namespace stretto
