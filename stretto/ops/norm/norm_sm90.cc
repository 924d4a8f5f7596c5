#include <algorithm>

#include "stretto/ops/norm/norm.h"

namespace stretto {
namespace {

// For a row at a time.
int threads_of(std::int64_t hidden) { return hidden >= 8192 ? 1024 : hidden >= 4096 ? 512 : 0; }

}  // namespace

NormConfig default_config(const NormDesc& d, Target target) {
  if (target == Target::kCpu) return {.tile_rows = std::min<std::int64_t>(16, d.m)};
  constexpr std::int64_t kElements = 4096;  // of a tile, 16 a thread
  NormConfig c{.tile_rows = std::clamp<std::int64_t>(kElements / d.hidden, 1, d.m)};
  c.num_workers = gpu_workers(ceil_div(d.m, c.tile_rows), target.sms());
  return c;
}

NormConfig default_all_reduce_config(const NormDesc& d, Target target) {
  NormConfig c = default_config(d, target);
  if (target == Target::kCpu) return c;
  // Packets are faster than reads that two rounds of signals order, and two shots than one where
  // messages are large (docs/performance/collectives.md, 'Why the defaults are what they are').
  constexpr std::int64_t kMega = std::int64_t{1} << 20;
  std::int64_t bytes = d.m * d.hidden * static_cast<std::int64_t>(size_bytes(d.dtype));
  // Of two ranks larger ones, too, up to where their memory, eight times a message, is a matter.
  c.packets = bytes <= (d.world_size == 2 ? 32 : 4) * kMega;
  c.two_shot = c.packets && d.world_size > 2 && (d.world_size - 1) * bytes > kMega;
  c.threads = threads_of(d.hidden);
  if (!c.packets && d.hidden >= 4096) {  // several rows at a time, so that more bytes are under way
    constexpr std::int64_t kElements = 16384;  // 32 a thread; more spill
    c.tile_rows = std::clamp<std::int64_t>(kElements / d.hidden, 1, d.m);
    c.num_workers = gpu_workers(ceil_div(d.m, c.tile_rows), target.sms());
    if (c.tile_rows > 1) c.threads = 512;
  }
  return c;
}

NormConfig default_reduce_scatter_config(const NormDesc& d, Target target) {
  NormDesc own = d;
  own.m = ceil_div(d.m, std::int64_t{d.world_size});
  NormConfig c = default_config(own, target);
  if (target == Target::kCpu) return c;
  // As of all_reduce_add_rms_norm, of which this sends one part to each rank.
  c.packets = default_all_reduce_config(d, target).packets;
  c.threads = threads_of(d.hidden);
  return c;
}

NormConfig default_columns_config(const NormDesc& d, Target target) {
  NormConfig c = default_config(d, target);
  c.packets = true;
  if (target == Target::kCuda) c.threads = threads_of(d.hidden);
  return c;
}

}  // namespace stretto
