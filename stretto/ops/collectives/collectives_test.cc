// If these fail, a user's collective gives wrong numbers, or numbers that depend on the algorithm
// chosen.
#include "stretto/ops/collectives/collectives.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/base/test_errors.h"
#include "stretto/base/test_seed.h"
#include "stretto/compiler.h"
#include "stretto/testing/cases/cases.h"
#include "stretto/testing/harness/case_memory.h"
#include "stretto/testing/harness/run_case.h"

namespace stretto {
namespace {

// By reading, through two slots with signals and as packets, and through rings of slots.
std::vector<CollectiveConfig> every_way(const CollectiveConfig& config) {
  std::vector<CollectiveConfig> ways(6, config);
  for (std::size_t i = 1; i < ways.size(); ++i) ways[i].push = true;
  ways[2].packets = true;
  ways[3].ring_slots = 2;
  ways[4].ring_slots = 3;
  ways[4].num_workers = 2;
  ways[5] = ways[4];
  ways[5].num_receivers = 1;
  return ways;
}

TEST(Collectives, BadDescNamesTheField) {
  CollectiveDesc d{.m = 4, .n = 0, .world_size = 2};
  try {
    all_gather(d, {});
    FAIL() << "accepted n = 0";
  } catch (const UserError& e) {
    EXPECT_NE(std::string(e.what()).find("n is 0"), std::string::npos) << e.what();
  }
  EXPECT_THROW(broadcast({.m = 1, .n = 1, .world_size = 2}, {}, 2), UserError);
}

// What a config asks for, it gets.
TEST(Collectives, FieldsWithoutUseAreRefused) {
  CollectiveDesc d{.m = 64, .n = 64, .world_size = 2};
  auto refused = [&](const CollectiveConfig& c, const std::string& what) {
    expect_user_error([&] { all_reduce(d, c); }, {"all_reduce_", "[64, 64] f32 P=2", what});
  };
  refused({.piece_rows = 65}, "piece_rows is 65, can only be 64");
  refused({.packets = true}, "packets is true, can only be false");
  refused({.ring_slots = 2}, "ring_slots is 2, can only be 0");
  refused({.push = true, .num_receivers = 2}, "num_receivers is 2, can only be 0");
  refused({.push = true, .packets = true, .ring_slots = 2}, "ring_slots is 2, can only be 0");
  expect_user_error([&] { all_reduce(d, {.push = true, .ring_slots = 1}); },
                    {"ring_slots is 1, need 0, or 2 or more"});
  refused({.num_queues = 2, .num_copy_sms = 8}, "num_queues is 2, can only be 1");
  for (AllReduceKind kind : {AllReduceKind::kOneShot, AllReduceKind::kPacket}) {
    refused({.all_reduce = kind, .push = true}, "push is true, can only be false");
  }
  refused({.num_workers = 2, .all_reduce = AllReduceKind::kRing},
          "num_workers is 2, can only be 1");
  CollectiveConfig pushing{.push = true};
  expect_user_error([&] { broadcast(d, pushing, 0); }, {"broadcast [64, 64]", "push is true"});
  for (Target target : {Target::kCpu, Target::kCuda}) {
    broadcast(d, default_fetching_config(d, target), 0);
  }
}

// Else some loads of every row come one by one, and some SMs have a tile more than others.
TEST(Collectives, RowsAreDealtOutEvenly) {
  constexpr std::int64_t kRun = 8;
  for (std::int64_t n : {3072, 4096, 5120, 6144, 7168, 8192, 10240, 14336}) {
    for (int world : {2, 4, 8}) {
      for (std::int64_t m : {1536, 4096, 16384}) {
        CollectiveDesc d{.dtype = DType::kBF16, .m = m, .n = n, .world_size = world};
        SCOPED_TRACE(to_string(d));
        std::int64_t rows = m / world;
        for (const CollectiveConfig& c : gpu_row_candidates(d, rows, 1)) {
          SCOPED_TRACE(to_string(c));
          EXPECT_EQ(c.tile_cols, n);
          EXPECT_EQ(n % (c.threads * kRun), 0);
          EXPECT_EQ(c.tile_rows % c.piece_rows, 0);
          std::int64_t turns = ceil_div(ceil_div(rows, c.tile_rows), std::int64_t{c.num_workers});
          EXPECT_LT((turns * c.tile_rows - c.piece_rows) * c.num_workers, rows + c.num_workers);
        }
        EXPECT_EQ(gpu_row_candidates(d, rows, 1).size(), 2u);
      }
    }
  }
  CollectiveDesc wide{.dtype = DType::kBF16, .m = 4096, .n = 32768, .world_size = 2};
  EXPECT_TRUE(gpu_row_candidates(wide, 2048, 1).empty()) << "more than registers hold";
}

TEST(Collectives, RowsThatArePushedHaveAThreadForEveryRun) {
  for (std::int64_t n : {5120, 6144, 7168}) {
    for (std::int64_t m : {256, 2048, 16384}) {  // packets, slots, rings
      CollectiveDesc d{.dtype = DType::kBF16, .m = m, .n = n, .world_size = 4};
      for (bool two_hops : {false, true}) {
        std::int64_t found = 0;
        for (const CollectiveConfig& c : gpu_push_candidates(d, two_hops)) {
          if (c.threads * 8 != n) continue;
          ++found;
          EXPECT_EQ(c.tile_cols, n);
          EXPECT_EQ(c.piece_rows, 1);
        }
        EXPECT_EQ(found, m == 256 ? 2 : 1) << to_string(d);
      }
    }
  }
  CollectiveDesc power{.dtype = DType::kBF16, .m = 2048, .n = 4096, .world_size = 4};
  for (const CollectiveConfig& c : gpu_push_candidates(power, false)) {
    EXPECT_EQ(std::gcd(c.threads, 1024), c.threads) << to_string(c);
  }
}

TEST(Collectives, ProgramsOfWholeRowsAreProved) {
  constexpr std::int64_t kRows = 1536;
  for (int world : {2, 4}) {
    CollectiveDesc d{.dtype = DType::kBF16, .m = kRows, .n = 7168, .world_size = world};
    for (int hops : {1, 2}) {
      std::vector<CollectiveConfig> configs = gpu_row_candidates(d, kRows / world, hops);
      for (const CollectiveConfig& c : gpu_push_candidates(d, hops == 2)) {
        if (c.threads == 896) configs.push_back(c);
      }
      for (const CollectiveConfig& c : configs) {
        Program program = hops == 1 ? reduce_scatter(d, c) : all_reduce(d, c);
        EXPECT_NO_THROW(prove(lower(program))) << to_string(d) << " " << to_string(c);
      }
    }
    for (CollectiveConfig c : gpu_row_candidates(d, kRows, 1)) {
      c.all_reduce = AllReduceKind::kOneShot;
      EXPECT_NO_THROW(prove(lower(all_reduce(d, c)))) << to_string(d) << " " << to_string(c);
    }
  }
}

TEST(Collectives, ReferenceOfAllReduceIsTheSum) {
  OpCase c =
      make_case(all_reduce_info(AllReduceKind::kOneShot), {.world_size = 2, .m = 2, .n = 3}, 0);
  auto in = static_cast<std::size_t>(c.program.find_tensor("in"));
  auto out = static_cast<std::size_t>(c.program.find_tensor("out"));
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_DOUBLE_EQ(c.expected[1][out][i], c.inputs[0][in][i] + c.inputs[1][in][i]);
  }
}

// Output bits of every rank after one launch on the same inputs.
std::vector<std::vector<std::byte>> bits_of(AllReduceKind kind, const OpShape& shape,
                                            std::uint64_t seed) {
  OpCase c = make_case(all_reduce_info(kind), shape, seed);
  Proved compiled = prove(lower(c.program));
  World world({.size = shape.world_size});
  std::vector<std::vector<std::byte>> bits(static_cast<std::size_t>(shape.world_size));
  world.run([&](Rank& rank) {
    CaseMemory memory(rank, c);
    std::unique_ptr<Executable> loaded = load(compiled, rank);
    memory.launch(*loaded);
    auto out = static_cast<std::size_t>(c.program.find_tensor("out"));
    bits[static_cast<std::size_t>(rank.index())] = memory.bytes_of(out);
  });
  return bits;
}

TEST(Collectives, AllReduceHasTheSameBitsByEveryRouteOnEveryRank) {
  std::uint64_t seed = test_seed() % 100'000 * 3;  // a full extent
  SCOPED_TRACE(seed);
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
    for (int world = 1; world <= 8; ++world) {
      if (!is_drawn(fmt::format("routes {} {}", short_name(dtype), world), 2)) continue;
      for (std::int64_t m : {4, 13, 51, 75}) {  // two-shot: packets, slots, reading, rings
        OpShape shape{.world_size = world, .m = m, .n = 21, .dtype = dtype};
        auto one_shot = bits_of(AllReduceKind::kOneShot, shape, seed);
        for (const auto& rank_bits : one_shot) EXPECT_EQ(rank_bits, one_shot[0]);
        EXPECT_EQ(bits_of(AllReduceKind::kTwoShot, shape, seed), one_shot) << m;
        EXPECT_EQ(bits_of(AllReduceKind::kPacket, shape, seed), one_shot) << m;
      }
    }
  }
}

