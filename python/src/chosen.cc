#include "chosen.h"

#include <array>
#include <type_traits>
#include <utility>

#include "stretto/base/errors.h"
#include "stretto/compiler.h"
#include "stretto/gpu/gpu_code.h"
#include "stretto/ops/catalog/catalog.h"
#include "stretto/ops/choose/calibrated_machine.h"
#include "stretto/ops/choose/choose.h"
#include "stretto/ops/choose/configs.h"
#include "stretto/ops/collectives/collectives.h"

namespace stretto::python {
namespace {

constexpr const char* kSequenceName = "sequence";
constexpr const char* kDefaultName = "default";

// Of each desc: its operator, the configs beside the default, and whether a product and a
// collective of ours do the same one after the other.
template <typename Desc>
struct Operator;

template <typename Config, typename... Lists>
std::vector<Config> joined_configs(std::vector<Config> first, const Lists&... others) {
  (first.insert(first.end(), others.begin(), others.end()), ...);
  return first;
}

template <>
struct Operator<GemmDesc> {
  static constexpr const char* kName = "gemm";
  static constexpr bool kHasSequence = false;
  static constexpr auto kMake = &gemm;
  static auto configs(const GemmDesc& d, const GpuTarget& gpu) { return gpu_configs(d, gpu); }
};
template <>
struct Operator<AgGemmDesc> {
  static constexpr const char* kName = "ag_gemm";
  static constexpr bool kHasSequence = true;
  static constexpr auto kMake = &ag_gemm;
  static auto configs(const AgGemmDesc& d, const GpuTarget& gpu) {
    return joined_configs(gpu_configs(d, Gather::kSend, gpu), gpu_configs(d, Gather::kPush, gpu));
  }
};
template <>
struct Operator<AgColumnsDesc> {
  static constexpr const char* kName = "ag_columns_gemm";
  static constexpr bool kHasSequence = false;
  static constexpr auto kMake = &ag_columns_gemm;
  static auto configs(const AgColumnsDesc& d, const GpuTarget& gpu) {
    return joined_configs(gpu_configs(d, Gather::kSend, gpu), gpu_configs(d, Gather::kPush, gpu));
  }
};
template <>
struct Operator<GemmAgDesc> {
  static constexpr const char* kName = "gemm_ag";
  static constexpr bool kHasSequence = false;
  static constexpr auto kMake = &gemm_ag;
  static auto configs(const GemmAgDesc& d, const GpuTarget& gpu) { return gpu_configs(d, gpu); }
};
template <>
struct Operator<GemmRsDesc> {
  static constexpr const char* kName = "gemm_rs";
  static constexpr bool kHasSequence = true;
  static constexpr auto kMake = &gemm_rs;
  static auto configs(const GemmRsDesc& d, const GpuTarget& gpu) {
    return joined_configs(gpu_configs(d, Scatter::kEpilogue, gpu),
                          gpu_configs(d, Scatter::kCopyEngine, gpu));
  }
};
template <>
struct Operator<GemmArDesc> {
  static constexpr const char* kName = "gemm_ar";
  static constexpr bool kHasSequence = true;
  static constexpr auto kMake = &gemm_ar;
  static auto configs(const GemmArDesc& d, const GpuTarget& gpu) {
    return joined_configs(gpu_configs(d, ReduceShots::kOne, gpu),
                          gpu_configs(d, ReduceShots::kShared, gpu),
                          gpu_configs(d, ReduceShots::kTwo, gpu));
  }
};

DType result_dtype(const GemmDesc& d) { return d.c_dtype; }
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

// On one GPU the product alone, whose default has clusters, which those of collectives have not.
template <typename Desc>
bool is_product_alone(const Desc& desc, Target target) {
  if (desc.world_size > 1 || target == Target::kCpu) return false;
  if constexpr (std::is_same_v<Desc, AgGemmDesc>) return !desc.gathered;
  return !Operator<Desc>::kHasSequence;
}

}  // namespace

template <typename Desc>
ProductChoice<Desc>::ProductChoice(const Desc& desc, const Asked& asked)
    : desc_(desc),
      asked_(asked),
      machine_(calibrated_machine(desc.world_size, asked.target.gpu())) {}

template <typename Desc>
Offer ProductChoice<Desc>::chosen() const {
  return chosen_as(asked_.measured_on);
}

template <typename Desc>
Offer ProductChoice<Desc>::chosen_as(const std::string& measured_on) const {
  if (is_product_alone(desc_, asked_.target)) {
    GemmDesc product = product_of(desc_);
    return {kDefaultName, {gemm(product, default_config(product, asked_.target))}};
  }
  if (asked_.products == Products::kSequence && can_sequence()) return in_sequence();
  if (!has_choice()) return by_default();
  OpCandidates all = candidates();
  try {
    return offer_of(choose_for(Operator<Desc>::kName, desc_, all, options(measured_on)), all);
  } catch (const UserError&) {  // the default says what is wrong, if anything
    return by_default();
  }
}

template <typename Desc>
std::vector<Offer> ProductChoice<Desc>::offers(int most_fused) const {
  Offer first = chosen_as("");
  if (!has_choice() || first.config == kDefaultName) return {first};
  OpCandidates all = candidates();
  std::vector<Offer> found = {first};
  int left = most_fused;
  for (const RankedCandidate& ranked : rank_candidates(all, machine_)) {
    if (ranked.is_sequence()) {
      if (first.config != kSequenceName) found.push_back(in_sequence(ranked.predicted_ms));
      continue;
    }
    const Candidate& fused = all.fused[static_cast<std::size_t>(ranked.index)];
    if (left == 0 || fused.config == first.config) continue;
    Program program = fused.program();
    if (!has_gpu_lowering(lower(program))) continue;
    found.push_back({fused.config, {std::move(program)}, ranked.predicted_ms});
    --left;
  }
  return found;
}

template <typename Desc>
void ProductChoice<Desc>::keep(const std::string& config, double ms) const {
  OpCandidates all = candidates();
  const bool is_sequence = config == kSequenceName;
  STRETTO_CHECK(has_choice() && (is_sequence || find_candidate(all, config) != nullptr),
                "what is kept is offered");
  keep_measured(Operator<Desc>::kName, shape_of_product(desc_), all, options(asked_.measured_on),
                {.is_sequence = is_sequence, .config = config, .measured_ms = ms});
}

template <typename Desc>
bool ProductChoice<Desc>::can_sequence() const {
  return Operator<Desc>::kHasSequence && desc_.world_size > 1 && desc_.scaling == Scaling::kNone;
}

template <typename Desc>
bool ProductChoice<Desc>::has_choice() const {
  return desc_.world_size > 1 && !(asked_.target == Target::kCpu) &&
         asked_.products != Products::kDefault &&
         !(asked_.products == Products::kSequence && can_sequence());
}

template <typename Desc>
ChooseOptions ProductChoice<Desc>::options(const std::string& measured_on) const {
  return {.machine = machine_, .measured_on = measured_on};
}

// The default comes first.
template <typename Desc>
OpCandidates ProductChoice<Desc>::candidates() const {
  OpCandidates all;
  const GpuTarget gpu{.sms = machine_.num_sms};
  add_configs(all, desc_, std::vector{default_config(desc_, asked_.target)}, Operator<Desc>::kMake);
  add_configs(all, desc_, Operator<Desc>::configs(desc_, gpu), Operator<Desc>::kMake);
  if constexpr (Operator<Desc>::kHasSequence) {
    if (asked_.products == Products::kFastest && can_sequence()) add_sequence(all, desc_, gpu);
  }
  return all;
}

template <typename Desc>
Offer ProductChoice<Desc>::by_default() const {
  return {kDefaultName, {Operator<Desc>::kMake(desc_, default_config(desc_, asked_.target))}};
}

template <typename Desc>
Offer ProductChoice<Desc>::in_sequence(double predicted_ms) const {
  if constexpr (Operator<Desc>::kHasSequence) {
    return {kSequenceName, sequence(desc_, asked_.target, machine_), predicted_ms};
  }
  return by_default();
}

template <typename Desc>
Offer ProductChoice<Desc>::offer_of(const ConfigChoice& choice, const OpCandidates& all) const {
  if (choice.is_sequence) return in_sequence(choice.predicted_ms);
  return {choice.config, programs_of(choice, all, options("")), choice.predicted_ms};
}

template class ProductChoice<GemmDesc>;
template class ProductChoice<AgGemmDesc>;
template class ProductChoice<AgColumnsDesc>;
template class ProductChoice<GemmAgDesc>;
template class ProductChoice<GemmRsDesc>;
template class ProductChoice<GemmArDesc>;

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

}  // namespace stretto::python
