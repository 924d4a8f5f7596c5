#include "stretto/ops/choose/fastest.h"

#include "stretto/base/errors.h"
#include "stretto/ops/choose/choose.h"
#include "stretto/ops/choose/configs.h"

namespace stretto {
namespace {

template <typename Config>
void append(std::vector<Config>& configs, const std::vector<Config>& more) {
  configs.insert(configs.end(), more.begin(), more.end());
}

template <typename Desc, typename Config>
Program fastest(const char* op, const Desc& desc, const std::vector<Config>& configs,
                Program (*make)(const Desc&, const Config&), const predict::Machine& machine) {
  if (configs.size() == 1) return make(desc, configs.front());
  OpCandidates offered{.desc = to_string(desc)};
  for (const Config& config : configs) {
    offered.fused.push_back({to_string(config), [&] { return make(desc, config); }});
  }
  OpShape shape{.world_size = desc.world_size,
                .m = desc.m,
                .n = desc.n,
                .k = desc.k,
                .dtype = desc.a_dtype,
                .target = Target::kCuda};
  Choice choice = choose(op, shape, offered, {.machine = machine, .eager = true});
  const Candidate* found = find_candidate(offered, choice.config);
  STRETTO_CHECK(found != nullptr, "a choice is a candidate");
  return found->program();
}

}  // namespace

Program fastest_program(const GemmDesc& desc, const predict::Machine& machine) {
  return fastest("gemm", desc, gpu_configs(desc, machine.num_sms), gemm, machine);
}

Program fastest_program(const AgGemmDesc& desc, const predict::Machine& machine) {
  Gather first = default_config(desc, Target::kCuda).gather;
  std::vector<AgGemmConfig> configs = gpu_configs(desc, first, machine.num_sms);
  // SwiGLU's have one config of each kind.
  if (configs.size() == 1 && size_bytes(desc.a_dtype) != 2) return ag_gemm(desc, configs.front());
  for (Gather gather : {Gather::kPull, Gather::kSend, Gather::kPush}) {
    if (gather != first) append(configs, gpu_configs(desc, gather, machine.num_sms));
  }
  return fastest("ag_gemm", desc, configs, ag_gemm, machine);
}

Program fastest_program(const GemmRsDesc& desc, const predict::Machine& machine) {
  Scatter first = default_config(desc, Target::kCuda).scatter;
  std::vector<GemmRsConfig> configs = gpu_configs(desc, first, machine.num_sms);
  if (configs.size() == 1) return gemm_rs(desc, configs.front());
  Scatter other = first == Scatter::kEpilogue ? Scatter::kCopyEngine : Scatter::kEpilogue;
  append(configs, gpu_configs(desc, other, machine.num_sms));
  return fastest("gemm_rs", desc, configs, gemm_rs, machine);
}

}  // namespace stretto
