#include "stretto/model/transformer/step_plan.h"

#include <algorithm>
#include <optional>

#include "stretto/base/ceil_div.h"
#include "stretto/model/transformer/moe_plan.h"
#include "stretto/model/transformer/paged_plan.h"
#include "stretto/model/transformer/product_plan.h"
#include "stretto/model/transformer/step_programs.h"
#include "stretto/model/transformer/weights.h"
#include "stretto/ops/choose/fastest.h"

namespace stretto {
namespace {

constexpr std::int64_t kHeadRows = 16;
// On GPUs, where any row may be asked for and the head's weights are read once
// for all of them.
constexpr std::int64_t kHeadRowsOnGpu = 256;

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

 public:
  Planner(const ModelShape& shape, std::int64_t bound)
      : s_(shape),
        c_(*shape.config),
        bound_(bound),
        own_rows_(ceil_div(bound, std::int64_t{shape.world_size})),
        hidden_(c_.hidden_size),
        ffn_(ffn_per_rank(c_, shape.world_size)),
        products_(shape, plan_) {
    plan_.bound = bound;
  }

  StepPlan run() {
    std::int64_t from =
        s_.target == Target::kCuda ? kSequenceParallelFromOnGpu : kSequenceParallelFrom;
    add_buffer({.name = StepPlan::kTokens,
                .dtype = DType::kI32,
                .rows = bound_,
                .cols = 1,
                .input = true});
    spreads_attention_ = s_.has_whole_attention() && bound_ >= from;
    spreads_attention_ || s_.shares_experts() ? sequence_parallel() : replicated();
    return std::move(plan_);
  }

 private:
  template <typename Desc>
  Program product(const Desc& d) const {
    return chooses(d.m) ? fastest_program(d, *s_.machine) : step_program(d, s_.target);
  }
  bool chooses(std::int64_t m) const { return s_.machine != nullptr && m > kMostRowsOfDefaults; }

  std::size_t add_program(Program program) {
    plan_.programs.push_back(std::move(program));
    return plan_.programs.size() - 1;
  }
  void add_buffer(PlanBuffer buffer) { plan_.buffers.push_back(std::move(buffer)); }
  void local(const char* name, std::int64_t rows, std::int64_t cols) {
    add_buffer({.name = name, .dtype = s_.dtype, .rows = rows, .cols = cols});
  }
  void symmetric(const char* name, std::int64_t rows, std::int64_t cols) {
    add_buffer({.name = name, .dtype = s_.dtype, .rows = rows, .cols = cols, .symmetric = true});
  }
  void add(std::size_t program, Rows rows, std::vector<Binding> bindings) {
    plan_.launches.push_back({program, rows, std::move(bindings), {}});
  }

  AttentionPart attention_part() {
    HeadSplit split = split_heads(attention_desc(c_, s_.world_size));
    const std::int64_t q_cols = split.heads_per_rank * c_.head_dim;
    const std::int64_t qkv_cols = q_cols + 2 * split.kv_heads_per_rank * c_.head_dim;
    spreads_attention_ ? symmetric("qkv", bound_, qkv_cols) : local("qkv", bound_, qkv_cols);
    return {.qkv_cols = qkv_cols, .q_cols = q_cols, .pages = PagedPlan(s_, plan_)};
  }

  void add_attention(const AttentionPart& part, std::int64_t layer) {
    std::vector<Binding> bindings = {{"qkv", "qkv"}, {"cos", "cos"}, {"sin", "sin"}};
    if (c_.traits->qk_norm) {
      bindings.push_back({"q_norm", layer_buffer(layer, "q_norm")});
      bindings.push_back({"k_norm", layer_buffer(layer, "k_norm")});
    }
    part.pages.add(layer, std::move(bindings));
  }

  std::vector<Binding> qkv_bindings(std::int64_t layer) const {
    auto w = [&](const char* own, const char* whole) {
      return layer_buffer(layer, spreads_attention_ ? whole : own);
    };
    std::vector<Binding> out = {{"c", "qkv"}};
    products_.bind_rows("normed", out);
    products_.bind_weight(Weight::kOnly, w("qkv", "whole_qkv"), out);
    if (c_.qkv_bias) out.push_back({"bias", w("qkv_bias", "whole_qkv_bias")});
    return out;
  }

