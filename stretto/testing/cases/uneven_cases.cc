// Random rows and sizes, and plain references of all-to-all and all-gather with sizes on the
// device: blocks of rows are appended one after the other.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <random>

#include "stretto/base/at.h"
#include "stretto/ops/collectives/uneven.h"
#include "stretto/testing/cases/cases.h"
#include "stretto/testing/cases/moe_case.h"

namespace stretto {
namespace {

using Split = std::vector<std::int64_t>;

// Of up to `rows` rows: even, empty, all to one rank, or by lot.
Split random_split(std::int64_t rows, int ranks, std::mt19937_64& random) {
  auto below = [&](std::int64_t n) { return static_cast<std::int64_t>(random() % at(n)); };
  Split out(at(ranks), 0);
  switch (random() % 4) {
    case 0:
      std::fill(out.begin(), out.end(), rows / ranks);
      break;
    case 1:
      out[at(below(ranks))] = below(rows + 1);
      break;
    default:
      for (std::int64_t& n : out) {
        n = random() % 3 == 0 ? 0 : below(rows + 1);
        rows -= n;
      }
      std::shuffle(out.begin(), out.end(), random);
  }
  return out;
}

// By source and destination, such that each has room for what comes.
std::vector<Split> random_splits(const UnevenDesc& d, std::int64_t m, std::int64_t room,
                                 bool gathers, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Split> sent;
  Split left(at(d.world_size), room);
  for (int from = 0; from < d.world_size; ++from) {
    Split split = random_split(m, d.world_size, random);
    // What is gathered goes to all, which have as much left.
    if (gathers) split.assign(split.size(), *std::ranges::max_element(split));
    for (std::size_t to = 0; to < split.size(); ++to) {
      split[to] = std::min(split[to], left[to]);
      left[to] -= split[to];
    }
    sent.push_back(split);
  }
  return sent;
}

OpCase uneven_case(const OpShape& s, std::uint64_t seed, bool gathers) {
  UnevenDesc d = uneven_desc(s);
  UnevenConfig config = uneven_config(d, s.target);
  MoeCase mc(gathers ? all_gather_v(d, config) : all_to_all_v(d, config), d.m, seed, s.rows);
  std::int64_t room = seed % 3 == 1 ? d.room / 2 : d.room;
  mc.c.extents = {mc.m, room};
  mc.c.config = fmt::format("{} {} m={} room={} {}", mc.c.program.name, to_string(d), mc.m, room,
                            to_string(config));
  mc.c.exact = {"out"};
  std::vector<Split> sent = random_splits(d, mc.m, room, gathers, seed * 977 + 5);
  std::size_t n = at(d.n), largest = 0;
  for (std::size_t r = 0; r < mc.c.inputs.size(); ++r) {
    if (gathers) {
      mc.in(r, "input_size") = {static_cast<double>(sent[r][0])};
    } else {
      mc.in(r, "input_split_sizes").assign(sent[r].begin(), sent[r].end());
    }
    std::size_t row = 0, others = 0;
    for (std::size_t from = 0; from < sent.size(); ++from) {
      std::size_t first = 0, count = at(sent[from][r]);
      for (std::size_t to = 0; !gathers && to < r; ++to) first += at(sent[from][to]);
      auto begin = mc.in(from, "in").begin() + static_cast<std::ptrdiff_t>(first * n);
      std::copy_n(begin, count * n,
                  mc.out(r, "out").begin() + static_cast<std::ptrdiff_t>(row * n));
      mc.out(r, "output_split_sizes")[from] = static_cast<double>(count);
      row += count;
      if (from != r) others += count;
    }
    largest = std::max(largest, others);
  }
  mc.c.comm_bytes = static_cast<double>(largest * n) * static_cast<double>(size_bytes(d.dtype));
  return std::move(mc.c);
}

}  // namespace

std::vector<OperatorCase> uneven_cases() {
  return {{"all_to_all_v",
           [](const OpShape& s, std::uint64_t seed) { return uneven_case(s, seed, false); }},
          {"all_gather_v",
           [](const OpShape& s, std::uint64_t seed) { return uneven_case(s, seed, true); }}};
}

}  // namespace stretto