// Numbers of fp16 whose sum it does not have; by every route.
TEST(Collectives, AveragesOfLargeNumbers) {
  std::uint64_t seed = test_seed() % 100'000;
  SCOPED_TRACE(seed);
  auto average = [&](const char* what, Program program, std::int64_t out_rows) {
    OpCase c;
    c.program = std::move(program);
    auto world = static_cast<std::size_t>(c.program.world_size);
    std::size_t num_tensors = c.program.tensors.size();
    c.inputs.assign(world, std::vector<Values>(num_tensors));
    c.expected = c.inputs;
    c.extents = {13};
    auto in = static_cast<std::size_t>(c.program.find_tensor("in"));
    auto out = static_cast<std::size_t>(c.program.find_tensor("out"));
    Values mean(13 * 21);
    for (std::size_t r = 0; r < world; ++r) {
      Values& values = c.inputs[r][in];
      values = random_values(mean.size(), DType::kF16, seed * 1009 + r);
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = 32 * std::round(values[i] * 500) + 32768;  // of fp16
        mean[i] += values[i] / static_cast<double>(world);
      }
    }
    for (std::size_t r = 0; r < world; ++r) {
      auto count = static_cast<std::size_t>(out_rows * 21), first = out_rows < 13 ? r * count : 0;
      for (std::size_t i = 0; i < count; ++i) {
        c.expected[r][out].push_back(first + i < mean.size() ? mean[first + i] : 0);
      }
    }
    c.tolerance = 5e-3;  // the ring rounds at each of its hops
    EXPECT_EQ(run_case(c, {.launches = 2, .waiver = {}}), "") << what << " of " << world;
  };
  for (int world : {1, 2, 3, 9}) {
    CollectiveDesc d{.dtype = DType::kF16,
                     .m = 13,
                     .n = 21,
                     .world_size = world,
                     .reduction = Reduction::kAverage};
    CollectiveConfig cfg{.tile_rows = 3, .tile_cols = 16};
    for (CollectiveConfig way : every_way(cfg)) {
      average("reduce_scatter", reduce_scatter(d, way), ceil_div(13, world));
      way.num_receivers = 0;
      average("two-shot", all_reduce(d, way), 13);
    }
    for (AllReduceKind kind :
         {AllReduceKind::kOneShot, AllReduceKind::kPacket, AllReduceKind::kRing}) {
      average(name(kind), all_reduce(d, {.tile_rows = 3, .tile_cols = 16, .all_reduce = kind}), 13);
    }
  }
}

