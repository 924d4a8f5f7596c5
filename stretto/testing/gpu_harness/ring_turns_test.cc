// Random loops of products whose left factors go through one ring, some filled by threads and some
// by TMA, on a GPU or a simulated one: a user who loses this multiplies rows of another step, or
// waits for ever. All values are small integers, so that every order of every sum gives the same.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "stretto/base/test_seed.h"
#include "stretto/codegen/kernel.h"
#include "stretto/compiler.h"
#include "stretto/lang/program_builder.h"
#include "stretto/testing/gpu_harness/gpu_case.h"
#include "stretto/testing/harness/run_case.h"

namespace stretto {
namespace {

// Where a loop has its rows from.
enum class Rows : std::uint8_t { kPicked, kInOrder, kLimited, kOddWidth };
struct Loop {
  Rows rows;
  std::int64_t first, steps;
};
using Loops = std::vector<Loop>;

class RingTurns {
 public:
  explicit RingTurns(std::uint64_t seed) : random_(seed) {}

  OpCase make() {
    Loops even = loops(), odd = loops();
    int stages = between(2, 5);
    OpCase c{.program = program(even, odd, stages)};
    c.config =
        fmt::format("{} stages, even tiles: {}; odd tiles: {}", stages, text(even), text(odd));
    c.inputs = c.expected = no_values(c.program);
    for (const char* name : {"a", "d", "e", "b"}) {
      auto width = name[0] == 'e' ? kOddWidth : kWidth;
      Values& v = c.inputs[0][index_of(c, name)];
      v.resize(static_cast<std::size_t>((name[0] == 'b' ? kN : kM) * width));
      for (double& x : v) x = between(-3, 3);
    }
    Values& rows = c.inputs[0][index_of(c, "rows")];
    for (std::int64_t i = 0; i < kM; ++i) rows.push_back(between(-1, kM - 1));
    auto of = [&](const char* name) -> const Values& { return c.inputs[0][index_of(c, name)]; };
    Inputs in{of("a"), of("d"), of("e"), of("b"), rows};
    Values& out = c.expected[0][index_of(c, "out")];
    for (std::int64_t i = 0; i < kM; ++i) {
      for (std::int64_t j = 0; j < kN; ++j) {
        out.push_back(sum(in, i / kTileRows % 2 == 0 ? even : odd, i, j));
      }
    }
    return c;
  }

 private:
  static constexpr std::int64_t kM = 500, kN = 90, kWidth = 392, kOddWidth = 391, kLimit = 333;
  static constexpr std::int64_t kTileRows = 128, kTileCols = 64, kStep = 64;

  int between(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution(static_cast<int>(low), static_cast<int>(high))(random_);
  }
  Loops loops() {
    Loops out;
    for (int i = between(0, 4); i >= 0; --i) {
      out.push_back({static_cast<Rows>(between(0, 3)), between(0, 2), between(1, 6)});
    }
    return out;
  }
  static std::string text(const Loops& loops) {
    static constexpr const char* kNames[] = {"picked", "in order", "limited", "odd width"};
    std::string out;
    for (const Loop& l : loops) {
      out += fmt::format("{} {} from {}, ", l.steps, kNames[static_cast<int>(l.rows)], l.first);
    }
    return out;
  }
  static std::size_t index_of(const OpCase& c, const char* name) {
    return static_cast<std::size_t>(c.program.find_tensor(name));
  }

