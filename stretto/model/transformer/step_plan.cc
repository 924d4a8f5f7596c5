#include "stretto/model/transformer/step_plan.h"

#include <algorithm>
#include <optional>

#include "stretto/base/ceil_div.h"
#include "stretto/model/transformer/model_buffers.h"
#include "stretto/model/transformer/moe_plan.h"
#include "stretto/model/transformer/paged_plan.h"
#include "stretto/model/transformer/product_plan.h"
#include "stretto/model/transformer/step_programs.h"
#include "stretto/model/transformer/weights.h"
#include "stretto/ops/choose/fastest.h"

namespace stretto {
namespace {

// From this many rows on, steps of several ranks keep activations spread by rows where asked. On a
// GPU fewer rows take as long as the weights take to read, and are reduced while that goes on.
constexpr std::int64_t kSequenceParallelFrom = 16;
constexpr std::int64_t kSequenceParallelFromOnGpu = 128;

struct AttentionPart {
  std::int64_t qkv_cols = 0, q_cols = 0;
  PagedPlan pages;
};

class Planner {
  using Weight = ProductPlan::Weight;
  using Bindings = StepBuilder::Bindings;
  using Sizes = StepBuilder::Sizes;

 public:
  Planner(const ModelShape& shape, std::int64_t bound)
      : s_(shape),
        c_(*shape.config),
        bound_(bound),
        own_rows_(ceil_div(bound, std::int64_t{shape.world_size})),
        hidden_(c_.hidden_size),
        ffn_(ffn_per_rank(c_, shape.world_size)),
        plan_(shape, bound),
        products_(shape, plan_) {}

  ModelStep run() {
    std::int64_t from =
        s_.target == Target::kCuda ? kSequenceParallelFromOnGpu : kSequenceParallelFrom;
    plan_.buffer(step_buffer::kTokens, DType::kI32, {bound_, 1}, step::BufferKind::kInput);
    if (s_.chosen > 0) {
      plan_.buffer(step_buffer::kSources, DType::kI32, {bound_, 1}, step::BufferKind::kInput);
    }
    spreads_attention_ = s_.has_whole_attention() && bound_ >= from;
    spreads_attention_ || s_.shares_experts() ? sequence_parallel() : replicated();
    return plan_.finish();
  }

 private:
  template <typename Desc>
  Program product(const Desc& d) const {
    return chooses(d.m) ? fastest_program(d, *s_.machine) : step_program(d, s_.target);
  }
  bool chooses(std::int64_t m) const { return s_.machine != nullptr && m > kMostRowsOfDefaults; }

  int add_program(Program program) { return plan_.program(std::move(program)); }
  void local(const char* name, std::int64_t rows, std::int64_t cols) {
    plan_.buffer(name, s_.dtype, {rows, cols});
  }
  void symmetric(const char* name, std::int64_t rows, std::int64_t cols) {
    plan_.symmetric(name, s_.dtype, {rows, cols});
  }
  void add(int program, Sizes sizes, const Bindings& bindings) {
    plan_.launch(program, std::move(sizes), bindings);
  }

  AttentionPart attention_part() {
    HeadSplit split = split_heads(attention_desc(c_, s_.world_size));
    const std::int64_t q_cols = split.heads_per_rank * c_.head_dim;
    const std::int64_t qkv_cols = q_cols + 2 * split.kv_heads_per_rank * c_.head_dim;
    spreads_attention_ ? symmetric("qkv", bound_, qkv_cols) : local("qkv", bound_, qkv_cols);
    return {.qkv_cols = qkv_cols, .q_cols = q_cols, .pages = PagedPlan(s_, plan_)};
  }

  void add_attention(const AttentionPart& part, std::int64_t layer) {
    Bindings bindings = {{"qkv", "qkv"}, {"cos", "cos"}, {"sin", "sin"}};
    if (c_.traits->qk_norm) {
      bindings.push_back({"q_norm", layer_buffer(layer, "q_norm")});
      bindings.push_back({"k_norm", layer_buffer(layer, "k_norm")});
    }
    part.pages.add(layer, std::move(bindings));
  }

  Bindings qkv_bindings(std::int64_t layer) const {
    auto w = [&](const char* own, const char* whole) {
      return layer_buffer(layer, spreads_attention_ ? whole : own);
    };
    Bindings out = {{"c", "qkv"}};
    products_.bind_rows("normed", out);
    products_.bind_weight(Weight::kOnly, w("qkv", "whole_qkv"), out);
    if (c_.qkv_bias) out.push_back({"bias", w("qkv_bias", "whole_qkv_bias")});
    return out;
  }

