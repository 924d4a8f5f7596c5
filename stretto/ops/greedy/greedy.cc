#include "stretto/ops/greedy/greedy.h"

#include <fmt/format.h>

#include <limits>

#include "stretto/base/errors.h"
#include "stretto/lang/program_builder.h"

namespace stretto {
namespace {

constexpr std::int64_t kMostTokens = std::int64_t{1} << 24;
constexpr double kLargest = std::numeric_limits<float>::max();

void check(const GreedyDesc& d, const GreedyConfig& c) {
  auto positive = [](std::int64_t value, const char* field) {
    if (value >= 1) return;
    throw UserError(fmt::format("greedy_token: {} is {}, need at least 1", field, value));
  };
  positive(d.vocab, "vocab");
  if (d.vocab > kMostTokens) {
    throw UserError(fmt::format("greedy_token: vocab is {}, at most {}", d.vocab, kMostTokens));
  }
  positive(d.max_tokens, "max_tokens");
  positive(d.world_size, "world_size");
  positive(c.tile_vocab, "tile_vocab");
  positive(c.num_workers, "num_workers");
}

}  // namespace

Program greedy_token(const GreedyDesc& d, const GreedyConfig& cfg) {
  check(d, cfg);
  std::int64_t cols = cfg.tile_vocab, num_tiles = ceil_div(d.vocab, cols);
  ProgramBuilder p("greedy_token", d.world_size);
  Index past = p.scalar("past", d.max_tokens - 1);
  TensorRef logits = p.input("logits", DType::kF32, {1, d.vocab});
  TensorRef token = p.output("token", DType::kI32, {1, 1});
  TensorRef next_past = p.output("next_past", DType::kI32, {1, 2});
  TensorRef history = p.state("history", DType::kI32, {d.max_tokens});
  TensorRef peaks = p.buffer("peaks", DType::kF32, {1, num_tiles});
  TensorRef places = p.buffer("places", DType::kI32, {1, num_tiles});
  SignalRef scanned = p.signal("scanned", 1);

  // A tile with a logit that is not a number, or infinite, beats all others, with no place. -inf is
  // never chosen: no tile has a peak below -kLargest, and one of just that has no place either.
  p.role("scan", Resource::sms(cfg.num_workers), p.range(num_tiles), [&](const Tile& t) {
    Index first = p.let("first", t.index * cols);
    Value x = p.load(logits.tile({0, first}, 1, cols));
    Value finite = x <= p.full(DType::kF32, 1, 1, kLargest);  // or -inf
    Value inside = p.iota_cols(first, cols) < p.splat(DType::kI32, d.vocab);
    Value lowest = p.full(DType::kF32, 1, 1, -kLargest);
    Value seen = maximum(where(finite && inside, x, lowest), lowest);
    Value flaw = row_max(where(finite, p.zeros(DType::kF32, 1, 1), p.full(DType::kF32, 1, 1, 1)));
    Value broken = flaw > p.zeros(DType::kF32, 1, 1);
    Value peak = row_max(seen);
    Value place = row_argmax(seen) + p.splat(DType::kI32, first);
    Value nowhere = p.full(DType::kI32, 1, 1, kNoToken);
    p.store(peaks.tile({0, t.index}, 1, 1),
            where(broken, p.full(DType::kF32, 1, 1, kLargest), peak));
    p.store(places.tile({0, t.index}, 1, 1), where(broken || peak <= lowest, nowhere, place));
    p.notify(scanned[0], p.rank());
  });

  p.role("choose", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.wait(scanned[0], num_tiles);
    Value best = row_argmax(p.load(peaks.tile({0, 0}, 1, num_tiles)));  // the first of equals
    Value is_best = p.iota_cols(0, num_tiles) == best;
    // As f32, which GPUs reduce; exact below kMostTokens.
    Value place = cast(p.load(places.tile({0, 0}, 1, num_tiles)), DType::kF32);
    Value nowhere = p.full(DType::kF32, 1, 1, kNoToken);
    Value chosen = cast(row_max(where(is_best, place, nowhere)), DType::kI32);
    p.store(history.tile({past}, 1, 1), chosen);
    p.store(token.tile({0, 0}, 1, 1), maximum(chosen, p.zeros(DType::kI32, 1, 1)));
    p.store(next_past.tile({0, 0}, 1, 1), p.splat(DType::kI32, past + 1));
    p.store(next_past.tile({0, 1}, 1, 1), p.zeros(DType::kI32, 1, 1));
  });
  return p.finish();
}

}  // namespace stretto
