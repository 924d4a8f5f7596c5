#include "stretto/model/transformer/moe_plan.h"

#include <utility>

#include "stretto/base/ceil_div.h"
#include "stretto/model/transformer/step_programs.h"
#include "stretto/model/transformer/weights.h"
#include "stretto/ops/moe/even_routing.h"

namespace stretto {

MoePlan::MoePlan(const ModelShape& shape, bool sequence_parallel, ProductPlan& products,
                 StepBuilder& plan)
    : s_(shape),
      c_(*shape.config),
      products_(products),
      plan_(plan),
      sequence_parallel_(sequence_parallel),
      exchange_(sequence_parallel && shape.expert_groups > 1),
      fuses_(plan.bound() >= shape.fused_expert_rows && !exchange_) {
  exchange_ ? prepare_exchange() : prepare_sums();
}

void MoePlan::local(const char* name, DType dtype, std::int64_t rows, std::int64_t cols,
                    bool symmetric) {
  symmetric ? plan_.symmetric(name, dtype, {rows, cols}, s_.shares_experts())
            : plan_.buffer(name, dtype, {rows, cols});
}

GroupedDesc MoePlan::down_desc(std::int64_t m, std::int64_t num_experts, int groups) const {
  ExpertSplit split = expert_split(c_, s_.expert_ranks(), s_.expert_groups);
  GroupedDesc d{.world_size = s_.expert_ranks(),
                .m = m,
                .rows_per_token = c_.moe->experts_per_token,
                .num_experts = num_experts,
                .expert_groups = groups,
                .n = c_.hidden_size,
                .k = expert_ffn_per_rank(c_, split),
                .c_dtype = s_.dtype};
  products_.set_factors(d);
  return d;
}

RouteDesc MoePlan::route_desc(std::int64_t m, bool tables) const {
  const MoeConfig& moe = *c_.moe;
  return {.shape = {.world_size = s_.expert_ranks(),
                    .m = m,
                    .top_k = moe.experts_per_token,
                    .num_experts = moe.num_experts},
          .hidden = c_.hidden_size,
          .dtype = s_.dtype,
          .weight_dtype = s_.weight_dtype,
          .tables = tables,
          .scoring_func = moe.sigmoid_scores ? Scoring::kSigmoid : Scoring::kSoftmax,
          .bias = moe.choice_bias,
          .n_group = moe.num_groups,
          .topk_group = moe.groups_per_token,
          .group_score = moe.groups_by_best_two ? GroupScore::kBestTwo : GroupScore::kBest,
          .norm_topk_prob = moe.normalize_weights,
          .routed_scaling_factor = moe.weight_scale};
}

void MoePlan::prepare_sums() {
  std::int64_t top_k = c_.moe->experts_per_token, num_experts = c_.moe->num_experts;
  std::int64_t bound = plan_.bound(), rows = bound * top_k;
  GroupedDesc down = down_desc(bound, num_experts, s_.expert_groups), up = down;
  up.n = down.k;
  up.k = down.n;
  up.gathered = up.swiglu = true;
  local("expert_act", s_.dtype, rows, down.k);
  if (fuses_ && s_.expert_groups > 1) {
    // Rows of other ranks' experts are nobody's there, so for a plan's check it reads what was
    // there: a state, the step's own.
    plan_.symmetric("expert_out", s_.dtype, {rows, c_.hidden_size}, false,
                    step::BufferKind::kState);
  } else {
    local("expert_out", s_.dtype, rows, c_.hidden_size);
  }
  if (sequence_parallel_) {
    products_.prepare({.buffer = "all_normed",
                       .tokens = bound,
                       .cols = c_.hidden_size,
                       .world_size = s_.expert_ranks()});
  }
  prepare_acts(down);
  local("weights", DType::kF32, bound, top_k);
  local("slots", DType::kI32, bound, top_k);
  local("offsets", DType::kI32, 1, num_experts + 1);
  local("row_tokens", DType::kI32, rows, 1);
  CombineDesc combine{.shape = {.world_size = s_.world_size,
                                .m = bound,
                                .top_k = top_k,
                                .num_experts = num_experts},
                      .hidden = c_.hidden_size,
                      .dtype = s_.dtype,
                      .expert_groups = s_.expert_groups,
                      .sequence_parallel = sequence_parallel_};
  route_ = plan_.program(step_program(route_desc(bound, true), s_.target));
  up_ = add_product(up);
  plan_.usual_tables(up_, even_routing(up));
  if (fuses_) {
    const SortedRsDesc fused{.products = down, .residual = true, .all_reduce = !sequence_parallel_};
    down_ = plan_.program(fused_program(fused, s_.target, swaps(down)));
    plan_.usual_tables(down_, even_routing(fused));
    return;
  }
  down_ = add_product(down);
  combine_ = plan_.program(step_program(combine, s_.target));
  plan_.usual_tables(down_, even_routing(down));
  plan_.usual_tables(combine_, even_routing(combine));
}

void MoePlan::prepare_exchange() {
  ep_ = {.shape = {.world_size = s_.expert_ranks(),
                   .m = plan_.bound(),
                   .top_k = c_.moe->experts_per_token,
                   .num_experts = c_.moe->num_experts},
         .dtype = s_.dtype,
         .hidden = c_.hidden_size,
         .expert_groups = s_.expert_groups};
  if (s_.shares_experts()) {
    ep_.shape.m = ceil_div(plan_.bound(), std::int64_t{s_.world_size}) * s_.all_ranks();
  }
  std::int64_t own = ep_.shape.rows_per_rank(), received = ep_.received_rows(),
               top_k = ep_.shape.top_k;
  std::int64_t share = split_of(ep_).share();
  GroupedDesc down = down_desc(received, share, 1);
  down.spare_rows = true;
  GroupedDesc up = down;
  up.n = down.k;
  up.k = down.n;
  up.gathered = up.swiglu = true;
  local("weights", DType::kF32, own, top_k);
  local("experts", DType::kI32, own, top_k);
  local("recv", s_.dtype, received, c_.hidden_size, true);
  local("recv_experts", DType::kI32, received, top_k, true);
  local("recv_weights", DType::kF32, received, top_k, true);
  local("positions", DType::kI32, own, ep_.shape.world_size);
  local("slots", DType::kI32, received, top_k);
  local("offsets", DType::kI32, 1, share + 2);
  local("row_tokens", DType::kI32, received * top_k, 1);
  local("expert_act", s_.dtype, received * top_k, down.k);
  local("expert_out", s_.dtype, received * top_k, c_.hidden_size);
  products_.prepare({.buffer = "recv",
                     .tokens = received,
                     .cols = c_.hidden_size,
                     .world_size = s_.expert_ranks()});
  prepare_acts(down);
  route_ = plan_.program(step_program(route_desc(own, false), s_.target));
  send_ = plan_.program(send_program(ep_, s_.target));
  place_ = plan_.program(place_program(ep_, s_.target));
  up_ = add_product(up);
  down_ = add_product(down);
  combine_ = plan_.program(return_program(ep_, s_.target));
  for (int program : {send_, place_, up_, down_, combine_}) {
    plan_.usual_tables(program, even_routing(ep_));
  }
  const Program& combine = plan_.program_at(combine_);
  const int parts = combine.find_tensor("parts");
  returns_to_parts_ =
      parts >= 0 && combine.tensors[static_cast<std::size_t>(parts)].kind == TensorKind::kState;
  if (!returns_to_parts_) return;
  plan_.symmetric("parts", s_.dtype, {received, c_.hidden_size}, s_.shares_experts(),
                  step::BufferKind::kState);
}

bool MoePlan::swaps(const GroupedDesc& d) const {
  const bool few = mean_rows(d) <= s_.swapped_expert_rows;
  return few && s_.target == Target::kCuda && can_swap(d);
}

int MoePlan::add_product(const GroupedDesc& d) {
  return plan_.program(swaps(d) ? swapped_program(d, s_.target) : step_program(d, s_.target));
}

void MoePlan::prepare_acts(const GroupedDesc& down) {
  products_.prepare({.buffer = "expert_act",
                     .tokens = down.m,
                     .rows_per_token = down.rows_per_token,
                     .cols = down.k,
                     .world_size = down.world_size});
}

void MoePlan::add_products(std::int64_t layer, const char* tokens, const StepBuilder::Sizes& sizes,
                           const StepBuilder::Bindings& sums) {
  using Weight = ProductPlan::Weight;
  auto w = [layer](const char* name) { return layer_buffer(layer, name); };
  StepBuilder::Bindings up = {
      {"offsets", "offsets"}, {"tokens", "row_tokens"}, {"c", "expert_act"}};
  products_.bind_rows(tokens, up);
  products_.bind_weight(Weight::kGate, w("gate"), up);
  products_.bind_weight(Weight::kUp, w("up"), up);
  products_.quantize(tokens, sizes);
  plan_.launch(up_, sizes, up);
  StepBuilder::Bindings down = {{"offsets", "offsets"},
                                {sums.empty() ? "c" : "products", "expert_out"}};
  down.insert(down.end(), sums.begin(), sums.end());
  products_.bind_rows("expert_act", down);
  products_.bind_weight(Weight::kOnly, w("down"), down);
  products_.quantize("expert_act", sizes);
  plan_.launch(down_, sizes, down);
}

void MoePlan::add(std::int64_t layer, const char* tokens) {
  StepBuilder::Bindings route = {
      {"x", tokens}, {"gate", layer_buffer(layer, "router")}, {"weights", "weights"}};
  if (c_.moe->choice_bias) route.push_back({"bias", layer_buffer(layer, "router_bias")});
  StepBuilder::Bindings combined = {
      {"y", "expert_out"}, {"slots", "slots"}, {"residual", "x2"}, {"out", "x"}};
  const StepBuilder::Sizes all = s_.shares_experts() ? plan_.of_all_ranks() : plan_.all();
  if (exchange_) {
    route.push_back({"experts", "experts"});
    plan_.launch(route_, s_.shares_experts() ? plan_.most_own() : plan_.own(), route);
    plan_.launch(send_, all,
                 {{"x", tokens},
                  {"experts", "experts"},
                  {"weights", "weights"},
                  {"recv", "recv"},
                  {"recv_experts", "recv_experts"},
                  {"recv_weights", "recv_weights"},
                  {"positions", "positions"}});
    plan_.launch(place_, {},
                 {{"recv_experts", "recv_experts"},
                  {"slots", "slots"},
                  {"offsets", "offsets"},
                  {"tokens", "row_tokens"}});
    add_products(layer, "recv", StepBuilder::fixed(ep_.received_rows()));
    combined.push_back({"recv_weights", "recv_weights"});
    combined.push_back({"positions", "positions"});
    if (returns_to_parts_) combined.push_back({"parts", "parts"});
  } else {
    route.insert(route.end(),
                 {{"slots", "slots"}, {"offsets", "offsets"}, {"tokens", "row_tokens"}});
    plan_.launch(route_, plan_.all(), route);
    if (fuses_) {
      return add_products(
          layer, tokens, plan_.all(),
          {{"slots", "slots"}, {"weights", "weights"}, {"residual", "x2"}, {"out", "x"}});
    }
    add_products(layer, tokens, plan_.all());
    combined.push_back({"weights", "weights"});
    if (s_.expert_groups > 1) combined.push_back({"offsets", "offsets"});
  }
  plan_.launch(combine_, all, combined);
}

}  // namespace stretto