  // The products around attention of a step whose rows are split. Of those with all of attention's
  // weights, the first sends columns to the ranks of their heads, the second takes them back.
  struct Projections {
    int qkv = 0, out = 0;
  };
  Projections projections(const AttentionPart& part) {
    std::int64_t ranks = s_.world_size;
    if (!spreads_attention_) {
      auto qkv = hidden_desc<AgGemmDesc>();
      qkv.n = part.qkv_cols;
      qkv.bias = c_.qkv_bias;
      return {add_program(product(qkv)),
              add_program(product(summed_desc<GemmRsDesc>(part.q_cols)))};
    }
    UlyssesDesc qkv{.world_size = s_.world_size,
                    .m = bound_,
                    .n = ranks * part.qkv_cols,
                    .k = hidden_,
                    .dtype = s_.dtype,
                    .weight_dtype = s_.weight_dtype,
                    .bias = c_.qkv_bias};
    UlyssesDesc out = qkv;
    out.n = hidden_;
    out.k = ranks * part.q_cols;
    out.bias = false;
    out.residual = true;
    if (chooses(bound_)) {
      return {add_program(fastest_gemm_a2a(qkv, *s_.machine)),
              add_program(fastest_a2a_gemm(out, *s_.machine))};
    }
    return {add_program(gemm_a2a_program(qkv, s_.target)),
            add_program(a2a_gemm_program(out, s_.target))};
  }
  void add_out(int program, std::int64_t layer) {
    const char* sum = with_bias(c_.out_bias, plan_.own(), "x", layer_buffer(layer, "out_bias"));
    add_product(program, "attended", layer_buffer(layer, spreads_attention_ ? "whole_out" : "out"),
                {{"residual", sum}, {spreads_attention_ ? "c" : "out", "x2"}});
  }
  // A product of all rows that `rows` has, quantised before it where weights are.
  void add_product(int program, const char* rows, const std::string& weight, Bindings others) {
    products_.quantize(rows, plan_.all());
    products_.bind_rows(rows, others);
    products_.bind_weight(Weight::kOnly, weight, others);
    add(program, plan_.all(), std::move(others));
  }

  // Of a product of hidden rows: GemmDesc, or where it gathers them AgGemmDesc.
  template <typename Desc>
  Desc hidden_desc() const {
    Desc d{.world_size = s_.world_size, .m = bound_, .k = hidden_, .c_dtype = s_.dtype};
    products_.set_factors(d);
    return d;
  }
  // Of a product that is summed over the ranks: GemmRsDesc, or GemmArDesc.
  template <typename Desc>
  Desc summed_desc(std::int64_t k) const {
    Desc d{.world_size = s_.world_size,
           .m = bound_,
           .n = hidden_,
           .k = k,
           .out_dtype = s_.dtype,
           .residual = true};
    products_.set_factors(d);
    return d;
  }

  Bindings ffn_bindings(std::int64_t layer) const {
    auto w = [layer](const char* part) { return layer_buffer(layer, part); };
    Bindings out = {{"c", "act"}};
    products_.bind_rows("normed", out);
    products_.bind_weight(Weight::kGate, w("gate"), out);
    products_.bind_weight(Weight::kUp, w("up"), out);
    if (c_.mlp_bias) {
      out.push_back({"bias_gate", w("gate_bias")});
      out.push_back({"bias_up", w("up_bias")});
    }
    return out;
  }

  bool is_moe(std::int64_t layer) const { return c_.layers[static_cast<std::size_t>(layer)].moe; }
  bool has_dense_layers() const {
    return !std::all_of(c_.layers.begin(), c_.layers.end(),
                        [](const LayerConfig& layer) { return layer.moe; });
  }

  std::optional<MoePlan> moe_plan(bool sequence_parallel) {
    if (!c_.moe) return std::nullopt;
    return std::optional<MoePlan>(std::in_place, s_, sequence_parallel, products_, plan_);
  }

  // Of all rows; those that are normalised differ by the step's shape.
  void prepare_products(const AttentionPart& part) {
    products_.prepare({.buffer = "attended", .tokens = bound_, .cols = part.q_cols});
    if (!has_dense_layers()) return;
    products_.prepare({.buffer = "act", .tokens = bound_, .cols = ffn_});
  }