// A case of `program` over [13, 21], whose inputs and results are given by rank and element.
using ElementOf = std::function<double(int rank, std::size_t element)>;
OpCase case_of(Program program, std::int64_t out_rows, const ElementOf& in_of,
               const ElementOf& out_of) {
  OpCase c;
  c.program = std::move(program);
  int world = c.program.world_size;
  c.inputs = no_values(c.program);
  c.expected = no_values(c.program);
  c.extents = {13};
  auto in = static_cast<std::size_t>(c.program.find_tensor("in"));
  auto out = static_cast<std::size_t>(c.program.find_tensor("out"));
  for (int r = 0; r < world; ++r) {
    auto count = static_cast<std::size_t>(out_rows * 21);
    std::size_t first = out_rows < 13 ? static_cast<std::size_t>(r) * count : 0;
    auto rank = static_cast<std::size_t>(r);
    for (std::size_t i = 0; i < 13 * 21; ++i) c.inputs[rank][in].push_back(in_of(r, i));
    for (std::size_t i = 0; i < count; ++i) {
      c.expected[rank][out].push_back(first + i < 13 * 21 ? out_of(r, first + i) : 0);
    }
  }
  return c;
}

double reference(Reduction reduction, double a, double b) {
  switch (reduction) {
    case Reduction::kMin:
      return std::min(a, b);
    case Reduction::kMax:
      return std::max(a, b);
    case Reduction::kProduct:
      return a * b;
    default:
      return a + b;
  }
}

