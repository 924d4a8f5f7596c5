#include "stretto/ops/choose/fastest.h"

#include "stretto/ops/choose/choose.h"
#include "stretto/ops/choose/configs.h"

namespace stretto {
namespace {

template <typename Desc>
Program fastest(const char* op, const Desc& desc, const OpCandidates& offered,
                const predict::Machine& machine) {
  if (offered.fused.size() == 1) return offered.fused.front().program();
  return choose_program(op, desc, offered, {.machine = machine, .eager = true});
}

Program fastest(const char* op, const OpShape& shape, const OpCandidates& offered,
                const predict::Machine& machine) {
  if (offered.fused.size() == 1) return offered.fused.front().program();
  ChooseOptions options{.machine = machine, .eager = true};
  return programs_of(choose(op, shape, offered, options), offered, options).front();
}

Program fastest(const char* op, const UlyssesDesc& d, const OpCandidates& offered,
                const predict::Machine& machine) {
  return fastest(op,
                 OpShape{.world_size = d.world_size,
                         .m = d.m,
                         .n = d.n,
                         .k = d.k,
                         .dtype = d.dtype,
                         .target = GpuTarget{.sms = machine.num_sms}},
                 offered, machine);
}

bool same_tile_rows(const GemmTile& a, const GemmTile& b) { return a.bm == b.bm; }
bool same_tile_rows(const AgGroupedConfig& a, const AgGroupedConfig& b) {
  return same_tile_rows(a.loop.tile, b.loop.tile);
}
bool same_tile_rows(const GroupedRsConfig& a, const GroupedRsConfig& b) {
  return same_tile_rows(a.loop.tile, b.loop.tile);
}
bool same_tile_rows(const MoeLayerConfig& a, const MoeLayerConfig& b) {
  return same_tile_rows(a.first, b.first) && same_tile_rows(a.second, b.second);
}

template <typename Desc, typename Config>
OpCandidates with_tiles_of(const Desc& desc, const Config& base,
                           Program (*make)(const Desc&, const Config&),
                           const predict::Machine& machine) {
  std::vector<Config> configs = gpu_configs(desc, {.sms = machine.num_sms});
  std::erase_if(configs, [&](const Config& c) { return !same_tile_rows(c, base); });
  configs.insert(configs.begin(), base);
  OpCandidates offered;
  add_configs(offered, desc, configs, make);
  return offered;
}

}  // namespace

Program fastest_program(const GemmDesc& desc, const predict::Machine& machine) {
  OpCandidates offered;
  add_configs(offered, desc, gpu_configs(desc, {.sms = machine.num_sms}), gemm);
  return fastest("gemm", desc, offered, machine);
}

Program fastest_program(const AgGemmDesc& desc, const predict::Machine& machine) {
  OpCandidates offered;
  auto add = [&](Gather gather) {
    add_configs(offered, desc, gpu_configs(desc, gather, {.sms = machine.num_sms}), ag_gemm);
  };
  add(default_config(desc, GpuTarget{.sms = machine.num_sms}).gather);
  // SwiGLU's have one config of each kind.
  if (offered.fused.size() > 1 || size_bytes(desc.a_dtype) == 2) {
    for (Gather gather : {Gather::kSend, Gather::kPush}) add(gather);
  }
  return fastest("ag_gemm", desc, offered, machine);
}

Program fastest_program(const GemmRsDesc& desc, const predict::Machine& machine) {
  OpCandidates offered;
  auto add = [&](Scatter scatter) {
    add_configs(offered, desc, gpu_configs(desc, scatter, {.sms = machine.num_sms}), gemm_rs);
  };
  add(default_config(desc, GpuTarget{.sms = machine.num_sms}).scatter);
  if (offered.fused.size() > 1) {
    for (Scatter scatter : {Scatter::kEpilogue, Scatter::kCopyEngine}) add(scatter);
  }
  return fastest("gemm_rs", desc, offered, machine);
}

Program fastest_gemm_a2a(const UlyssesDesc& desc, const predict::Machine& machine) {
  OpCandidates offered;
  add_configs(offered, desc, gpu_gemm_a2a_configs(desc, {.sms = machine.num_sms}), gemm_a2a);
  return fastest("gemm_a2a", desc, offered, machine);
}

Program fastest_a2a_gemm(const UlyssesDesc& desc, const predict::Machine& machine) {
  OpCandidates offered;
  add_configs(offered, desc, gpu_a2a_gemm_configs(desc, {.sms = machine.num_sms}), a2a_gemm);
  return fastest("a2a_gemm", desc, offered, machine);
}

Program fastest_program(const AgGroupedDesc& desc, const AgGroupedConfig& base,
                        const predict::Machine& machine) {
  return fastest("ag_grouped_gemm", desc, with_tiles_of(desc, base, ag_grouped_gemm, machine),
                 machine);
}

Program fastest_program(const GroupedRsDesc& desc, const GroupedRsConfig& base,
                        const predict::Machine& machine) {
  const char* op = desc.all_reduce ? "grouped_gemm_ar" : "grouped_gemm_rs";
  return fastest(op, desc, with_tiles_of(desc, base, grouped_gemm_rs, machine), machine);
}

Program fastest_program(const MoeLayerDesc& desc, const MoeLayerConfig& base,
                        const predict::Machine& machine) {
  OpShape shape{.world_size = desc.shape.world_size,
                .m = desc.shape.m,
                .n = desc.hidden,
                .k = desc.ffn,
                .dtype = desc.dtype,
                .target = GpuTarget{.sms = machine.num_sms}};
  return fastest("moe_layer", shape, with_tiles_of(desc, base, moe_layer, machine), machine);
}

}  // namespace stretto