  // A bias after a row-parallel GEMM is added once, to what the sum of the ranks is added to.
  void prepare_biases(std::int64_t rows) {
    if (!c_.out_bias && !c_.mlp_bias) return;
    add_row_ = add_program(add_row_program(norm_desc(rows), s_.target));
    local("biased", rows, hidden_);
  }
  // The buffer to add: `x` as it is, or with the bias.
  const char* with_bias(bool has_bias, Sizes rows, const char* x, const std::string& bias) {
    if (!has_bias) return x;
    add(add_row_, std::move(rows), {{"x", x}, {"row", bias}, {"out", "biased"}});
    return "biased";
  }

  VocabDesc vocab_desc(std::int64_t rows) const {
    return {.dtype = s_.dtype,
            .weight_dtype = s_.weight_dtype,
            .m = rows,
            .hidden = hidden_,
            .vocab = c_.vocab_size,
            .world_size = s_.world_size};
  }

  Program lookup_program(bool sequence_parallel) const {
    VocabDesc d = vocab_desc(bound_);
    d.sequence_parallel = sequence_parallel;
    d.chosen = s_.chosen;
    return embedding_program(d, s_.target);
  }
  Bindings lookup_bindings() const {
    Bindings out = {{"tokens", step_buffer::kTokens}, {"table", "embedding"}, {"out", "x"}};
    if (s_.chosen == 0) return out;
    out.push_back({"sources", step_buffer::kSources});
    out.push_back({"chosen", kChosenBuffer});
    return out;
  }

  NormDesc norm_desc(std::int64_t rows) const {
    return {.dtype = s_.dtype,
            .weight_dtype = s_.weight_dtype,
            .m = rows,
            .hidden = hidden_,
            .eps = c_.rms_norm_eps,
            .world_size = s_.world_size};
  }

  void add_head() {
    VocabDesc d = vocab_desc(plan_.head_rows());
    using Kind = step::BufferKind;
    plan_.buffer(step_buffer::kWanted, s_.dtype, {d.m, hidden_}, Kind::kInput);
    plan_.symmetric(step_buffer::kLogits, DType::kF32, {d.m, d.vocab}, false, Kind::kOutput);
    plan_.head(add_program(lm_head_program(d, s_.target)),
               {{"table", c_.tie_word_embeddings ? "embedding" : "lm_head"},
                {"logits", step_buffer::kLogits}});
  }

  // Every rank holds all rows; a row-parallel GEMM ends in an all-reduce with the residual added.
  void replicated() {
    AttentionPart part = attention_part();
    int norm = add_program(step_program(norm_desc(bound_), s_.target));
    const auto gemm_desc = hidden_desc<GemmDesc>();
    GemmDesc qkv_desc = gemm_desc;
    qkv_desc.n = part.qkv_cols;
    qkv_desc.bias = c_.qkv_bias;
    int qkv = add_program(product(qkv_desc));
    GemmDesc ffn_desc = gemm_desc;
    ffn_desc.n = ffn_;
    ffn_desc.swiglu = true;
    ffn_desc.bias = c_.mlp_bias;
    int ffn = has_dense_layers() ? add_program(product(ffn_desc)) : 0;
    const bool sums_over_ranks = s_.world_size > 1;
    auto reduced_gemm = [&](std::int64_t k) {
      if (sums_over_ranks) return add_program(step_program(summed_desc<GemmArDesc>(k), s_.target));
      GemmDesc d = gemm_desc;
      d.n = hidden_;
      d.k = k;
      d.residual = true;
      return add_program(product(d));
    };
    const char* out = sums_over_ranks ? "out" : "c";
    int out_gemm = reduced_gemm(part.q_cols);
    int down_gemm = has_dense_layers() ? reduced_gemm(ffn_) : 0;
    std::optional<MoePlan> moe = moe_plan(false);
    int lookup = add_program(lookup_program(false));

    symmetric("x", bound_, hidden_);
    symmetric("x2", bound_, hidden_);
    local("normed", bound_, hidden_);
    local(step_buffer::kHidden, bound_, hidden_);
    if (has_dense_layers()) local("act", bound_, ffn_);
    products_.prepare({.buffer = "normed", .tokens = bound_, .cols = hidden_});
    prepare_products(part);
    prepare_biases(bound_);
    add(lookup, plan_.all(), lookup_bindings());
    for (std::int64_t i = 0; i < c_.num_layers(); ++i) {
      auto w = [i](const char* part) { return layer_buffer(i, part); };
      add(norm, plan_.all(), {{"x", "x"}, {"weight", w("input_norm")}, {"out", "normed"}});
      products_.quantize("normed", plan_.all());
      add(qkv, plan_.all(), qkv_bindings(i));
      add_attention(part, i);
      const char* attention_sum = with_bias(c_.out_bias, plan_.all(), "x", w("out_bias"));
      add_product(out_gemm, "attended", w("out"), {{"residual", attention_sum}, {out, "x2"}});
      add(norm, plan_.all(), {{"x", "x2"}, {"weight", w("post_norm")}, {"out", "normed"}});
      if (is_moe(i)) {
        moe->add(i, "normed");
        continue;
      }
      products_.quantize("normed", plan_.all());
      add(ffn, plan_.all(), ffn_bindings(i));
      const char* mlp_sum = with_bias(c_.mlp_bias, plan_.all(), "x2", w("down_bias"));
      add_product(down_gemm, "act", w("down"), {{"residual", mlp_sum}, {out, "x"}});
    }
    add(norm, plan_.all(), {{"x", "x"}, {"weight", "final_norm"}, {"out", step_buffer::kHidden}});
    add_head();
  }

