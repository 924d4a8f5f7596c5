#include "chosen.h"

#include <fmt/format.h>

#include <initializer_list>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/ops/choose/choose.h"
#include "stretto/ops/choose/configs.h"

namespace stretto::python {
namespace {

// The smallest built-in one with so many ranks, if any.
predict::Machine machine_of(int ranks) {
  int size = 1;
  while (size < ranks && size < 8) size *= 2;
  return predict::find_machine(fmt::format("h200x{}", size));
}

// Of the configs of these kinds; the default comes first.
template <typename Desc, typename Config, typename Kind>
Program chosen(const char* op, const Desc& desc, Program (*make)(const Desc&, const Config&),
               std::initializer_list<Kind> kinds) {
  OpCandidates offered;
  add_configs(offered, desc, std::vector<Config>{default_config(desc, Target::kCuda)}, make);
  if (desc.world_size > 1) {
    predict::Machine machine = machine_of(desc.world_size);
    for (Kind kind : kinds) {
      add_configs(offered, desc, gpu_configs(desc, kind, machine.num_sms), make);
    }
    try {
      return choose_program(op, desc, offered, {.machine = machine});
    } catch (const UserError&) {  // the default says what is wrong, if anything
    }
  }
  return offered.fused.front().program();
}

}  // namespace

Program chosen_program(const AgGemmDesc& desc) {
  return chosen("ag_gemm", desc, ag_gemm, {Gather::kPull, Gather::kSend, Gather::kPush});
}

Program chosen_program(const GemmRsDesc& desc) {
  return chosen("gemm_rs", desc, gemm_rs, {Scatter::kEpilogue, Scatter::kCopyEngine});
}

Program chosen_program(const GemmArDesc& desc) {
  return chosen("gemm_ar", desc, gemm_ar, {ReduceShots::kOne, ReduceShots::kTwo});
}

}  // namespace stretto::python
