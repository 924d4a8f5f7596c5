#include "stretto/testing/cases/cached_rows_case.h"

#include <cmath>
#include <random>

namespace stretto {

Values scaled_rows(const Values& pages, const Values& scales, std::int64_t head_dim, DType dtype) {
  Values rows(pages.size());
  for (std::size_t i = 0; i < pages.size(); ++i) {
    double scale = scales[i / static_cast<std::size_t>(head_dim)];
    rows[i] = static_cast<float>(pages[i] * scale);
  }
  return round_to(rows, dtype);
}

Values random_scales(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Values scales(count);
  for (double& s : scales) {
    double size = std::ldexp(1.0, static_cast<int>(random() % 8) - 6);
    s = random() % 2 == 0 ? size : size * (1 + static_cast<double>(random() % 1024) / 1024);
  }
  return round_to(scales, DType::kF32);
}

}  // namespace stretto