// Small whole numbers of either sign, exact in every type and order; by every route.
TEST(Collectives, EveryReductionOfEveryType) {
  std::uint64_t seed = test_seed() % 100'000;
  SCOPED_TRACE(seed);
  auto check = [&](const char* what, Reduction reduction, Program program, std::int64_t out_rows) {
    auto world = static_cast<std::size_t>(program.world_size);
    std::vector<Values> in(world);
    for (std::size_t r = 0; r < world; ++r) {
      in[r] = random_values(13 * 21, DType::kF32, seed * 1009 + r);
      for (double& v : in[r]) v = std::round(v * 2) + (world < 9 ? 0 : 3 * (v > 0.99));
    }
    OpCase c = case_of(
        std::move(program), out_rows,
        [&](int rank, std::size_t i) { return in[static_cast<std::size_t>(rank)][i]; },
        [&](int, std::size_t i) {
          double total = in[0][i];
          for (std::size_t r = 1; r < world; ++r) total = reference(reduction, total, in[r][i]);
          return total;
        });
    EXPECT_EQ(run_case(c, {.launches = 2, .waiver = {}}), "")
        << what << " " << name(reduction) << " of " << world;
  };
  for (Reduction reduction :
       {Reduction::kSum, Reduction::kMin, Reduction::kMax, Reduction::kProduct}) {
    for (DType dtype : {DType::kF32, DType::kBF16, DType::kF64, DType::kI32, DType::kI64}) {
      for (int world : drawn_of(fmt::format("{} of {}", name(reduction), name(dtype)),
                                std::vector{1, 2, 3, 9}, 2)) {
        SCOPED_TRACE(name(dtype));
        CollectiveDesc d{
            .dtype = dtype, .m = 13, .n = 21, .world_size = world, .reduction = reduction};
        for (CollectiveConfig way : every_way({.tile_rows = 3, .tile_cols = 16})) {
          if (way.packets && dtype == DType::kI64) continue;
          check("reduce_scatter", reduction, reduce_scatter(d, way), ceil_div(13, world));
          way.num_receivers = 0;
          check("two-shot", reduction, all_reduce(d, way), 13);
        }
        for (AllReduceKind kind :
             {AllReduceKind::kOneShot, AllReduceKind::kPacket, AllReduceKind::kRing}) {
          if (kind == AllReduceKind::kPacket && dtype == DType::kI64) continue;
          CollectiveConfig way{.tile_rows = 3, .tile_cols = 16, .all_reduce = kind};
          check(name(kind), reduction, all_reduce(d, way), 13);
        }
      }
    }
  }
}

// Sums and products of whole numbers wrap, and are exact where floats are not.
TEST(Collectives, WholeNumbersStayWhole) {
  CollectiveDesc d{.dtype = DType::kI32, .m = 13, .n = 21, .world_size = 3};
  OpCase c = case_of(
      all_reduce(d, {.tile_rows = 3, .tile_cols = 16}), 13,
      [](int rank, std::size_t i) {
        return rank == 0 ? 16777217 + static_cast<double>(i) : static_cast<double>(rank);
      },
      [](int, std::size_t i) { return 16777220 + static_cast<double>(i); });
  EXPECT_EQ(run_case(c, {.launches = 1, .waiver = {}}), "");
}