  // The products around attention of a step whose rows are split. Of those with all of attention's
  // weights, the first sends columns to the ranks of their heads, the second takes them back.
  struct Projections {
    std::size_t qkv = 0, out = 0;
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
  void add_out(std::size_t program, std::int64_t layer) {
    const char* sum = with_bias(c_.out_bias, Rows::kOwn, "x", layer_buffer(layer, "out_bias"));
    add_product(program, "attended", layer_buffer(layer, spreads_attention_ ? "whole_out" : "out"),
                {{"residual", sum}, {spreads_attention_ ? "c" : "out", "x2"}});
  }
  // A product of all rows that `rows` has, quantised before it where weights are.
  void add_product(std::size_t program, const char* rows, const std::string& weight,
                   std::vector<Binding> others) {
    products_.quantize(rows, Rows::kAll);
    products_.bind_rows(rows, others);
    products_.bind_weight(Weight::kOnly, weight, others);
    add(program, Rows::kAll, std::move(others));
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

  std::vector<Binding> ffn_bindings(std::int64_t layer) const {
    auto w = [layer](const char* part) { return layer_buffer(layer, part); };
    std::vector<Binding> out = {{"c", "act"}};
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
  const char* with_bias(bool has_bias, Rows rows, const char* x, const std::string& bias) {
    if (!has_bias) return x;
    add(add_row_, rows, {{"x", x}, {"row", bias}, {"out", "biased"}});
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

  NormDesc norm_desc(std::int64_t rows) const {
    return {.dtype = s_.dtype,
            .weight_dtype = s_.weight_dtype,
            .m = rows,
            .hidden = hidden_,
            .eps = c_.rms_norm_eps,
            .world_size = s_.world_size};
  }

  void add_head(const char* input) {
    VocabDesc d =
        vocab_desc(std::min(s_.target == Target::kCuda ? kHeadRowsOnGpu : kHeadRows, bound_));
    add_buffer({.name = StepPlan::kLogits,
                .dtype = DType::kF32,
                .rows = d.m,
                .cols = d.vocab,
                .symmetric = true});
    plan_.head = {.program = add_program(lm_head_program(d, s_.target)),
                  .bindings = {{"x", StepPlan::kWanted},
                               {"table", c_.tie_word_embeddings ? "embedding" : "lm_head"},
                               {"logits", StepPlan::kLogits}}};
    plan_.head_input = input;
    plan_.head_rows = d.m;
    local(StepPlan::kWanted, d.m, hidden_);
  }

  // Every rank holds all rows; a row-parallel GEMM ends in an all-reduce with the residual added.
  void replicated() {
    AttentionPart part = attention_part();
    std::size_t norm = add_program(step_program(norm_desc(bound_), s_.target));
    const auto gemm_desc = hidden_desc<GemmDesc>();
    GemmDesc qkv_desc = gemm_desc;
    qkv_desc.n = part.qkv_cols;
    qkv_desc.bias = c_.qkv_bias;
    std::size_t qkv = add_program(product(qkv_desc));
    GemmDesc ffn_desc = gemm_desc;
    ffn_desc.n = ffn_;
    ffn_desc.swiglu = true;
    ffn_desc.bias = c_.mlp_bias;
    std::size_t ffn = has_dense_layers() ? add_program(product(ffn_desc)) : 0;
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
    std::size_t out_gemm = reduced_gemm(part.q_cols);
    std::size_t down_gemm = has_dense_layers() ? reduced_gemm(ffn_) : 0;
    std::optional<MoePlan> moe = moe_plan(false);
    std::size_t lookup = add_program(embedding_program(vocab_desc(bound_), s_.target));

    symmetric("x", bound_, hidden_);
    symmetric("x2", bound_, hidden_);
    local("normed", bound_, hidden_);
    if (has_dense_layers()) local("act", bound_, ffn_);
    products_.prepare({.buffer = "normed", .tokens = bound_, .cols = hidden_});
    prepare_products(part);
    prepare_biases(bound_);
    add(lookup, Rows::kAll, {{"tokens", StepPlan::kTokens}, {"table", "embedding"}, {"out", "x"}});
    for (std::int64_t i = 0; i < c_.num_layers(); ++i) {
      auto w = [i](const char* part) { return layer_buffer(i, part); };
      add(norm, Rows::kAll, {{"x", "x"}, {"weight", w("input_norm")}, {"out", "normed"}});
      products_.quantize("normed", Rows::kAll);
      add(qkv, Rows::kAll, qkv_bindings(i));
      add_attention(part, i);
      const char* attention_sum = with_bias(c_.out_bias, Rows::kAll, "x", w("out_bias"));
      add_product(out_gemm, "attended", w("out"), {{"residual", attention_sum}, {out, "x2"}});
      add(norm, Rows::kAll, {{"x", "x2"}, {"weight", w("post_norm")}, {"out", "normed"}});
      if (is_moe(i)) {
        moe->add(i, "normed");
        continue;
      }
      products_.quantize("normed", Rows::kAll);
      add(ffn, Rows::kAll, ffn_bindings(i));
      const char* mlp_sum = with_bias(c_.mlp_bias, Rows::kAll, "x2", w("down_bias"));
      add_product(down_gemm, "act", w("down"), {{"residual", mlp_sum}, {out, "x"}});
    }
    add(norm, Rows::kAll, {{"x", "x"}, {"weight", "final_norm"}, {"out", "normed"}});
    add_head("normed");
  }

  // Every rank holds ceil(m / P) rows; a column-parallel GEMM gathers them, a row-parallel one ends
  // in a reduce-scatter with the residual added. Where attention's weights are whole, its heads
  // come together and go apart instead.
  void sequence_parallel() {
    AttentionPart part = attention_part();
    NormDesc own_norm = norm_desc(own_rows_);
    own_norm.symmetric_output = true;
    std::size_t norm = add_program(step_program(own_norm, s_.target));
    Projections around = projections(part);
    auto ffn_desc = hidden_desc<AgGemmDesc>();
    ffn_desc.n = ffn_;
    ffn_desc.swiglu = true;
    ffn_desc.bias = c_.mlp_bias;
    std::size_t ffn = has_dense_layers() ? add_program(product(ffn_desc)) : 0;
    std::size_t down_gemm =
        has_dense_layers() ? add_program(product(summed_desc<GemmRsDesc>(ffn_))) : 0;
    std::optional<MoePlan> moe = moe_plan(true);
    VocabDesc embed = vocab_desc(bound_);
    embed.sequence_parallel = true;
    std::size_t lookup = add_program(embedding_program(embed, s_.target));
    CollectiveDesc gathered{
        .dtype = s_.dtype, .m = bound_, .n = hidden_, .world_size = s_.world_size};
    std::size_t gather = add_program(step_program(gathered, s_.target));

    local("x", own_rows_, hidden_);
    local("x2", own_rows_, hidden_);
    symmetric("normed", own_rows_, hidden_);
    if (has_dense_layers()) local("act", bound_, ffn_);
    local("all_normed", bound_, hidden_);
    products_.prepare(
        {.buffer = "normed", .tokens = own_rows_, .cols = hidden_, .symmetric = true});
    prepare_products(part);
    prepare_biases(own_rows_);
    add(lookup, Rows::kAll, {{"tokens", StepPlan::kTokens}, {"table", "embedding"}, {"out", "x"}});
    for (std::int64_t i = 0; i < c_.num_layers(); ++i) {
      auto w = [i](const char* part) { return layer_buffer(i, part); };
      add(norm, Rows::kOwn, {{"x", "x"}, {"weight", w("input_norm")}, {"out", "normed"}});
      products_.quantize("normed", Rows::kOwn);
      add(around.qkv, Rows::kAll, qkv_bindings(i));
      add_attention(part, i);
      add_out(around.out, i);
      add(norm, Rows::kOwn, {{"x", "x2"}, {"weight", w("post_norm")}, {"out", "normed"}});
      if (is_moe(i)) {
        bool own = moe->takes_own_rows();
        if (!own) add(gather, Rows::kAll, {{"in", "normed"}, {"out", "all_normed"}});
        moe->add(i, own ? "normed" : "all_normed");
        continue;
      }
      products_.quantize("normed", Rows::kOwn);
      add(ffn, Rows::kAll, ffn_bindings(i));
      const char* mlp_sum = with_bias(c_.mlp_bias, Rows::kOwn, "x2", w("down_bias"));
      add_product(down_gemm, "act", w("down"), {{"residual", mlp_sum}, {"out", "x"}});
    }
    add(norm, Rows::kOwn, {{"x", "x"}, {"weight", "final_norm"}, {"out", "normed"}});
    add(gather, Rows::kAll, {{"in", "normed"}, {"out", "all_normed"}});
    add_head("all_normed");
  }

  const ModelShape& s_;
  const ModelConfig& c_;
  std::int64_t bound_, own_rows_, hidden_, ffn_;
  bool spreads_attention_ = false;  // rows stay split through its products
  std::size_t add_row_ = 0;
  StepPlan plan_;
  ProductPlan products_;
};

}  // namespace

StepPlan plan_step(const ModelShape& shape, std::int64_t bound) {
  return Planner(shape, bound).run();
}

}  // namespace stretto
