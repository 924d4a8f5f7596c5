#include "chosen.h"

#include <array>
#include <initializer_list>
#include <type_traits>

#include "stretto/base/errors.h"
#include "stretto/ops/catalog/catalog.h"
#include "stretto/ops/choose/calibrated_machine.h"
#include "stretto/ops/choose/choose.h"
#include "stretto/ops/choose/configs.h"
#include "stretto/ops/collectives/collectives.h"

namespace stretto::python {
namespace {

DType result_dtype(const AgGemmDesc& d) { return d.c_dtype; }
DType result_dtype(const AgColumnsDesc& d) { return d.c_dtype; }
DType result_dtype(const GemmAgDesc& d) { return d.c_dtype; }
DType result_dtype(const GemmRsDesc& d) { return d.out_dtype; }
DType result_dtype(const GemmArDesc& d) { return d.out_dtype; }

template <typename Desc>
GemmDesc product_of(const Desc& d) {
  return {.world_size = d.world_size,
          .m = d.m,
          .n = d.n,
          .k = d.k,
          .a_dtype = d.a_dtype,
          .b_dtype = d.b_dtype,
          .c_dtype = result_dtype(d),
          .scaling = d.scaling,
          .b_kn = d.b_kn};
}

template <typename Desc>
Program product_step(const Desc& d, Target target, const predict::Machine& machine) {
  GemmDesc desc = product_of(d);
  if (target == Target::kCpu) return gemm(desc, default_config(desc, target));
  OpCandidates offered;
  add_configs(offered, desc, gpu_configs(desc, {.sms = machine.num_sms}), gemm);
  return choose_program("gemm", desc, offered, {.machine = machine});
}

template <typename Desc>
Program collective_step(const Desc& d, const OpCandidates::Step& step, Target target,
                        const predict::Machine& machine) {
  if (target == Target::kCpu) {
    if constexpr (std::is_same_v<Desc, GemmRsDesc>) {
      CollectiveDesc sums = scattered_sums(d);
      return reduce_scatter(sums, default_config(sums, target));
    }
    OpShape shape = step.shape;
    shape.target = target;
    return find_operator(step.op)->program(shape);
  }
  OpCandidates alone{.sequence = {step}};
  return programs_of({.is_sequence = true}, alone, {.machine = machine}).front();
}

template <typename Desc>
std::vector<Program> sequence(const Desc& desc, Target target, const predict::Machine& machine) {
  OpCandidates offered;
  add_sequence(offered, desc, {.sms = machine.num_sms});
  std::vector<Program> programs;
  for (const OpCandidates::Step& step : offered.sequence) {
    programs.push_back(step.op == "gemm" ? product_step(desc, target, machine)
                                         : collective_step(desc, step, target, machine));
  }
  return programs;
}

// Of the configs of these kinds; the default comes first.
template <typename Desc, typename Config, typename Kind>
std::vector<Program> chosen(const char* op, const Desc& desc,
                            Program (*make)(const Desc&, const Config&),
                            std::initializer_list<Kind> kinds, Products products, Target target) {
  Program fused = make(desc, default_config(desc, target));
  bool alone = desc.world_size == 1;
  bool has_sequence = !alone && desc.scaling == Scaling::kNone;
  predict::Machine machine = calibrated_machine(desc.world_size, target.gpu());
  if (products == Products::kSequence && has_sequence) return sequence(desc, target, machine);
  if (products == Products::kDefault || alone || target == Target::kCpu) return {fused};
  OpCandidates offered;
  add_configs(offered, desc, std::vector<Config>{default_config(desc, target)}, make);
  for (Kind kind : kinds) {
    add_configs(offered, desc, gpu_configs(desc, kind, {.sms = machine.num_sms}), make);
  }
  if (products == Products::kFastest && has_sequence)
    add_sequence(offered, desc, {.sms = machine.num_sms});
  try {
    ConfigChoice choice = choose_for(op, desc, offered, {.machine = machine});
    if (choice.is_sequence) return sequence(desc, target, machine);
    return programs_of(choice, offered, {.machine = machine});
  } catch (const UserError&) {  // the default says what is wrong, if anything
    return {fused};
  }
}

// The same of what has no sequence. configs(gpu): those beside the default.
template <typename Desc, typename Config, typename Configs>
std::vector<Program> chosen_fused(const char* op, const Desc& desc,
                                  Program (*make)(const Desc&, const Config&), Products products,
                                  Target target, const Configs& configs) {
  if (desc.world_size == 1 && target == Target::kCuda) {
    return {gemm(product_of(desc), default_config(product_of(desc), target))};
  }
  const Config first = default_config(desc, target);
  if (products == Products::kDefault || desc.world_size == 1 || target == Target::kCpu) {
    return {make(desc, first)};
  }
  predict::Machine machine = calibrated_machine(desc.world_size, target.gpu());
  OpCandidates offered;
  add_configs(offered, desc, std::vector<Config>{first}, make);
  add_configs(offered, desc, configs(GpuTarget{.sms = machine.num_sms}), make);
  try {
    return {choose_program(op, desc, offered, {.machine = machine})};
  } catch (const UserError&) {  // the default says what is wrong, if anything
    return {make(desc, first)};
  }
}

}  // namespace

const char* name(Products products) {
  constexpr std::array kNames = {"default", "fused", "fastest", "sequence"};
  return kNames.at(static_cast<std::size_t>(products));
}

Products take_products(Fields& fields) {
  auto products = Products::kDefault;
  using enum Products;
  fields.take({{"products", products, {kDefault, kFused, kFastest, kSequence}}});
  fields.finish();
  return products;
}

std::vector<Program> chosen_programs(const AgGemmDesc& desc, Products products, Target target) {
  // Of one rank it is the product alone, whose default has clusters, which the operator's has not.
  if (desc.world_size == 1 && !desc.gathered && target == Target::kCuda) {
    return {gemm(product_of(desc), default_config(product_of(desc), target))};
  }
  return chosen("ag_gemm", desc, ag_gemm, {Gather::kSend, Gather::kPush}, products, target);
}

std::vector<Program> chosen_programs(const AgColumnsDesc& desc, Products products, Target target) {
  return chosen_fused("ag_columns_gemm", desc, ag_columns_gemm, products, target,
                      [&](const GpuTarget& gpu) {
                        std::vector<AgColumnsConfig> all = gpu_configs(desc, Gather::kSend, gpu);
                        for (const AgColumnsConfig& c : gpu_configs(desc, Gather::kPush, gpu)) {
                          all.push_back(c);
                        }
                        return all;
                      });
}

std::vector<Program> chosen_programs(const GemmAgDesc& desc, Products products, Target target) {
  return chosen_fused("gemm_ag", desc, gemm_ag, products, target,
                      [&](const GpuTarget& gpu) { return gpu_configs(desc, gpu); });
}

std::vector<Program> chosen_programs(const GemmRsDesc& desc, Products products, Target target) {
  return chosen("gemm_rs", desc, gemm_rs, {Scatter::kEpilogue, Scatter::kCopyEngine}, products,
                target);
}

std::vector<Program> chosen_programs(const GemmArDesc& desc, Products products, Target target) {
  return chosen("gemm_ar", desc, gemm_ar,
                {ReduceShots::kOne, ReduceShots::kShared, ReduceShots::kTwo}, products, target);
}

}  // namespace stretto::python