// As inputs multiplied before, by every route, of sums that the type does not hold.
TEST(Collectives, PremultipliedSums) {
  constexpr float kFactor = -0.125F;
  auto check = [&](const char* what, Program program, std::int64_t out_rows) {
    int world = program.world_size;
    auto in = [](int rank, std::size_t i) {
      return 32 * static_cast<double>((i * 7 + static_cast<std::size_t>(rank) * 5) % 900) + 30000;
    };
    OpCase c = case_of(std::move(program), out_rows, in, [&](int, std::size_t i) {
      double total = 0;
      for (int r = 0; r < world; ++r) total += kFactor * in(r, i);
      return total;
    });
    c.extents.push_back(scalar_of_float(kFactor));
    c.tolerance = 5e-3;  // the ring rounds at each of its hops
    EXPECT_EQ(run_case(c, {.launches = 2, .waiver = {}}), "") << what << " of " << world;
  };
  for (int world : {1, 2, 3, 9}) {
    CollectiveDesc d{.dtype = DType::kF16,
                     .m = 13,
                     .n = 21,
                     .world_size = world,
                     .reduction = Reduction::kPremulSum};
    for (CollectiveConfig way : every_way({.tile_rows = 3, .tile_cols = 16})) {
      check("reduce_scatter", reduce_scatter(d, way), ceil_div(13, world));
      way.num_receivers = 0;
      check("two-shot", all_reduce(d, way), 13);
    }
    for (AllReduceKind kind :
         {AllReduceKind::kOneShot, AllReduceKind::kPacket, AllReduceKind::kRing}) {
      check(name(kind), all_reduce(d, {.tile_rows = 3, .tile_cols = 16, .all_reduce = kind}), 13);
    }
  }
}

TEST(Collectives, PremultipliedSumsOfWhatNoFloat32HoldsAreRefused) {
  for (DType dtype : {DType::kF64, DType::kI32}) {
    CollectiveDesc d{
        .dtype = dtype, .m = 4, .n = 4, .world_size = 2, .reduction = Reduction::kPremulSum};
    expect_user_error([&] { reduce_scatter(d, {}); },
                      {"reduce_scatter", "premultiplied", name(dtype)});
  }
}

TEST(Collectives, AnAverageOfWholeNumbersIsRefused) {
  CollectiveDesc d{
      .dtype = DType::kI32, .m = 4, .n = 4, .world_size = 2, .reduction = Reduction::kAverage};
  expect_user_error([&] { all_reduce(d, {}); }, {"all_reduce", "average of int32"});
}

// Data that only move: every way, of whole and of short last runs, rings that turn several times.
TEST(Collectives, EveryWayMovesTheSame) {
  std::uint64_t seed = test_seed() % 100'000;
  SCOPED_TRACE(seed);
  for (int world : {2, 3, 4, 8}) {
    for (std::int64_t m : {2, 24, 37}) {
      CollectiveDesc d{.dtype = DType::kBF16, .m = m, .n = 21, .world_size = world};
      for (const CollectiveConfig& way : every_way({.tile_rows = 2, .tile_cols = 16})) {
        OpCase c = make_case(all_gather_info(),
                             {.world_size = world, .m = m, .n = 21, .dtype = d.dtype}, seed);
        c.program = all_gather(d, way);
        EXPECT_EQ(run_case(c, {.launches = 3, .waiver = {}}), "") << to_string(way);
        c = make_case(all_to_all_info(), {.world_size = world, .m = m, .n = 21, .dtype = d.dtype},
                      seed);
        c.program = all_to_all(d, way);
        EXPECT_EQ(run_case(c, {.launches = 3, .waiver = {}}), "") << to_string(way);
      }
    }
  }
}