  // Every rank holds ceil(m / P) rows; a column-parallel GEMM gathers them, a row-parallel one ends
  // in a reduce-scatter with the residual added. Where attention's weights are whole, its heads
  // come together and go apart instead.
  void sequence_parallel() {
    AttentionPart part = attention_part();
    NormDesc own_norm = norm_desc(own_rows_);
    own_norm.symmetric_output = true;
    int norm = add_program(step_program(own_norm, s_.target));
    Projections around = projections(part);
    auto ffn_desc = hidden_desc<AgGemmDesc>();
    ffn_desc.n = ffn_;
    ffn_desc.swiglu = true;
    ffn_desc.bias = c_.mlp_bias;
    int ffn = has_dense_layers() ? add_program(product(ffn_desc)) : 0;
    int down_gemm = has_dense_layers() ? add_program(product(summed_desc<GemmRsDesc>(ffn_))) : 0;
    std::optional<MoePlan> moe = moe_plan(true);
    int lookup = add_program(lookup_program(true));
    CollectiveDesc gathered{
        .dtype = s_.dtype, .m = bound_, .n = hidden_, .world_size = s_.world_size};
    int gather = add_program(step_program(gathered, s_.target));

    local("x", own_rows_, hidden_);
    local("x2", own_rows_, hidden_);
    symmetric("normed", own_rows_, hidden_);
    if (has_dense_layers()) local("act", bound_, ffn_);
    if (moe && !moe->takes_own_rows()) local("all_normed", bound_, hidden_);
    local(step_buffer::kHidden, bound_, hidden_);
    products_.prepare(
        {.buffer = "normed", .tokens = own_rows_, .cols = hidden_, .symmetric = true});
    prepare_products(part);
    prepare_biases(own_rows_);
    add(lookup, plan_.all(), lookup_bindings());
    for (std::int64_t i = 0; i < c_.num_layers(); ++i) {
      auto w = [i](const char* part) { return layer_buffer(i, part); };
      add(norm, plan_.own(), {{"x", "x"}, {"weight", w("input_norm")}, {"out", "normed"}});
      products_.quantize("normed", plan_.own());
      add(around.qkv, plan_.all(), qkv_bindings(i));
      add_attention(part, i);
      add_out(around.out, i);
      add(norm, plan_.own(), {{"x", "x2"}, {"weight", w("post_norm")}, {"out", "normed"}});
      if (is_moe(i)) {
        bool own = moe->takes_own_rows();
        if (!own) add(gather, plan_.all(), {{"in", "normed"}, {"out", "all_normed"}});
        moe->add(i, own ? "normed" : "all_normed");
        continue;
      }
      products_.quantize("normed", plan_.own());
      add(ffn, plan_.all(), ffn_bindings(i));
      const char* mlp_sum = with_bias(c_.mlp_bias, plan_.own(), "x2", w("down_bias"));
      add_product(down_gemm, "act", w("down"), {{"residual", mlp_sum}, {"out", "x"}});
    }
    add(norm, plan_.own(), {{"x", "x"}, {"weight", "final_norm"}, {"out", "normed"}});
    add(gather, plan_.all(), {{"in", "normed"}, {"out", step_buffer::kHidden}});
    add_head();
  }

  const ModelShape& s_;
  const ModelConfig& c_;
  std::int64_t bound_, own_rows_, hidden_, ffn_;
  bool spreads_attention_ = false;  // rows stay split through its products
  int add_row_ = 0;
  StepBuilder plan_;
  ProductPlan products_;
};

}  // namespace

ModelStep plan_step(const ModelShape& shape, std::int64_t bound) {
  return Planner(shape, bound).run();
}

}  // namespace stretto
