#include "stretto/model/transformer/paged_plan.h"

#include "stretto/model/transformer/step_programs.h"
#include "stretto/model/transformer/weights.h"

namespace stretto {
namespace {

PagedWriteDesc write_desc(const ModelShape& s, std::int64_t bound) {
  AttentionDesc all = attention_desc(*s.config, s.world_size);
  return {.dtype = s.dtype,
          .fp8 = s.paged.fp8,
          .m = bound,
          .page = s.paged.page,
          .num_pages = s.paged.num_pages,
          .num_heads = all.num_heads,
          .num_kv_heads = all.num_kv_heads,
          .head_dim = all.head_dim,
          .world_size = all.world_size};
}

PagedDecodeDesc decode_desc(const ModelShape& s, const PagedWriteDesc& write) {
  return {.dtype = s.dtype,
          .m = s.paged.sequences,
          .page = s.paged.page,
          .num_pages = s.paged.num_pages,
          .max_tokens = s.max_tokens,
          .num_heads = split_heads(attention_desc(*s.config, s.world_size)).heads_per_rank,
          .num_kv_heads = cached_heads(write),
          .head_dim = write.head_dim,
          .fp8 = s.paged.fp8,
          .world_size = write.world_size};
}

}  // namespace

bool has_prompt_order(const ModelShape& shape) {
  PagedDecodeDesc d = decode_desc(shape, write_desc(shape, 1));
  d.m = 1;
  return prompt_order_config(d, shape.target).has_value();
}

PagedPlan::PagedPlan(const ModelShape& shape, StepBuilder& plan) : s_(shape), plan_(plan) {
  const ModelConfig& c = *s_.config;
  const PagedCache& cache = s_.paged;
  AttentionDesc rope = attention_desc(c, s_.world_size);
  rope.dtype = s_.dtype;
  rope.weight_dtype = s_.weight_dtype;
  rope.m = rope.max_tokens = plan_.bound();  // into buffers of rows, as if these were a cache
  const PagedWriteDesc write = write_desc(s_, plan_.bound());
  PagedDecodeDesc decodes = decode_desc(s_, write);
  HeadSplit split = split_heads(rope);
  PackedAttentionDesc prompts{.dtype = s_.dtype,
                              .m = plan_.bound(),
                              .sequences = s_.prompt_sequences(plan_.bound()),
                              .page = cache.page,
                              .num_pages = cache.num_pages,
                              .max_tokens = s_.max_tokens,
                              .num_heads = decodes.num_heads,
                              .num_kv_heads = decodes.num_kv_heads,
                              .head_dim = rope.head_dim,
                              .fp8 = cache.fp8,
                              .behind_others = shares_rows(),
                              .world_size = rope.world_size};
  rope_ = plan_.program(rope_program(rope, s_.target));
  write_ = plan_.program(paged_write(write, default_config(write, s_.target)));
  for (const LayerConfig& layer : c.layers) {
    prompts.window = decodes.window = layer.window;
    if (has_prompts() && !prompts_.contains(layer.window)) {
      prompts_[layer.window] =
          plan_.program(paged_attention_program(prompts, s_.target, cache.first_run));
    }
    if (has_decodes() && !decodes_.contains(layer.window)) {
      const bool keeps_order = s_.paged.attention == PagedCache::Attention::kByKind &&
                               !(s_.paged.fastest && s_.only_decodes(plan_.bound()));
      decodes_[layer.window] = plan_.program(
          keeps_order
              ? paged_decode(decodes,
                             prompt_order_config(decodes, s_.target, cache.first_run).value())
              : paged_decode_program(decodes, s_.target));
    }
  }
  std::int64_t q_cols = split.heads_per_rank * rope.head_dim;
  plan_.buffer("q", s_.dtype, {plan_.bound(), q_cols});
  plan_.buffer("attended", s_.dtype, {plan_.bound(), q_cols});
  for (const char* rows : {"k_rows", "v_rows"}) {
    plan_.buffer(rows, s_.dtype, {split.kv_heads_per_rank * plan_.bound(), rope.head_dim});
  }
  auto input = [&](const char* name, DType dtype, std::int64_t rows, std::int64_t cols) {
    plan_.buffer(name, dtype, {rows, cols}, step::BufferKind::kInput);
  };
  for (const char* table : {"cos", "sin"}) {
    input(table, DType::kF32, plan_.bound(), rope.head_dim / 2);
  }
  std::int64_t pages = prompts.pages_per_sequence();
  input(step_buffer::kSlots, DType::kI32, plan_.bound(), 1);
  if (has_decodes()) {
    input(step_buffer::kDecodePages, DType::kI32, cache.sequences, pages);
    input(step_buffer::kDecodeTokens, DType::kI32, cache.sequences, 1);
  }
  if (!has_prompts()) return;
  std::int64_t parts = s_.prompt_sequences(plan_.bound()) + (shares_rows() ? 1 : 0);
  input(step_buffer::kPromptStarts, DType::kI32, parts + 1, 1);
  input(step_buffer::kPromptPages, DType::kI32, s_.prompt_sequences(plan_.bound()), pages);
  input(step_buffer::kPromptTokens, DType::kI32, s_.prompt_sequences(plan_.bound()), 1);
}

bool PagedPlan::has_prompts() const {
  return s_.paged.attention != PagedCache::Attention::kDecodes && !s_.only_decodes(plan_.bound());
}
bool PagedPlan::has_decodes() const {
  return s_.paged.attention != PagedCache::Attention::kPrompts;
}

bool PagedPlan::shares_rows() const { return s_.fills_by_kind() && has_prompts(); }

void PagedPlan::add(std::int64_t layer, StepBuilder::Bindings rope) const {
  std::int64_t window = s_.config->layers[static_cast<std::size_t>(layer)].window;
  rope.insert(rope.end(), {{"k_cache", "k_rows"}, {"v_cache", "v_rows"}, {"q", "q"}});
  StepBuilder::Bindings cache = {{"k_pages", layer_buffer(layer, "k_cache")},
                                 {"v_pages", layer_buffer(layer, "v_cache")}};
  for (const char* scales : {"k_scales", "v_scales"}) {
    if (s_.paged.fp8) cache.push_back({scales, layer_buffer(layer, scales)});
  }
  auto with_cache = [&](StepBuilder::Bindings bindings) {
    bindings.insert(bindings.end(), cache.begin(), cache.end());
    return bindings;
  };
  plan_.launch(rope_, plan_.all_as_new(), rope);
  plan_.launch(
      write_, plan_.all(),
      with_cache({{"slots", step_buffer::kSlots}, {"k_rows", "k_rows"}, {"v_rows", "v_rows"}}));
  if (has_decodes()) {
    plan_.launch(decodes_.at(window), plan_.decodes(),
                 with_cache({{"q", "q"},
                             {"pages", step_buffer::kDecodePages},
                             {"tokens", step_buffer::kDecodeTokens},
                             {"out", "attended"}}));
  }
  if (!has_prompts()) return;
  const step::Size behind = shares_rows() ? step::Size{} : plan_.behind_decodes();
  plan_.launch(prompts_.at(window), plan_.prompts(),
               with_cache({{"starts", step_buffer::kPromptStarts},
                           {"q", "q", behind},
                           {"pages", step_buffer::kPromptPages},
                           {"tokens", step_buffer::kPromptTokens},
                           {"out", "attended", behind}}));
}

}  // namespace stretto