// What is whole multiples of a row's scale arrives as it is, the rest rounded to the nearest: the
// reference rounds by hand. By every way that sends.
struct Rounded {
  double sent, arrives;
};
Rounded int8_element(std::int64_t row, std::int64_t col) {
  const double step = std::ldexp(1, static_cast<int>(row % 5) - 3);  // largest 127 steps
  if (col == 0) return {127 * step, 127 * step};
  const auto whole = static_cast<double>((row * 31 + col * 17) % 253 - 126);
  constexpr double kParts[] = {0, 0.25, -0.25, 0.5, -0.5, 0.4375};
  const double part = kParts[(row + col) % 6];
  const bool odd = std::fmod(std::fabs(whole), 2) == 1;  // a half goes to the even one
  const double nearest = std::fabs(part) == 0.5 && odd ? whole + 2 * part : whole;
  return {(whole + part) * step, nearest * step};
}

std::vector<CollectiveConfig> ways_that_send(std::int64_t columns) {
  std::vector<CollectiveConfig> ways;
  for (const CollectiveConfig& way : every_way({.tile_rows = 3, .tile_cols = columns})) {
    if (way.push && !way.packets) ways.push_back(way);
  }
  return ways;
}

TEST(Collectives, RowsTravelAsInt8) {
  constexpr std::int64_t kColumns = 21, kRows = 13;
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (int world : {2, 3, 9}) {
      const std::int64_t run = ceil_div(kRows, static_cast<std::int64_t>(world));
      CollectiveDesc d{.dtype = dtype,
                       .m = kRows,
                       .n = kColumns,
                       .world_size = world,
                       .payload = Payload::kInt8};
      // The own part of a sum is exact, and other ranks have none: with one rank's numbers what
      // comes of them is what arrives, or what was sent.
      auto element = [&](std::size_t i) {
        auto at = static_cast<std::int64_t>(i);
        Rounded of = int8_element(at / kColumns, at % kColumns);
        // Of sums and of 16 bits: whole steps alone, of which 8 bits are enough.
        return dtype == DType::kF32 ? of : Rounded{of.arrives, of.arrives};
      };
      for (CollectiveConfig way : ways_that_send(kColumns)) {
        SCOPED_TRACE(to_string(d) + " " + to_string(way));
        auto own_row = [&](int rank, std::size_t i) {  // of the gathered rows
          return static_cast<std::size_t>(rank * run * kColumns) + i;
        };
        OpCase gather = case_of(
            all_gather(d, way), kRows,
            [&](int rank, std::size_t i) { return element(own_row(rank, i)).sent; },
            [&](int, std::size_t i) { return element(i).arrives; });
        for (auto& rank : gather.inputs) {
          rank[static_cast<std::size_t>(gather.program.find_tensor("in"))].resize(
              static_cast<std::size_t>(run * kColumns));
        }
        EXPECT_EQ(run_case(gather, {.launches = 3, .waiver = {}}), "");
        // Rank 1 has numbers, the others zeros.
        auto of_one = [&](int rank, std::size_t i) { return rank == 1 ? element(i).sent : 0; };
        OpCase scatter = case_of(reduce_scatter(d, way), run, of_one, [&](int, std::size_t i) {
          bool own = static_cast<std::int64_t>(i) / kColumns / run == 1;
          return own ? element(i).sent : element(i).arrives;
        });
        EXPECT_EQ(run_case(scatter, {.launches = 3, .waiver = {}}), "");
        way.num_receivers = 0;
        OpCase reduce = case_of(all_reduce(d, way), kRows, of_one,
                                [&](int, std::size_t i) { return element(i).arrives; });
        EXPECT_EQ(run_case(reduce, {.launches = 3, .waiver = {}}), "");
      }
    }
  }
}

