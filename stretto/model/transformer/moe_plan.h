// The launches of a mixture of experts within a step (step_plan.h), shared by all layers that have
// one. Ranks that hold all tokens multiply those of their experts, and sums over the ranks bring
// the results together. Where tokens are split over the ranks and whole experts too, each token
// goes to the ranks that have its experts, and comes back as one row of each. With several data
// groups these are ranks of all groups: then every rank sends as many rows as any rank of a step
// has, and those that its group does not have are computed and not looked at.
#pragma once

#include <cstdint>

#include "stretto/model/transformer/product_plan.h"
#include "stretto/model/transformer/step_builder.h"
#include "stretto/ops/moe/ep_desc.h"
#include "stretto/ops/moe/grouped_gemm.h"
#include "stretto/ops/moe/route.h"

namespace stretto {

class MoePlan {
 public:
  // Adds programs and buffers to the plan; what it is given must outlive it. Sequence-parallel: a
  // rank has ceil(bound / P) rows of "x2" and "x", else all of them.
  MoePlan(const ModelShape& shape, bool sequence_parallel, ProductPlan& products,
          StepBuilder& plan);

  // Whether layers want the rank's own rows, else all of them.
  bool takes_own_rows() const { return exchange_; }
  // x = x2 + the layer's experts of `tokens`, normalised rows.
  void add(std::int64_t layer, const char* tokens);

 private:
  void prepare_sums();
  void prepare_exchange();
  void local(const char* name, DType dtype, std::int64_t rows, std::int64_t cols,
             bool symmetric = false);
  RouteDesc route_desc(std::int64_t m, bool tables) const;
  // Products of `m` tokens with `num_experts` experts of `groups`.
  GroupedDesc down_desc(std::int64_t m, std::int64_t num_experts, int groups) const;
  void prepare_acts(const GroupedDesc& down);
  // With the weights as the left factor where an expert has few rows; bits are the same.
  bool swaps(const GroupedDesc& desc) const;
  int add_product(const GroupedDesc& desc);
  // `sums`: what the second product binds beside its own where it sums in the same launch.
  void add_products(std::int64_t layer, const char* tokens, const StepBuilder::Sizes& sizes,
                    const StepBuilder::Bindings& sums = {});

  const ModelShape& s_;
  const ModelConfig& c_;
  ProductPlan& products_;
  StepBuilder& plan_;
  bool sequence_parallel_, exchange_;
  bool fuses_;  // products and sums, where every rank has all tokens
  EpDesc ep_;                      // of the exchange
  bool returns_to_parts_ = false;  // else through buffers of the program (ep_return.h)
  int route_ = 0, send_ = 0, place_ = 0, up_ = 0, down_ = 0, combine_ = 0;
};

}  // namespace stretto
