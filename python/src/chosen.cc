#include "chosen.h"

#include <fmt/format.h>

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

template <typename Desc, typename Config>
class Offer {
 public:
  using Make = Program (*)(const Desc&, const Config&);

  // The default comes first.
  Offer(const Desc& desc, const Config& first, Make make) : desc_(desc), make_(make) {
    offered_.desc = to_string(desc);
    add({first});
  }

  void add(const std::vector<Config>& configs) {
    for (const Config& config : configs) {
      std::string text = to_string(config);
      if (find_candidate(offered_, text) != nullptr) continue;
      offered_.fused.push_back(
          {text, [desc = desc_, config, make = make_] { return make(desc, config); }});
    }
  }

  Program default_program() const { return offered_.fused.front().program(); }
  Program best(const char* op, const predict::Machine& machine) const {
    OpShape shape{.world_size = desc_.world_size,
                  .m = desc_.m,
                  .n = desc_.n,
                  .k = desc_.k,
                  .dtype = desc_.a_dtype,
                  .target = Target::kCuda};
    const Candidate* found = nullptr;
    try {
      found = find_candidate(offered_, choose(op, shape, offered_, {.machine = machine}).config);
    } catch (const UserError&) {  // the default says what is wrong, if anything
    }
    return found == nullptr ? default_program() : found->program();
  }

 private:
  Desc desc_;
  Make make_;
  OpCandidates offered_;
};

}  // namespace

Program chosen_program(const AgGemmDesc& desc) {
  Offer<AgGemmDesc, AgGemmConfig> offer(desc, default_config(desc, Target::kCuda), ag_gemm);
  if (desc.world_size == 1) return offer.default_program();
  predict::Machine machine = machine_of(desc.world_size);
  for (Gather gather : {Gather::kPull, Gather::kSend, Gather::kPush}) {
    offer.add(gpu_configs(desc, gather, machine.num_sms));
  }
  return offer.best("ag_gemm", machine);
}

Program chosen_program(const GemmRsDesc& desc) {
  Offer<GemmRsDesc, GemmRsConfig> offer(desc, default_config(desc, Target::kCuda), gemm_rs);
  if (desc.world_size == 1) return offer.default_program();
  predict::Machine machine = machine_of(desc.world_size);
  for (Scatter scatter : {Scatter::kEpilogue, Scatter::kCopyEngine}) {
    offer.add(gpu_configs(desc, scatter, machine.num_sms));
  }
  return offer.best("gemm_rs", machine);
}

Program chosen_program(const GemmArDesc& desc) {
  Offer<GemmArDesc, GemmArConfig> offer(desc, default_config(desc, Target::kCuda), gemm_ar);
  if (desc.world_size == 1) return offer.default_program();
  predict::Machine machine = machine_of(desc.world_size);
  for (ReduceShots shots : {ReduceShots::kOne, ReduceShots::kTwo}) {
    offer.add(gpu_configs(desc, shots, machine.num_sms));
  }
  return offer.best("gemm_ar", machine);
}

}  // namespace stretto::python