TEST(Collectives, RowsTravelAsE4M3) {
  std::uint64_t seed = test_seed() % 100'000;
  SCOPED_TRACE(seed);
  constexpr std::int64_t kColumns = 24, kRows = 13;
  for (int world : {2, 3}) {
    CollectiveDesc d{.m = kRows, .n = kColumns, .world_size = world, .payload = Payload::kE4M3};
    const std::int64_t run = ceil_div(kRows, static_cast<std::int64_t>(world));
    Values rows = random_values(static_cast<std::size_t>(kRows * kColumns), DType::kF8E4M3, seed);
    for (std::size_t i = 0; i < rows.size(); i += kColumns) rows[i] = 448;  // a scale of one
    for (const CollectiveConfig& way : ways_that_send(kColumns)) {
      OpCase c = make_case(all_gather_info(), {.world_size = world, .m = kRows, .n = kColumns}, 0);
      c.program = all_gather(d, way);
      auto in = static_cast<std::size_t>(c.program.find_tensor("in"));
      auto out = static_cast<std::size_t>(c.program.find_tensor("out"));
      c.inputs = c.expected = no_values(c.program);
      for (int r = 0; r < world; ++r) {
        auto rank = static_cast<std::size_t>(r);
        for (std::int64_t i = 0; i < run * kColumns; ++i) {
          auto at = static_cast<std::size_t>(r * run * kColumns + i);
          c.inputs[rank][in].push_back(at < rows.size() ? rows[at] : 0);
        }
        c.expected[rank][out] = rows;
      }
      EXPECT_EQ(run_case(c, {.launches = 2, .waiver = {}}), "") << to_string(way);
    }
  }
}

// A number that is none does not become one on its way, nor does it touch other rows.
TEST(Collectives, RowsOfInt8WithoutNumbersSaySo) {
  constexpr std::int64_t kColumns = 16;
  CollectiveDesc d{.m = 6, .n = kColumns, .world_size = 2, .payload = Payload::kInt8};
  Program program = all_gather(d, default_config(d));
  World world({.size = 2});
  Proved proved = prove(lower(program));
  world.run([&](Rank& rank) {
    std::vector<float> in(3 * kColumns, 1), out(6 * kColumns, 7);
    in[5] = rank.index() == 0 ? std::nanf("") : std::numeric_limits<float>::infinity();
    Args args{.tensors = std::vector<TensorArg>(program.tensors.size())};
    args.tensors[static_cast<std::size_t>(program.find_tensor("in"))].data = in.data();
    args.tensors[static_cast<std::size_t>(program.find_tensor("out"))].data = out.data();
    std::unique_ptr<Executable> loaded = load(proved, rank);
    const std::int64_t extents[] = {6};
    loaded->prepare(args)->run(extents);
    for (std::size_t i = 0; i < out.size(); ++i) {
      bool touched = i / kColumns == 0 || i / kColumns == 3;
      if (touched) {
        EXPECT_TRUE(std::isnan(out[i])) << i;
      } else {
        EXPECT_EQ(out[i], 1) << i;
      }
    }
  });
}

TEST(Collectives, PayloadsThatCannotBeAreRefused) {
  CollectiveDesc d{
      .dtype = DType::kBF16, .m = 8, .n = 64, .world_size = 2, .payload = Payload::kInt8};
  CollectiveConfig good = default_config(d);
  auto refused = [&](const CollectiveDesc& desc, const CollectiveConfig& c,
                     const std::string& what) {
    expect_user_error([&] { reduce_scatter(desc, c); }, {"reduce_scatter", "int8", what});
  };
  CollectiveConfig c = good;
  c.push = false;
  refused(d, c, "push is false, can only be true");
  c = good;
  c.packets = true;
  refused(d, c, "packets is true, can only be false");
  c = good;
  c.tile_cols = 32;
  refused(d, c, "tile_cols is 32, can only be 64");
  for (DType dtype : {DType::kF64, DType::kI32, DType::kF8E4M3}) {
    CollectiveDesc other = d;
    other.dtype = dtype;
    refused(other, good, "need float32, float16 or bfloat16");
  }
  CollectiveDesc least = d;
  least.reduction = Reduction::kMin;
  refused(least, good, "need a sum");
  CollectiveDesc wide = d;
  wide.n = kMostPayloadColumns + 1;
  refused(wide, good, "need 16384 or fewer");
  expect_user_error([&] { broadcast(d, {}, 0); }, {"broadcast as int8", "senders write"});
  for (AllReduceKind kind :
       {AllReduceKind::kOneShot, AllReduceKind::kPacket, AllReduceKind::kRing}) {
    expect_user_error([&] { all_reduce(d, {.all_reduce = kind}); }, {"as int8", "senders write"});
  }
}

