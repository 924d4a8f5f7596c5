#include "stretto/model/transformer/forward_step.h"

#include <algorithm>
#include <cstring>

#include "stretto/base/errors.h"
#include "stretto/ops/ag_gemm/ag_gemm.h"
#include "stretto/ops/collectives/collectives.h"
#include "stretto/ops/embedding/embedding.h"
#include "stretto/ops/gemm/gemm.h"
#include "stretto/ops/gemm_ar/gemm_ar.h"
#include "stretto/ops/gemm_rs/gemm_rs.h"
#include "stretto/ops/norm/norm.h"

namespace stretto {
namespace {

// From this many rows on, prefill on several ranks keeps activations split by rows.
constexpr std::int64_t kSequenceParallelFrom = 16;

TensorArg of(const Matrix& m) { return {.data = m.data()}; }

template <typename Desc>
Program with_default(Program (*op)(const Desc&, const decltype(default_config(Desc{}))&),
                     const Desc& d) {
  return op(d, default_config(d));
}

}  // namespace

// What rotary embedding and attention share over the layers: one instance per window length.
struct ForwardStep::AttentionPart {
  HeadSplit split;
  std::int64_t qkv_cols, q_cols;
  Instance* rope;
  std::map<std::int64_t, Instance*> attention;  // by window
  TensorArg qkv, q, out;
};

ForwardStep::ForwardStep(Rank& rank, ModelState& state, std::int64_t bound)
    : rank_(rank),
      state_(state),
      bound_(bound),
      own_rows_(ceil_div(bound, static_cast<std::int64_t>(rank.size()))),
      hidden_(state.config->hidden_size),
      ffn_(ffn_per_rank(*state.config, rank.size())),
      vocab_(state.config->vocab_size),
      dtype_(state.spec.dtype),
      weight_dtype_(state.weights.embedding.dtype()) {
  tokens_ = Matrix(DType::kI32, bound_, 1);
  bool split_rows = rank.size() > 1 && bound_ >= kSequenceParallelFrom;
  split_rows ? build_sequence_parallel() : build_replicated();
}

ForwardStep::~ForwardStep() {
  instances_.clear();
  for (auto& buffer : symmetric_) rank_.release(*buffer);
}

Instance* ForwardStep::add_instance(Program program) {
  CompiledProgram compiled = compile(std::move(program));
  instances_.push_back(std::make_unique<Instance>(rank_, compiled.schedule, compiled.quotas));
  return instances_.back().get();
}

void ForwardStep::add_launch(Instance* instance, Rows rows, const std::vector<Binding>& bindings) {
  Launch launch{instance, {}, rows};
  const Program& program = instance->program();
  launch.args.tensors.resize(program.tensors.size());
  for (const Binding& b : bindings) {
    int t = program.find_tensor(b.tensor);
    STRETTO_CHECK(t >= 0, program.name + " has no tensor " + b.tensor);
    launch.args.tensors[static_cast<std::size_t>(t)] = b.arg;
  }
  launches_.push_back(std::move(launch));
}

TensorArg ForwardStep::local(std::int64_t rows, std::int64_t cols, DType dtype) {
  activations_.emplace_back(dtype, rows, cols);
  return of(activations_.back());
}

TensorArg ForwardStep::symmetric(const std::string& name, std::int64_t rows, std::int64_t cols) {
  symmetric_.push_back(std::make_unique<SymmetricBuffer>(
      rank_.allocate(name, dtype_, static_cast<std::size_t>(rows * cols))));
  return {.data = symmetric_.back()->at[static_cast<std::size_t>(rank_.index())],
          .symmetric = symmetric_.back().get()};
}

ForwardStep::AttentionPart ForwardStep::make_attention_part() {
  AttentionDesc d = attention_desc(*state_.config, rank_.size());
  d.dtype = dtype_;
  d.weight_dtype = weight_dtype_;
  d.m = bound_;
  d.max_tokens = state_.max_tokens;
  AttentionPart part{.split = split_heads(d)};
  part.q_cols = part.split.heads_per_rank * d.head_dim;
  part.qkv_cols = part.q_cols + 2 * part.split.kv_heads_per_rank * d.head_dim;
  part.rope = add_instance(with_default(rope, d));
  for (const LayerConfig& layer : state_.config->layers) {
    if (part.attention.contains(layer.window)) continue;
    d.window = layer.window;
    part.attention[layer.window] = add_instance(with_default(attention, d));
  }
  part.qkv = local(bound_, part.qkv_cols, dtype_);
  part.q = local(bound_, part.q_cols, dtype_);
  part.out = local(bound_, part.q_cols, dtype_);
  return part;
}

void ForwardStep::add_attention(const AttentionPart& part, std::size_t layer) {
  const LayerWeights& w = state_.weights.layers[layer];
  Binding k{"k_cache", of(state_.k_cache[layer])}, v{"v_cache", of(state_.v_cache[layer])};
  std::vector<Binding> bindings = {{"qkv", part.qkv},
                                   {"cos", of(state_.rope.cos)},
                                   {"sin", of(state_.rope.sin)},
                                   {"q", part.q},
                                   k,
                                   v};
  if (state_.config->traits->qk_norm) {
    bindings.push_back({"q_norm", of(w.q_norm)});
    bindings.push_back({"k_norm", of(w.k_norm)});
  }
  add_launch(part.rope, Rows::kAllAndPast, bindings);
  add_launch(part.attention.at(state_.config->layers[layer].window), Rows::kAllAndPast,
             {{"q", part.q}, k, v, {"out", part.out}});
}

void ForwardStep::add_head(const TensorArg& normed) {
  normed_ = static_cast<std::byte*>(normed.data);
  VocabDesc d{.dtype = dtype_,
              .weight_dtype = weight_dtype_,
              .m = std::min(kHeadRows, bound_),
              .hidden = hidden_,
              .vocab = vocab_,
              .world_size = rank_.size()};
  logits_ = Matrix(DType::kF32, d.m, vocab_);
  add_launch(add_instance(with_default(lm_head, d)), Rows::kHead,
             {{"x", normed}, {"table", of(state_.weights.head())}, {"logits", of(logits_)}});
  head_ = std::make_unique<Launch>(std::move(launches_.back()));
  launches_.pop_back();
}

// Every rank holds all rows; a row-parallel GEMM ends in an all-reduce with the residual added.
void ForwardStep::build_replicated() {
  int world = rank_.size();
  AttentionPart part = make_attention_part();
  NormDesc norm_desc{.dtype = dtype_,
                     .weight_dtype = weight_dtype_,
                     .m = bound_,
                     .hidden = hidden_,
                     .eps = state_.config->rms_norm_eps,
                     .world_size = world};
  GemmDesc gemm_desc{.world_size = world,
                     .m = bound_,
                     .k = hidden_,
                     .a_dtype = dtype_,
                     .b_dtype = weight_dtype_,
                     .c_dtype = dtype_};
  Instance* norm = add_instance(with_default(rms_norm, norm_desc));
  GemmDesc qkv_desc = gemm_desc;
  qkv_desc.n = part.qkv_cols;
  qkv_desc.bias = state_.config->qkv_bias;
  Instance* qkv = add_instance(with_default(gemm, qkv_desc));
  GemmDesc ffn_desc = gemm_desc;
  ffn_desc.n = ffn_;
  ffn_desc.swiglu = true;
  Instance* ffn = add_instance(with_default(gemm, ffn_desc));
  auto reduced_gemm = [&](std::int64_t k) {
    if (world == 1) {
      GemmDesc d = gemm_desc;
      d.n = hidden_;
      d.k = k;
      d.residual = true;
      return add_instance(with_default(gemm, d));
    }
    return add_instance(with_default(gemm_ar, GemmArDesc{.world_size = world,
                                                         .m = bound_,
                                                         .n = hidden_,
                                                         .k = k,
                                                         .a_dtype = dtype_,
                                                         .b_dtype = weight_dtype_,
                                                         .out_dtype = dtype_,
                                                         .residual = true}));
  };
  const char* reduced_out = world == 1 ? "c" : "out";
  Instance* out_gemm = reduced_gemm(part.q_cols);
  Instance* down_gemm = reduced_gemm(ffn_);
  VocabDesc embed{.dtype = dtype_,
                  .weight_dtype = weight_dtype_,
                  .m = bound_,
                  .hidden = hidden_,
                  .vocab = vocab_,
                  .world_size = world};
  Instance* lookup = add_instance(with_default(embedding, embed));

  TensorArg x = symmetric("x", bound_, hidden_), x2 = symmetric("x2", bound_, hidden_);
  TensorArg normed = local(bound_, hidden_, dtype_), act = local(bound_, ffn_, dtype_);
  add_launch(lookup, Rows::kAll,
             {{"tokens", of(tokens_)}, {"table", of(state_.weights.embedding)}, {"out", x}});
  for (std::size_t i = 0; i < state_.weights.layers.size(); ++i) {
    const LayerWeights& w = state_.weights.layers[i];
    add_launch(norm, Rows::kAll, {{"x", x}, {"weight", of(w.input_norm)}, {"out", normed}});
    std::vector<Binding> qkv_args = {{"a", normed}, {"b", of(w.qkv)}, {"c", part.qkv}};
    if (!w.qkv_bias.empty()) qkv_args.push_back({"bias", of(w.qkv_bias)});
    add_launch(qkv, Rows::kAll, qkv_args);
    add_attention(part, i);
    add_launch(out_gemm, Rows::kAll,
               {{"a", part.out}, {"b", of(w.out)}, {"residual", x}, {reduced_out, x2}});
    add_launch(norm, Rows::kAll, {{"x", x2}, {"weight", of(w.post_norm)}, {"out", normed}});
    add_launch(ffn, Rows::kAll,
               {{"a", normed}, {"b_gate", of(w.gate)}, {"b_up", of(w.up)}, {"c", act}});
    add_launch(down_gemm, Rows::kAll,
               {{"a", act}, {"b", of(w.down)}, {"residual", x2}, {reduced_out, x}});
  }
  add_launch(norm, Rows::kAll,
             {{"x", x}, {"weight", of(state_.weights.final_norm)}, {"out", normed}});
  add_head(normed);
}

// Every rank holds ceil(m / P) rows; a column-parallel GEMM gathers them, a row-parallel one ends
// in a reduce-scatter with the residual added.
void ForwardStep::build_sequence_parallel() {
  int world = rank_.size();
  AttentionPart part = make_attention_part();
  NormDesc norm_desc{.dtype = dtype_,
                     .weight_dtype = weight_dtype_,
                     .m = own_rows_,
                     .hidden = hidden_,
                     .eps = state_.config->rms_norm_eps,
                     .symmetric_output = true,
                     .world_size = world};
  Instance* norm = add_instance(with_default(rms_norm, norm_desc));
  AgGemmDesc ag{.world_size = world,
                .m = bound_,
                .k = hidden_,
                .a_dtype = dtype_,
                .b_dtype = weight_dtype_,
                .c_dtype = dtype_};
  AgGemmDesc qkv_desc = ag;
  qkv_desc.n = part.qkv_cols;
  qkv_desc.bias = state_.config->qkv_bias;
  Instance* qkv = add_instance(with_default(ag_gemm, qkv_desc));
  AgGemmDesc ffn_desc = ag;
  ffn_desc.n = ffn_;
  ffn_desc.swiglu = true;
  Instance* ffn = add_instance(with_default(ag_gemm, ffn_desc));
  GemmRsDesc rs{.world_size = world,
                .m = bound_,
                .n = hidden_,
                .k = part.q_cols,
                .a_dtype = dtype_,
                .b_dtype = weight_dtype_,
                .out_dtype = dtype_,
                .residual = true};
  Instance* out_gemm = add_instance(with_default(gemm_rs, rs));
  rs.k = ffn_;
  Instance* down_gemm = add_instance(with_default(gemm_rs, rs));
  VocabDesc embed{.dtype = dtype_,
                  .weight_dtype = weight_dtype_,
                  .m = bound_,
                  .hidden = hidden_,
                  .vocab = vocab_,
                  .sequence_parallel = true,
                  .world_size = world};
  Instance* lookup = add_instance(with_default(embedding, embed));
  Instance* gather = add_instance(with_default(
      all_gather, CollectiveDesc{.dtype = dtype_, .m = bound_, .n = hidden_, .world_size = world}));

  TensorArg x = local(own_rows_, hidden_, dtype_), x2 = local(own_rows_, hidden_, dtype_);
  TensorArg normed = symmetric("normed", own_rows_, hidden_);
  TensorArg act = local(bound_, ffn_, dtype_), all_normed = local(bound_, hidden_, dtype_);
  add_launch(lookup, Rows::kAll,
             {{"tokens", of(tokens_)}, {"table", of(state_.weights.embedding)}, {"out", x}});
  for (std::size_t i = 0; i < state_.weights.layers.size(); ++i) {
    const LayerWeights& w = state_.weights.layers[i];
    add_launch(norm, Rows::kOwn, {{"x", x}, {"weight", of(w.input_norm)}, {"out", normed}});
    std::vector<Binding> qkv_args = {{"a", normed}, {"b", of(w.qkv)}, {"c", part.qkv}};
    if (!w.qkv_bias.empty()) qkv_args.push_back({"bias", of(w.qkv_bias)});
    add_launch(qkv, Rows::kAll, qkv_args);
    add_attention(part, i);
    add_launch(out_gemm, Rows::kAll,
               {{"a", part.out}, {"b", of(w.out)}, {"residual", x}, {"out", x2}});
    add_launch(norm, Rows::kOwn, {{"x", x2}, {"weight", of(w.post_norm)}, {"out", normed}});
    add_launch(ffn, Rows::kAll,
               {{"a", normed}, {"b_gate", of(w.gate)}, {"b_up", of(w.up)}, {"c", act}});
    add_launch(down_gemm, Rows::kAll,
               {{"a", act}, {"b", of(w.down)}, {"residual", x2}, {"out", x}});
  }
  add_launch(norm, Rows::kOwn,
             {{"x", x}, {"weight", of(state_.weights.final_norm)}, {"out", normed}});
  add_launch(gather, Rows::kAll, {{"in", normed}, {"out", all_normed}});
  add_head(all_normed);
}

void ForwardStep::run(const int* tokens, std::int64_t count, std::int64_t past) {
  STRETTO_CHECK(count >= 1 && count <= bound_ && past + count <= state_.max_tokens,
                "a step outside its bucket or the cache");
  std::memcpy(tokens_.data(), tokens, static_cast<std::size_t>(count) * sizeof(int));
  std::int64_t own = ceil_div(count, static_cast<std::int64_t>(rank_.size()));
  for (Launch& l : launches_) {
    std::vector<std::int64_t>& extents = l.args.extents;
    extents.resize(l.rows == Rows::kAllAndPast ? 2 : 1);
    extents[0] = l.rows == Rows::kOwn ? own : count;
    if (l.rows == Rows::kAllAndPast) extents[1] = past;
    l.instance->launch(l.args);
  }
}

const float* ForwardStep::logits(std::int64_t first, std::int64_t count) {
  STRETTO_CHECK(count >= 1 && count <= logits_.rows() && first + count <= bound_,
                "logits outside the step");
  Launch& l = *head_;
  auto x = static_cast<std::size_t>(l.instance->program().find_tensor("x"));
  l.args.tensors[x].data = normed_ + static_cast<std::size_t>(first * hidden_) * size_bytes(dtype_);
  l.args.extents = {count};
  l.instance->launch(l.args);
  return reinterpret_cast<const float*>(logits_.data());
}

}  // namespace stretto
