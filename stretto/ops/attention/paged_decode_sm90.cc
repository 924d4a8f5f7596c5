#include <algorithm>

#include "stretto/ops/attention/attention.h"
#include "stretto/ops/attention/attention_runs.h"
#include "stretto/ops/attention/online_softmax.h"
#include "stretto/ops/attention/packed_attention.h"
#include "stretto/ops/attention/paged_decode.h"

namespace stretto {
namespace {

// The same cache for prompts.
PackedAttentionDesc prompts_of(const PagedDecodeDesc& d) {
  return {.dtype = d.dtype,
          .m = d.m,
          .sequences = d.m,
          .page = d.page,
          .num_pages = d.num_pages,
          .max_tokens = d.max_tokens,
          .num_heads = d.num_heads,
          .num_kv_heads = d.num_kv_heads,
          .head_dim = d.head_dim,
          .window = d.window,
          .scale = d.scale,
          .fp8 = d.fp8,
          .world_size = d.world_size};
}

// As few as keep so many readers about as busy as any number would: they all have as many splits,
// or one less.
std::int64_t splits_of(std::int64_t units, std::int64_t readers, std::int64_t runs) {
  if (units >= readers) return 1;
  constexpr std::int64_t kMost = 16;
  std::int64_t best = 1;
  for (std::int64_t splits = 2; splits <= std::min(runs, kMost); ++splits) {
    // Of a reader, in parts of a unit; a tenth is worth more splits.
    std::int64_t now = ceil_div(units * splits, readers), then = ceil_div(units * best, readers);
    if (10 * now * best < 9 * then * splits) best = splits;
  }
  return best;
}

// Adding up takes `combiners` SMs at most, where there is anything to add up, and reading the rest.
void deal_out_sms(PagedDecodeConfig& c, std::int64_t units, int sms, int combiners) {
  const bool adds_up = c.splits > 1;
  c.num_combiners = adds_up ? gpu_workers(units, combiners) : 1;
  c.num_workers = gpu_workers(c.splits * units, adds_up ? sms - c.num_combiners : sms);
}

}  // namespace

PagedDecodeConfig default_config(const PagedDecodeDesc& d, Target target) {
  PagedDecodeConfig c{.tile_kv = std::min<std::int64_t>(64, d.page)};
  bool matrix = size_bytes(d.dtype) == 2 && d.head_dim % 32 == 0 && d.head_dim <= 256;
  if (target == Target::kCuda && !matrix) c.tile_kv = std::min<std::int64_t>(32, d.page);
  while (d.page % c.tile_kv != 0) --c.tile_kv;
  if (target == Target::kCpu) return c;
  std::int64_t group = d.num_heads / d.num_kv_heads;
  c.num_stages = matrix ? decode_stages(group, c.tile_kv, d.head_dim, target.gpu()) : 0;
  std::int64_t units = d.m * d.num_kv_heads, seen = d.max_tokens;
  if (d.window > 0) seen = std::min(seen, d.window + c.tile_kv);
  std::int64_t steps = ceil_div(seen, c.tile_kv);
  // A tile for every worker where there are few sequences. Of many, which have unlike lengths, a
  // worker has a few tiles. More parts take longer to add up than they save.
  constexpr std::int64_t kTilesOfWorker = 4, kMostSplits = 32;
  const int sms = target.sms(), readers = sms - sms / 8;
  bool few = 2 * units <= readers;
  std::int64_t splits = few ? readers / units : ceil_div(kTilesOfWorker * readers, units);
  c.splits = std::clamp<std::int64_t>(splits, 1, std::min(steps, kMostSplits));
  // What is left at the end to be added up counts less than what an SM reads where runs are long
  // (docs/performance/attention.md, 'Why the defaults are what they are').
  constexpr std::int64_t kLongRun = 64;  // steps
  bool many_combine = few || steps < kLongRun * c.splits;
  deal_out_sms(c, units, sms, sms / (many_combine ? 8 : 32));
  return c;
}

std::optional<PagedDecodeConfig> prompt_order_config(const PagedDecodeDesc& d, Target target,
                                                     std::int64_t first_run) {
  if (target == Target::kCpu) return default_config(d, target);
  constexpr std::int64_t kRows = 64;  // of a warpgroup's product
  const std::int64_t group = d.num_heads / d.num_kv_heads;
  PackedAttentionConfig prompts = default_config(prompts_of(d), target);
  bool by_product =
      prompts.num_stages > 0 && multiplied_by_tensor_core(d.dtype, prompts.tile_kv, d.head_dim);
  if (!by_product || group > kRows) return std::nullopt;
  const int sms = target.sms(), readers = sms - sms / 8;
  const std::int64_t units = d.m * d.num_kv_heads;
  std::int64_t splits = 1;
  if (prompts.first_run > 0) {
    if (first_run > 0) prompts.first_run = first_run;
    const AttentionRuns runs(prompts.first_run / prompts.tile_kv,
                             ceil_div(d.max_tokens, prompts.tile_kv));
    splits = splits_of(units, readers, runs.count());
  }
  PagedDecodeConfig c{.tile_kv = prompts.tile_kv,
                      .first_run = prompts.first_run,
                      .splits = splits,
                      .num_stages = decode_stages(kRows, prompts.tile_kv, d.head_dim, target.gpu()),
                      .tile_rows = kRows,
                      .sums_by_product = true};
  deal_out_sms(c, units, sms, sms - readers);
  return c;
}

}  // namespace stretto