// Every size that a default is made for: what it takes is proved.
TEST(Collectives, DefaultsOfWhatIsQuantisedAreProved) {
  for (Target target : {Target::kCpu, Target::kCuda}) {
    for (int world : {2, 4}) {
      for (auto [m, n] : std::vector<std::pair<std::int64_t, std::int64_t>>{
               {1, 128}, {37, 4096}, {512, 5120}, {64, kMostPayloadColumns}}) {
        CollectiveDesc d{
            .dtype = DType::kBF16, .m = m, .n = n, .world_size = world, .payload = Payload::kInt8};
        SCOPED_TRACE(to_string(d));
        EXPECT_NO_THROW(prove(lower(all_gather(d, default_config(d, target)))));
        CollectiveConfig c = default_all_reduce_config(d, target);
        EXPECT_EQ(c.all_reduce, AllReduceKind::kTwoShot);
        EXPECT_NO_THROW(prove(lower(all_reduce(d, c))));
      }
    }
  }
  CollectiveDesc alone{.m = 64, .n = 64, .payload = Payload::kInt8};  // copies
  for (Target target : {Target::kCpu, Target::kCuda}) {
    EXPECT_NO_THROW(prove(lower(all_reduce(alone, default_all_reduce_config(alone, target)))));
  }
  CollectiveDesc rings{
      .dtype = DType::kBF16, .m = 4096, .n = 8192, .world_size = 2, .payload = Payload::kInt8};
  CollectiveConfig c = default_config(rings, Target::kCuda);
  EXPECT_GT(c.ring_slots, 0);
  EXPECT_NO_THROW(prove(lower(all_gather(rings, c))));
}

// What two GPUs exchange lies in ordinary memory up to 1 GB: it is pushed, from 16 MB on in rings.
TEST(Collectives, TwoGpusPushLargeMessages) {
  for (std::int64_t n : {8192, 7168, 1000}) {
    for (std::int64_t megabytes : {1, 8, 15, 18, 32, 1000, 1100}) {
      CollectiveDesc d{
          .dtype = DType::kBF16, .m = megabytes * (1 << 19) / n, .n = n, .world_size = 2};
      SCOPED_TRACE(to_string(d));
      const CollectiveConfig c = default_config(d, Target::kCuda);
      EXPECT_EQ(c.push, megabytes <= 1000);
      EXPECT_EQ(c.ring_slots > 0, megabytes >= 18 && megabytes <= 1000);
      EXPECT_EQ(default_all_reduce_config(d, Target::kCuda).push, c.push && megabytes > 1);
      const CollectiveConfig fetches = default_fetching_config(d, Target::kCuda);
      EXPECT_FALSE(fetches.push || fetches.packets || fetches.ring_slots > 0);
      if (megabytes > 32) continue;
      EXPECT_NO_THROW(prove(lower(all_gather(d, c))));
      EXPECT_NO_THROW(prove(lower(all_to_all(d, c))));
      EXPECT_NO_THROW(prove(lower(all_reduce(d, default_all_reduce_config(d, Target::kCuda)))));
    }
  }
}

// Of doubles, to the last bits of a double.
TEST(Collectives, Doubles) {
  std::uint64_t seed = test_seed() % 100'000;
  std::vector<OperatorInfo> all = {all_gather_info(), reduce_scatter_info(), all_to_all_info(),
                                   broadcast_info()};
  for (AllReduceKind kind : {AllReduceKind::kOneShot, AllReduceKind::kTwoShot,
                             AllReduceKind::kPacket, AllReduceKind::kRing}) {
    all.push_back(all_reduce_info(kind));
  }
  for (const OperatorInfo& info : all) {
    for (std::int64_t m : {4, 13, 51, 75}) {
      OpCase c = make_case(info, {.world_size = 3, .m = m, .n = 21, .dtype = DType::kF64}, seed);
      EXPECT_LT(c.tolerance, 1e-14);
      EXPECT_EQ(run_case(c, {.launches = 2, .waiver = {}}), "") << c.config << " seed " << seed;
    }
  }
}

}  // namespace
}  // namespace stretto
