#include "stretto/ops/gemm/k_parts.h"

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "stretto/base/errors.h"

namespace stretto {

void check_k_parts(const std::string& op, std::int64_t k, const GemmTile& tile, int parts) {
  std::int64_t steps = ceil_div(k, tile.bk);
  if (parts <= steps) return;
  throw UserError(
      fmt::format("{}: split_k is {}, but k has {} steps of {}", op, parts, steps, tile.bk));
}

KParts::KParts(ProgramBuilder& p, const KPartsDesc& desc, const Index& m) : p_(p), d_(desc) {
  // [parts - 1 of each weight, m, n], or [.., n, m]
  std::vector<Index> shape = {(d_.parts - 1) * d_.num_weights, m, d_.n};
  if (d_.swap_ab) std::swap(shape[1], shape[2]);
  sums_ = p.buffer("sums", d_.sum, shape);
  summed_ = p.signal("summed", row_tiles() * col_tiles());
}

TileSpace KParts::tiles() const {
  return p_.grid(row_tiles() * d_.parts, d_.n, 1, d_.tile.bn).raster(d_.raster * d_.parts);
}

KParts::Part KParts::part_of(const Tile& t) const {
  Index idx = p_.let("part", d_.parts - 1 - t.m % d_.parts);
  Index row_tile = p_.let("row_tile", t.m / d_.parts);
  std::int64_t steps = ceil_div(d_.k, d_.tile.bk);
  auto begin = [&](const Index& part) { return part * steps / d_.parts; };
  return {.idx = idx,
          .row = row_tile * d_.tile.bm,
          .col = t.col,
          .channel = row_tile * col_tiles() + t.n,
          .steps = {begin(idx), begin(idx + 1)}};
}

void KParts::add_up(const Part& part, Linear::Sums& sums,
                    const std::function<void()>& finish) const {
  auto stored = [&](const Index& idx, std::size_t weight) {
    Index at = (idx - 1) * d_.num_weights + static_cast<std::int64_t>(weight);
    return d_.swap_ab ? sums_.tile({at, part.col, part.row}, d_.tile.bn, d_.tile.bm)
                      : sums_.tile({at, part.row, part.col}, d_.tile.bm, d_.tile.bn);
  };
  p_.when(
      part.idx > 0,
      [&] {
        for (std::size_t i = 0; i < sums.of.size(); ++i) {
          p_.store(stored(part.idx, i), sums.of[i]);
        }
        p_.notify(summed_[part.channel], p_.rank());
      },
      [&] {
        p_.wait(summed_[part.channel], d_.parts - 1);
        p_.loop(1, d_.parts, [&](const Index& other) {
          for (std::size_t i = 0; i < sums.of.size(); ++i) {
            sums.of[i] = sums.of[i] + p_.load(stored(other, i));
          }
        });
        finish();
      });
}

}  // namespace stretto
