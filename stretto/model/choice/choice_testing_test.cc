#include "stretto/model/choice/choice_testing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

namespace stretto {

std::string OwnWish::to_string() const {
  return fmt::format(
      "1/temperature {}, top-k {}, top-p {:x}, least weight {:x}, penalty {}, {} edits, mask {}, "
      "alternatives {}, random {:x}",
      row.inverse_temperature, row.top_k, row.top_p, row.min_weight, row.repetition_penalty,
      edits.size(), !allowed.empty(), row.num_top, row.random);
}

std::vector<float> ChoiceLot::logits(std::size_t vocab) {
  std::normal_distribution<float> normal;
  const float spread = one_of({0.01f, 1.f, 3.f, 30.f});
  const float middle = one_of({-20.f, 0.f, 8.f});
  const std::uint64_t kind = below(8);
  std::vector<float> out(vocab);
  for (float& x : out) {
    const float v = middle + spread * normal(random_);
    x = kind == 0   ? std::round(v)
        : kind == 1 ? middle
        : kind == 2 ? one_of({0.f, -0.f})
        : kind == 3 ? std::clamp(v * 1e37f, -3e38f, 3e38f)
                    : v;
  }
  if (kind == 4) out[below(vocab)] = middle + 60 * spread;
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  const std::uint64_t dropped = below(6);
  for (std::size_t t = 0; t < vocab; ++t) {
    if (dropped == 0 && below(3) == 0) out[t] = kNone;
    if (dropped == 1) out[t] = kNone;
  }
  if (dropped == 1) out[below(vocab)] = middle;
  return out;
}

OwnWish ChoiceLot::wish(std::size_t vocab) {
  OwnWish out;
  out.row = {
      .random = one_of<std::uint64_t>({0, ~std::uint64_t{0}, random_(), random_(), random_()}),
      .top_p = choice_top_p(one_of({0.0, 1e-9, 0.3, 0.9, 0.999, 1.0, 1.0})),
      .min_weight = choice_min_weight(one_of({0.0, 0.0, 1e-6, 0.05, 1.0})),
      .inverse_temperature =
          choice_inverse_temperature(one_of({0.0, 1e-9, 0.3, 1.0, 1.0, 1.7, 100.0})),
      .repetition_penalty = one_of({1.f, 1.3f, 0.7f}),
      .top_k = static_cast<unsigned>(
          one_of<std::uint64_t>({0, 0, 1, 2, 40, vocab - 1, vocab, vocab + 7, 1 + below(vocab)})),
      .num_top = one_of({-1, 0, 1, 5, 20})};
  std::set<unsigned> edited;
  for (std::uint64_t n = one_of<std::uint64_t>({0, 0, 3, 40}); n > 0; --n) {
    edited.insert(static_cast<unsigned>(below(vocab)));
  }
  for (unsigned token : edited) {
    out.edits.push_back({.token = token,
                         .bias = one_of({0.f, 0.f, 1.5f, -100.f, 100.f}),
                         .minus = one_of({0.f, 0.5f, -2.f}),
                         .kinds = static_cast<unsigned>(below(4) == 0 ? below(4) : below(2))});
  }
  if (below(3) > 0) return out;
  const std::uint64_t sparse = one_of<std::uint64_t>({1, 2, 50});
  out.allowed.resize((vocab + 31) / 32);
  for (std::size_t t = 0; t < vocab; ++t) {
    if (below(sparse) == 0) out.allowed[t / 32] |= std::uint32_t{1} << t % 32;
  }
  return out;
}

}  // namespace stretto
