// The mixture of experts that config.json describes.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/base/printable.h"
#include "stretto/model/checkpoint/config_parts.h"

namespace stretto {
namespace {

// Fields that say something about experts are read, or change training alone; another one would
// change what the model computes without a word.
void refuse_unknown_moe_fields(const Json& object, const JsonFields& fields) {
  constexpr std::string_view kKnown[] = {"num_experts",          "num_local_experts",
                                         "num_experts_per_tok",  "moe_intermediate_size",
                                         "decoder_sparse_step",  "mlp_only_layers",
                                         "norm_topk_prob",       "scoring_func",
                                         "topk_method",          "n_group",
                                         "topk_group",           "routed_scaling_factor",
                                         "output_router_logits", "router_aux_loss_coef",
                                         "router_jitter_noise",  "experts_implementation"};
  constexpr std::string_view kWords[] = {"expert", "moe",     "rout",   "topk",
                                         "scor",   "n_group", "sparse", "first_k_dense"};
  for (const auto& item : object.items()) {
    const std::string& key = item.key();
    const Json& value = item.value();
    bool about = std::any_of(std::begin(kWords), std::end(kWords), [&](std::string_view word) {
      return key.find(word) != std::string::npos;
    });
    bool known = std::find(std::begin(kKnown), std::end(kKnown), key) != std::end(kKnown);
    bool off = value.is_null() || value == false || value == 0;
    if (about && !known && !off) {
      fields.fail(printable(key).c_str(), "not supported in a mixture of experts of this family");
    }
  }
}

// The groups that a token's experts are limited to.
void read_expert_groups(const JsonFields& fields, const std::string& method, MoeConfig& moe) {
  moe.num_groups = fields.optional_integer("n_group", 1, moe.num_experts).value_or(1);
  moe.groups_per_token =
      fields.optional_integer("topk_group", 1, moe.num_groups).value_or(moe.num_groups);
  if (moe.groups_per_token == moe.num_groups) {
    moe.num_groups = moe.groups_per_token = 1;
    return;
  }
  if (method == "greedy") {
    fields.fail("topk_method", fmt::format("'greedy' chooses among all experts, but topk_group is "
                                           "{} of n_group {}",
                                           moe.groups_per_token, moe.num_groups));
  }
  std::int64_t of_group = moe.num_experts / moe.num_groups;
  if (moe.num_experts % moe.num_groups != 0 || of_group < (moe.groups_by_best_two ? 2 : 1)) {
    fields.fail("n_group",
                fmt::format("{} groups cannot share {} experts", moe.num_groups, moe.num_experts));
  }
  if (std::int64_t most = moe.groups_per_token * of_group; moe.experts_per_token > most) {
    fields.fail("topk_group", fmt::format("{} groups have {} experts, num_experts_per_tok is {}",
                                          moe.groups_per_token, most, moe.experts_per_token));
  }
}

// One of `allowed`, or the first of them where the field is absent.
std::string choice(const JsonFields& fields, const char* field,
                   const std::vector<std::string>& allowed) {
  std::string text = fields.optional_text(field).value_or(allowed.front());
  if (std::find(allowed.begin(), allowed.end(), text) != allowed.end()) return text;
  fields.fail(field, fmt::format("'{}' is not supported; supported: {}", printable(text),
                                 fmt::join(allowed, ", ")));
}

void read_routing(const JsonFields& fields, bool normalizes, MoeConfig& moe) {
  constexpr double kMostScale = 1e3;
  moe.normalize_weights = fields.optional_boolean("norm_topk_prob").value_or(normalizes);
  moe.sigmoid_scores = choice(fields, "scoring_func", {"softmax", "sigmoid"}) == "sigmoid";
  std::string method =
      choice(fields, "topk_method", {"greedy", "group_limited_greedy", "noaux_tc"});
  moe.choice_bias = moe.groups_by_best_two = method == "noaux_tc";
  moe.weight_scale = fields.optional_number("routed_scaling_factor", 0, kMostScale).value_or(1);
  read_expert_groups(fields, method, moe);
}

}  // namespace

void read_moe(const Json& object, const JsonFields& fields, ModelConfig& config) {
  if (!config.traits->moe) return;
  refuse_unknown_moe_fields(object, fields);
  MoeConfig moe;
  const auto told = [&](const char* field) {
    return Source<std::int64_t>{fmt::format("{}: {}", fields.where(), field),
                                fields.optional_integer(field, 1, kMaxExperts)};
  };
  auto experts = agreed<std::int64_t>({told("num_experts"), told("num_local_experts")});
  if (!experts) fields.fail("num_experts", "missing (also spelled num_local_experts)");
  moe.num_experts = *experts;
  moe.experts_per_token = fields.integer("num_experts_per_tok", 1, moe.num_experts);
  bool qwen = config.traits->family == Family::kQwen3Moe;
  moe.intermediate_size =
      qwen ? fields.integer("moe_intermediate_size", 1, kMaxWidth) : config.intermediate_size;
  read_routing(fields, !qwen, moe);
  std::int64_t step = 1;
  std::vector<std::int64_t> dense;
  if (qwen) {
    step = fields.optional_integer("decoder_sparse_step", 1, kMaxLayers).value_or(1);
    dense = fields.integers("mlp_only_layers", 0, config.num_layers() - 1);
  }
  for (std::int64_t i = 0; i < config.num_layers(); ++i) {
    bool listed = std::find(dense.begin(), dense.end(), i) != dense.end();
    config.layers[static_cast<std::size_t>(i)].moe = !listed && (i + 1) % step == 0;
  }
  config.moe = moe;
}

}  // namespace stretto