  static Program program(const Loops& even, const Loops& odd, int stages) {
    ProgramBuilder p("ring_turns", 1);
    auto a = p.input("a", DType::kBF16, {kM, kWidth}), d = p.input("d", DType::kBF16, {kM, kWidth});
    auto e = p.input("e", DType::kBF16, {kM, kOddWidth});
    auto b = p.input("b", DType::kBF16, {kN, kWidth});
    auto rows = p.input("rows", DType::kI32, {kM, 1});
    auto out = p.output("out", DType::kF32, {kM, kN});
    auto tiles = p.grid(out, kTileRows, kTileCols);
    p.role("multiply", Resource::sms(3).pipelined(stages), tiles, [&](const Tile& t) {
      Value acc = p.zeros(DType::kF32, kTileRows, kTileCols);
      Value picked = p.load(rows.tile({t.row, 0}, kTileRows, 1));
      auto left = [&](Rows from, const Index& k) {
        if (from == Rows::kPicked) return p.load_rows(a.tile({0, k}, kTileRows, kStep), picked);
        Slice slice = (from == Rows::kOddWidth ? e : d).tile({t.row, k}, kTileRows, kStep);
        return p.load(from == Rows::kLimited ? slice.until_row(kLimit) : slice);
      };
      auto multiply = [&](const Loops& loops) {
        for (const Loop& l : loops) {
          p.loop(l.first, l.first + l.steps, [&](const Index& i) {
            Value x = left(l.rows, i * kStep);
            acc = dot(acc, x, p.load(b.tile({t.col, i * kStep}, kTileCols, kStep)).T());
          });
        }
      };
      p.when(
          t.m % 2 == 0, [&] { multiply(even); }, [&] { multiply(odd); });
      p.store(out.tile({t.row, t.col}, kTileRows, kTileCols), acc);
    });
    return p.finish();
  }

  struct Inputs {
    const Values &a, &d, &e, &b, &rows;
  };
  static double sum(const Inputs& in, const Loops& loops, std::int64_t i, std::int64_t j) {
    auto row = [](const Values& v, std::int64_t r, std::int64_t width) {
      return v.data() + r * width;
    };
    const double *in_order = row(in.d, i, kWidth), *odd = row(in.e, i, kOddWidth),
                 *right = row(in.b, j, kWidth);
    auto picked = static_cast<std::int64_t>(in.rows[static_cast<std::size_t>(i)]);
    double sum = 0;
    for (const Loop& l : loops) {
      const double* left = l.rows == Rows::kOddWidth ? odd : in_order;
      if (l.rows == Rows::kPicked) left = picked < 0 ? nullptr : row(in.a, picked, kWidth);
      if (l.rows == Rows::kLimited && i >= kLimit) left = nullptr;
      std::int64_t width = l.rows == Rows::kOddWidth ? kOddWidth : kWidth;
      std::int64_t end = left == nullptr ? 0 : std::min(width, (l.first + l.steps) * kStep);
      for (std::int64_t k = l.first * kStep; k < end; ++k) sum += left[k] * right[k];
    }
    return sum;
  }

  std::mt19937_64 random_;
};

int num_programs() { return std::getenv("STRETTO_SOAK") != nullptr ? 500 : 4; }

TEST(RingTurnsTest, GiveWhatCpuRanksGive) {
  std::uint64_t seed = test_seed();
  for (int i = 0; i < num_programs(); ++i) {
    OpCase c = RingTurns(seed + static_cast<std::uint64_t>(i)).make();
    EXPECT_EQ(run_case(c, {}), "")
        << c.config << "\nSTRETTO_TEST_SEED=" << seed + static_cast<std::uint64_t>(i);
  }
}

TEST(RingTurnsTest, AreRightOnGpus) {
  if (!cuda::has_driver() || cuda::num_devices() == 0) GTEST_SKIP() << "no GPU";
  std::uint64_t seed = test_seed();
  GpuWorld world({.size = 1});
  int in_turn = 0;
  for (int i = 0; i < num_programs(); ++i) {
    OpCase c = RingTurns(seed + static_cast<std::uint64_t>(i)).make();
    SCOPED_TRACE(fmt::format("STRETTO_TEST_SEED={}", seed + static_cast<std::uint64_t>(i)));
    std::string kernel = generate_kernel(prove(lower(c.program)).program()).source;
    in_turn += kernel.find("mbarrier_arrive_warp_release_cta(&full") != std::string::npos ? 1 : 0;
    ASSERT_EQ(run_gpu_case(world, c, {.seed = seed}), "") << c.config;
  }
  EXPECT_GT(in_turn, num_programs() / 4);
}

}  // namespace
}  // namespace stretto
