#include "bench/gpu/experts/exchange_candidates.h"

#include <fmt/format.h>

#include <algorithm>
#include <type_traits>

#include "stretto/ops/gemm/linear.h"
#include "stretto/ops/moe/ep_return.h"
#include "stretto/ops/moe/ep_send.h"

namespace stretto::bench {
namespace {

std::string slots_text(int num_slots) {
  return num_slots > 1 ? fmt::format(", {} slots", num_slots) : "";
}

// A program with its config, in words.
ExchangeCandidate candidate(const ExchangeShape& s, const SendConfig& c) {
  return {{.config = fmt::format("{} workers of {} threads, {} tokens a tile{}", c.num_workers,
                                 c.threads, c.tile_tokens, slots_text(c.num_slots)),
           .ms = 0,
           .error = ""},
          s.fp8 ? ep_send_fp8(s.desc, c) : ep_send(s.desc, c)};
}
ExchangeCandidate candidate(const ExchangeShape& s, const ReturnConfig& config) {
  const ReturnConfig c = fitted(s.desc, config);
  std::string sums = c.num_sum_workers > 0 ? fmt::format(", {} sum", c.num_sum_workers) : "";
  if (c.sum_tokens > 0) sums += fmt::format(" {} tokens at a time", c.sum_tokens);
  return {{.config = fmt::format("{} workers of {} threads{}, {} tokens a tile, {} channels{}",
                                 c.num_workers, c.threads, sums, c.tile_tokens, c.channels,
                                 slots_text(c.num_slots)),
           .ms = 0,
           .error = ""},
          ep_return(s.desc, c)};
}

// Of long steps: on four GPUs who sends holds a combine back. Each of 66 workers sends 186 tokens,
// one in 3.0 us (with 4 tokens a tile 3.3, with 2 4.2: gpu_bench exchange, four H200s, 2026-11-26),
// and behind the last that comes the last tile of sums.
std::vector<ExchangeCandidate> long_return_candidates(const ExchangeShape& s,
                                                      const ReturnConfig& base) {
  struct Choice {
    int sum_workers, most_threads;
    std::int64_t tile_tokens, sum_tokens;
  };
  std::vector<ExchangeCandidate> out = {candidate(s, base)};
  for (auto [sum_workers, most_threads, tile_tokens, sum_tokens] :
       {Choice{66, 512, 8, 8}, Choice{66, 512, 8, 2}, Choice{52, 512, 8, 2}, Choice{44, 512, 8, 2},
        Choice{44, 1024, 8, 2}, Choice{36, 512, 8, 4}, Choice{52, 512, 16, 2}}) {
    out.push_back(candidate(s, ReturnConfig{.num_workers = GpuTarget{}.sms - sum_workers,
                                            .num_sum_workers = sum_workers,
                                            .threads = row_threads(s.desc.hidden, most_threads),
                                            .tile_tokens = tile_tokens,
                                            .channels = 64,
                                            .sum_tokens = sum_tokens}));
  }
  return out;
}

// The default, fewer threads and, of short steps, half of the workers and the other number of
// slots; of long ones other numbers of tokens a tile.
template <typename Config>
std::vector<ExchangeCandidate> candidates_around(const ExchangeShape& s, const Config& base) {
  if constexpr (std::is_same_v<Config, ReturnConfig>) {
    if (!s.is_short()) return long_return_candidates(s, base);
  }
  std::vector<ExchangeCandidate> out = {candidate(s, base)};
  auto add = [&](const auto& change) {
    Config c = base;
    change(c);
    out.push_back(candidate(s, c));
  };
  for (int most_threads : {512, 256}) {
    int threads = row_threads(s.desc.hidden, most_threads);
    if (threads != base.threads) add([&](Config& c) { c.threads = threads; });
  }
  if (s.is_short()) {
    add([](Config& c) { c.num_workers = std::max(c.num_workers / 2, 1); });
    if constexpr (std::is_same_v<Config, SendConfig>) {
      out.push_back(candidate(s, default_send_config(s.desc, Target::kCuda, true)));
    } else {
      add([](Config& c) { c.num_slots = 3 - c.num_slots; });
    }
    return out;
  }
  for (std::int64_t tokens : {1, 2, 4, 8}) {
    if (tokens != base.tile_tokens) add([&](Config& c) { c.tile_tokens = tokens; });
  }
  return out;
}

}  // namespace

std::vector<ExchangeCandidate> exchange_candidates(const ExchangeShape& s, bool quick) {
  std::vector<ExchangeCandidate> out =
      s.kind == ExchangeKind::kDispatch
          ? candidates_around(s, default_send_config(s.desc, Target::kCuda))
          : candidates_around(s, default_return_config(s.desc, Target::kCuda));
  if (quick) out.resize(1);
  return out;
}

}  // namespace stretto::bench
