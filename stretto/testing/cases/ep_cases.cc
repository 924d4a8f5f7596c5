// References of expert parallelism: whom each token goes to, counted one by one, and the sums that
// come back, in fp64.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "stretto/ops/gemm/linear.h"
#include "stretto/ops/moe/ep_place.h"
#include "stretto/ops/moe/ep_return.h"
#include "stretto/ops/moe/ep_send.h"
#include "stretto/ops/moe/even_routing.h"
#include "stretto/ops/moe/moe_shapes.h"
#include "stretto/testing/cases/cases.h"
#include "stretto/testing/cases/moe_case.h"
#include "stretto/testing/cases/routing_case.h"

namespace stretto {
namespace {

// Where the tokens of a launch go.
struct Routes {
  std::vector<std::vector<std::int64_t>> experts;            // by rank: [rows of the rank * top_k]
  std::vector<std::vector<std::vector<std::int64_t>>> sent;  // by source, by destination: tokens

  bool has(const EpDesc& d, std::size_t from, std::int64_t token, int to) const {
    ExpertSplit split = split_of(d);
    for (std::int64_t j = 0; j < d.shape.top_k; ++j) {
      std::int64_t e = experts[from][at(token * d.shape.top_k + j)];
      if (e >= split.first(to) && e < split.end(to)) return true;
    }
    return false;
  }
};

Routes routes_of(const EpDesc& d, std::int64_t m, std::int64_t tile_tokens, std::uint64_t seed) {
  const std::vector<std::int32_t> chosen = chosen_experts({.tokens = m,
                                                           .top_k = d.shape.top_k,
                                                           .split = split_of(d),
                                                           .tile_rows = tile_tokens,
                                                           .exchanged = true},
                                                          seed);
  std::int64_t share = ceil_div(m, std::int64_t{d.shape.world_size});
  Routes routes;
  for (std::size_t r = 0; r < at(d.shape.world_size); ++r) {
    std::int64_t count =
        std::clamp<std::int64_t>(m - static_cast<std::int64_t>(r) * share, 0, share);
    auto first = chosen.begin() + std::min(static_cast<std::int64_t>(r) * share, m) * d.shape.top_k;
    routes.experts.emplace_back(first, first + count * d.shape.top_k);
    auto& sent = routes.sent.emplace_back(at(d.shape.world_size));
    for (int to = 0; to < d.shape.world_size; ++to) {
      for (std::int64_t t = 0; t < count; ++t) {
        if (routes.has(d, r, t, to)) sent[at(to)].push_back(t);
      }
    }
  }
  return routes;
}

void set_positions(const EpDesc& d, const std::vector<std::vector<std::int64_t>>& sent,
                   Values& positions) {
  positions.assign(at(d.shape.rows_per_rank() * d.shape.world_size), -1);
  for (std::size_t to = 0; to < sent.size(); ++to) {
    for (std::int64_t token : sent[to]) {
      positions[at(token) * sent.size() + to] = static_cast<double>(token);
    }
  }
}

void copy_row(const Values& from, std::size_t a, Values& to, std::size_t b, std::size_t n) {
  std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(a * n), n,
              to.begin() + static_cast<std::ptrdiff_t>(b * n));
}

// Experts that `routes` says, and where tokens lie at others.
void set_experts(const EpDesc& d, const Routes& routes, MoeCase& mc) {
  for (std::size_t r = 0; r < mc.c.inputs.size(); ++r) {
    std::fill(mc.in(r, "experts").begin(), mc.in(r, "experts").end(), 0.0);
    std::copy(routes.experts[r].begin(), routes.experts[r].end(), mc.in(r, "experts").begin());
    set_positions(d, routes.sent[r], mc.out(r, "positions"));
  }
}

double received_bytes(const EpDesc& d) {
  return static_cast<double>(d.received_rows() - d.shape.rows_per_rank()) *
         static_cast<double>(d.hidden) * static_cast<double>(size_bytes(d.dtype));
}

// Experts and weights of all tokens, at every rank.
void expect_sent(const EpDesc& d, const Routes& routes, MoeCase& mc) {
  std::size_t rows = at(d.shape.rows_per_rank()), top_k = at(d.shape.top_k);
  set_experts(d, routes, mc);
  for (std::size_t r = 0; r < mc.c.inputs.size(); ++r) {
    std::fill(mc.out(r, "recv_experts").begin(), mc.out(r, "recv_experts").end(), -1.0);
    std::fill(mc.out(r, "recv_weights").begin(), mc.out(r, "recv_weights").end(), 0.0);
    for (std::size_t from = 0; from < mc.c.inputs.size(); ++from) {
      for (std::size_t token = 0; token < routes.experts[from].size() / top_k; ++token) {
        std::size_t row = from * rows + token;
        copy_row(mc.in(from, "experts"), token, mc.out(r, "recv_experts"), row, top_k);
        copy_row(mc.in(from, "weights"), token, mc.out(r, "recv_weights"), row, top_k);
      }
    }
  }
  mc.c.comm_bytes = received_bytes(d);
}

OpCase ep_send_case(const OpShape& s, std::uint64_t seed) {
  EpDesc d = ep_desc(s);
  const SendConfig cfg = ep_send_config(d, s);
  MoeCase mc(ep_send(d, cfg), d.shape.m, seed, s.rows);
  mc.c.config = fmt::format("ep_send {} m={}", to_string(d), mc.m);
  Routes routes = routes_of(d, mc.m, cfg.tile_tokens, seed);
  expect_sent(d, routes, mc);
  std::size_t rows = at(d.shape.rows_per_rank());
  for (std::size_t r = 0; r < mc.c.inputs.size(); ++r) {
    for (std::size_t from = 0; from < mc.c.inputs.size(); ++from) {
      for (std::int64_t token : routes.sent[from][r]) {
        copy_row(mc.in(from, "x"), at(token), mc.out(r, "recv"), from * rows + at(token),
                 at(d.hidden));
      }
    }
  }
  return std::move(mc.c);
}

// Blocks whose largest magnitude is 448 times a power of two, the others e4m3 values times the
// same: quotients are exact, however a device divides. Returns the scales [rows, blocks].
Values make_exact(Values& x, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Values scales;
  for (std::size_t block = 0; block < x.size(); block += kScaleBlock) {
    double scale = std::ldexp(1.0, static_cast<int>(random() % 9) - 6);
    std::size_t largest = block + random() % kScaleBlock;
    for (std::size_t i = block; i < block + kScaleBlock; ++i) {
      double value = std::ldexp(static_cast<double>(random() % 31) - 15, 4);  // of e4m3
      x[i] = scale * (i == largest ? 448 : value);
    }
    scales.push_back(scale);
  }
  return scales;
}

OpCase send_fp8_case(const OpShape& s, std::uint64_t seed) {
  EpDesc d = ep_desc(s);
  const SendConfig cfg = ep_send_config(d, s);
  MoeCase mc(ep_send_fp8(d, cfg), d.shape.m, seed, s.rows);
  mc.c.config = fmt::format("ep_send_fp8 {} m={}", to_string(d), mc.m);
  mc.c.tolerance = 0x1p-20;  // of scales; a step of e4m3 and of tables is much larger
  mc.c.scale = 0;
  Routes routes = routes_of(d, mc.m, cfg.tile_tokens, seed);
  expect_sent(d, routes, mc);
  std::size_t rows = at(d.shape.rows_per_rank()), hidden = at(d.hidden),
              blocks = hidden / kScaleBlock;
  for (std::size_t from = 0; from < mc.c.inputs.size(); ++from) {
    Values& x = mc.in(from, "x");
    Values scales = make_exact(x, seed + from), steps = x;
    for (std::size_t i = 0; i < x.size(); ++i) steps[i] /= scales[i / kScaleBlock];
    for (std::size_t r = 0; r < mc.c.inputs.size(); ++r) {
      for (std::int64_t token : routes.sent[from][r]) {
        std::size_t row = from * rows + at(token);
        copy_row(steps, at(token), mc.out(r, "recv"), row, hidden);
        copy_row(scales, at(token), mc.out(r, "recv_scales"), row, blocks);
      }
    }
  }
  return std::move(mc.c);
}

// Tokens with three different experts; of some routings a rank has gaps, or none at all.
OpCase place_case(const OpShape& s, std::uint64_t seed) {
  EpDesc d = ep_desc(s);
  const PlaceConfig cfg = ep_place_config(d, s);
  MoeCase mc(ep_place(d, cfg), d.shape.m, seed, s.rows);
  mc.c.extents = {};
  mc.c.config = fmt::format("ep_place {}", to_string(d));
  ExpertSplit split = split_of(d);
  const Routing routing = routing_of(seed);
  std::mt19937_64 random(seed);
  for (std::size_t r = 0; r < mc.c.inputs.size(); ++r) {
    Values& experts = mc.in(r, "recv_experts");
    const std::vector<std::int32_t> chosen = different_experts({.tokens = d.received_rows(),
                                                                .top_k = d.shape.top_k,
                                                                .split = split,
                                                                .tile_rows = cfg.tiles.tile_slots},
                                                               routing, seed + r);
    experts.assign(chosen.begin(), chosen.end());
    const bool none = routing == Routing::kOneRank && (r + seed) % 2 == 0;
    const bool gaps = routing == Routing::kRandom || routing == Routing::kSkewed;
    for (auto row = experts.begin(); row != experts.end(); row += d.shape.top_k) {
      if (none || (gaps && random() % 4 == 0)) std::fill_n(row, d.shape.top_k, -1.0);
    }
    auto rank = static_cast<int>(r);
    Values &slots = mc.out(r, "slots"), &offsets = mc.out(r, "offsets");
    std::fill(slots.begin(), slots.end(), -1.0);
    std::fill(mc.out(r, "tokens").begin(), mc.out(r, "tokens").end(), 0.0);
    double row = 0;
    for (std::int64_t own = 0; own < split.share(); ++own) {
      offsets[at(own)] = row;
      if (split.first(rank) + own >= split.end(rank)) continue;
      for (std::size_t pair = 0; pair < experts.size(); ++pair) {
        if (experts[pair] != static_cast<double>(split.first(rank) + own)) continue;
        mc.out(r, "tokens")[static_cast<std::size_t>(row)] =
            static_cast<double>(pair / at(d.shape.top_k));
        slots[pair] = row++;
      }
    }
    offsets[at(split.share())] = row;
    offsets[at(split.share() + 1)] = static_cast<double>(experts.size());
  }
  return std::move(mc.c);
}

// Results lie where a shuffle puts them; rows of other ranks' experts have none. With one slot the
// sums of each rank lie where they travelled to.
void expect_sums(const EpDesc& d, const Routes& routes, std::uint64_t seed, MoeCase& mc) {
  mc.c.tolerance = sum_tolerance(d.dtype, d.shape.top_k * d.shape.world_size) * 2;
  mc.c.scale = static_cast<double>(d.shape.world_size);
  ExpertSplit split = split_of(d);
  std::size_t rows = at(d.shape.rows_per_rank()), hidden = at(d.hidden), top_k = at(d.shape.top_k);
  const auto parts = at(mc.c.program.find_tensor("parts"));
  const bool travels = mc.c.program.tensors[parts].kind == TensorKind::kState;
  std::int64_t share = ceil_div(mc.m, std::int64_t{d.shape.world_size});
  for (std::size_t r = 0; r < mc.c.inputs.size(); ++r) {
    set_positions(d, routes.sent[r], mc.in(r, "positions"));
    const Values& residual = mc.in(r, "residual");
    std::copy_n(residual.begin(), at(share) * hidden, mc.out(r, "out").begin());
  }
  for (std::size_t r = 0; r < mc.c.inputs.size(); ++r) {
    Values& slots = mc.in(r, "slots");
    std::vector<std::size_t> places(slots.size());
    std::iota(places.begin(), places.end(), std::size_t{0});
    std::shuffle(places.begin(), places.end(), std::mt19937_64(seed + r));
    std::fill(slots.begin(), slots.end(), -1.0);
    for (std::size_t from = 0; from < mc.c.inputs.size(); ++from) {
      for (std::int64_t token : routes.sent[from][r]) {
        Values part(hidden);
        for (std::size_t j = 0; j < top_k; ++j) {
          std::int64_t expert = routes.experts[from][at(token) * top_k + j];
          if (expert < split.first(static_cast<int>(r)) || expert >= split.end(static_cast<int>(r)))
            continue;
          std::size_t pair = (from * rows + at(token)) * top_k + j;
          slots[pair] = static_cast<double>(places[pair]);
          for (std::size_t c = 0; c < hidden; ++c) {
            part[c] += mc.in(r, "recv_weights")[pair] * mc.in(r, "y")[places[pair] * hidden + c];
          }
        }
        for (std::size_t c = 0; c < hidden; ++c) {
          mc.out(from, "out")[at(token) * hidden + c] += part[c];
        }
        if (travels && from != r)
          copy_row(part, 0, mc.out(from, "parts"), r * rows + at(token), hidden);
      }
    }
  }
}

OpCase return_case(const OpShape& s, std::uint64_t seed) {
  EpDesc d = ep_desc(s);
  const ReturnConfig cfg = ep_return_config(d, s);
  MoeCase mc(ep_return(d, cfg), d.shape.m, seed, s.rows);
  mc.c.config = fmt::format("ep_return {} m={}", to_string(d), mc.m);
  expect_sums(d, routes_of(d, mc.m, cfg.tile_tokens, seed), seed, mc);
  return std::move(mc.c);
}

}  // namespace

std::vector<OperatorCase> ep_cases() {
  return {{"ep_send", ep_send_case},
          {"ep_send_fp8", send_fp8_case},
          {"ep_return", return_case},
          {"ep_place", place_case}};
}

}  // namespace stretto
