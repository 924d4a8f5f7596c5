// Products that are issued before the last one is awaited: the same bits as one after the other,
// for every number of iterations, and nothing that the proof would let pass when it is taken away.
// A user who loses this gets sums with products missing or counted twice.
#include "stretto/passes/stagger_products.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <utility>

#include "stretto/base/test_seed.h"
#include "stretto/executor/program_runner.h"
#include "stretto/ir/printer.h"
#include "stretto/lang/program_builder.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/prove.h"

namespace stretto::stagger_products_test {
namespace {

constexpr std::int64_t kRows = 8, kCols = 8, kStep = 16, kMostSteps = 33;
constexpr std::int64_t kShared = 128;  // rows of a tile that two warpgroups share

enum class Work { kScale, kWeigh, kPeak };

// c = a * b^T in steps, `steps` of them where it is not 0, else as many as a launch says. Scaled
// after each product, or a factor weighed before it; or with what is left of the sum after each
// step kept as well, which has to stay one after the other.
Program product(Work work, int num_stages, std::int64_t steps,
                ProductOrder order = ProductOrder::kAhead, std::int64_t tile_rows = kRows) {
  constexpr int tiles = 2;
  ProgramBuilder p("product", 1);
  Index count = steps != 0 ? Index(steps) : p.extent("steps", kMostSteps);
  auto a = p.input("a", DType::kBF16, {tile_rows * tiles, kMostSteps * kStep});
  auto b = p.input("b", DType::kBF16, {kCols, kMostSteps * kStep});
  auto u = p.input("u", DType::kF32, {tile_rows * tiles, kMostSteps});
  auto w = p.input("w", DType::kBF16, {1, kMostSteps * kStep});
  auto c = p.output("c", DType::kF32, {tile_rows * tiles, kCols});
  p.role("multiply", Resource::sms(1).pipelined(num_stages).multiplying(order),
         p.grid(c, tile_rows, kCols), [&](const Tile& t) {
           Value acc = p.zeros(DType::kF32, tile_rows, kCols);
           Value peak = p.zeros(DType::kF32, tile_rows, 1);
           p.loop(count, [&](const Index& i) {
             Value rows = p.load(a.tile({t.row, i * kStep}, tile_rows, kStep));
             Value cols = p.load(b.tile({0, i * kStep}, kCols, kStep)).T();
             if (work == Work::kScale) {
               Value scale = p.load(u.tile({t.row, i}, tile_rows, 1));
               acc = acc + dot(p.zeros(DType::kF32, tile_rows, kCols), rows, cols) * scale;
             } else {
               Value weight = p.load(w.tile({0, i * kStep}, 1, kStep));
               acc = dot(acc, rows * weight, cols);
             }
             if (work == Work::kPeak) peak = maximum(peak, row_max(acc));
           });
           p.store(c.tile({t.row, 0}, tile_rows, kCols), work == Work::kPeak ? acc + peak : acc);
         });
  return p.finish();
}

// c = a * b^T in steps, each with a scale for every column: more than fits beside two products of
// 128 columns.
Program with_scales_of_columns(std::int64_t cols, int num_stages, std::int64_t steps) {
  ProgramBuilder p("scaled", 1);
  auto a = p.input("a", DType::kBF16, {2 * kRows, kMostSteps * kStep});
  auto b = p.input("b", DType::kBF16, {cols, kMostSteps * kStep});
  auto u = p.input("u", DType::kF32, {kMostSteps, cols});
  auto c = p.output("c", DType::kF32, {2 * kRows, cols});
  p.role("multiply", Resource::sms(1).pipelined(num_stages), p.grid(c, kRows, cols),
         [&](const Tile& t) {
           Value acc = p.zeros(DType::kF32, kRows, cols);
           p.loop(steps, [&](const Index& i) {
             Value left = p.load(a.tile({t.row, i * kStep}, kRows, kStep));
             Value right = p.load(b.tile({0, i * kStep}, cols, kStep)).T();
             Value scale = p.load(u.tile({i, 0}, 1, cols));
             acc = acc + dot(p.zeros(DType::kF32, kRows, cols), left, right) * scale;
           });
           p.store(c.tile({t.row, 0}, kRows, cols), acc);
         });
  return p.finish();
}

std::shared_ptr<const Program> scheduled(Program program) {
  return std::make_shared<const Program>(run_pipeline(std::move(program)));
}

bool overlaps(const Program& program) {
  std::function<bool(const Block&)> any = [&](const Block& block) {
    for (const Op& op : block) {
      if (op.code == OpCode::kAwait && op.exprs[0].is_const(1)) return true;
      for (const Block& body : op.bodies) {
        if (any(body)) return true;
      }
    }
    return false;
  };
  return any(program.roles[0].agents.back().body);
}

// Warpgroups issue its products in turn.
bool takes_turns(const Program& program) {
  std::function<bool(const Block&)> any = [&](const Block& block) {
    return std::any_of(block.begin(), block.end(), [&](const Op& op) {
      return (op.code == OpCode::kDotAsync && op.stage != 0) ||
             std::any_of(op.bodies.begin(), op.bodies.end(), any);
    });
  };
  return any(program.roles[0].agents.back().body);
}

class StaggerProducts : public testing::Test {
 protected:
  // Whole ones, so that sums are exact in any order.
  Doubles numbers(std::int64_t n) {
    Doubles v(static_cast<std::size_t>(n));
    for (double& x : v) x = static_cast<double>(random_() % 9) - 4;
    return v;
  }
  Doubles run(const std::shared_ptr<const Program>& program,
              const std::map<std::string, Doubles>& inputs, std::int64_t steps) {
    Doubles c;
    World world({.size = 1});
    run_program(world, program, [&](Rank&, Instance& instance, RankArguments& arguments) {
      for (const auto& [name, values] : inputs) arguments.set(name, values);
      if (program->find_var("steps") >= 0) arguments.extents = {steps};
      for (int e = 0; e < 2; ++e) instance.launch(arguments.args, arguments.extents);
      c = arguments.get("c");
    });
    return c;
  }

  std::uint64_t seed_ = test_seed();
  std::mt19937_64 random_{seed_};
  testing::ScopedTrace trace_{__FILE__, __LINE__, "STRETTO_TEST_SEED=" + std::to_string(seed_)};
};

TEST_F(StaggerProducts, TheBitsAreThoseOfOneAfterTheOther) {
  std::map<std::string, Doubles> inputs = {{"a", numbers(2 * kRows * kMostSteps * kStep)},
                                           {"b", numbers(kCols * kMostSteps * kStep)},
                                           {"u", numbers(2 * kRows * kMostSteps)},
                                           {"w", numbers(kMostSteps * kStep)}};
  for (Work work : {Work::kScale, Work::kWeigh, Work::kPeak}) {
    auto whole = scheduled(product(work, 0, 0)), split = scheduled(product(work, 3, 0));
    EXPECT_EQ(overlaps(*split), work != Work::kPeak) << print(*split);
    for (std::int64_t steps = 0; steps <= kMostSteps; ++steps) {
      Doubles want = run(whole, inputs, steps);
      EXPECT_EQ(run(split, inputs, steps), want) << print(*split);
      if (steps == 0) continue;
      auto known = scheduled(product(work, 3, steps));
      EXPECT_EQ(overlaps(*known), work != Work::kPeak && steps > 1) << print(*known);
      EXPECT_EQ(run(known, inputs, steps), want) << print(*known);
    }
  }
}

// Reads of shared memory stand behind matrix instructions: a scale that is read after the next
// product is issued comes when that one ends.
TEST_F(StaggerProducts, ScalesAreReadBeforeTheNextProductIsIssued) {
  auto program = scheduled(product(Work::kScale, 3, 16));
  int products = 0;
  std::function<void(const Block&)> look = [&](const Block& block) {
    for (std::size_t i = 0; i + 1 < block.size(); ++i) {
      for (const Block& body : block[i].bodies) look(body);
      if (block[i].code != OpCode::kDotAsync || products++ == 0) continue;
      EXPECT_EQ(block[i + 1].code, OpCode::kAwait) << products << print(*program);
    }
  };
  look(program->roles[0].agents.back().body);
  EXPECT_EQ(products, 16);
}

// What threads do to a product then stands behind the next one, with which it shares registers for
// no more than what they read first.
TEST_F(StaggerProducts, ScalesThatDoNotFitBesideTwoProductsAreReadWhenTheFirstIsComplete) {
  constexpr std::int64_t kWide = 128;
  std::map<std::string, Doubles> inputs = {{"a", numbers(2 * kRows * kMostSteps * kStep)},
                                           {"b", numbers(kWide * kMostSteps * kStep)},
                                           {"u", numbers(kMostSteps * kWide)}};
  for (std::int64_t steps : {std::int64_t{2}, std::int64_t{16}, std::int64_t{21}, kMostSteps}) {
    auto whole = scheduled(with_scales_of_columns(kWide, 0, steps));
    auto split = scheduled(with_scales_of_columns(kWide, 3, steps));
    EXPECT_FALSE(overlaps(*split)) << print(*split);
    EXPECT_EQ(run(split, inputs, steps), run(whole, inputs, steps)) << print(*split);
    EXPECT_TRUE(prove(*split).proved());
  }
  EXPECT_TRUE(overlaps(*scheduled(with_scales_of_columns(kWide / 2, 3, 16))));

  auto program = scheduled(with_scales_of_columns(kWide, 3, 16));
  std::string order;  // of a round
  for (const Op& loop : program->roles[0].agents.back().body) {
    if (loop.code != OpCode::kLoop) continue;
    for (const Op& op : loop.bodies[0]) {
      if (op.code == OpCode::kDotAsync) order += "dot ";
      if (op.code == OpCode::kAwait) order += op.exprs[0].is_const(0) ? "complete " : "await ";
      if (op.code == OpCode::kBinary && op.binary == BinaryOp::kMul) order += "scale ";
      bool scales = op.code == OpCode::kPipeGet &&
                    program->roles[0].pipes[static_cast<std::size_t>(op.symbol)].type.rows == 1;
      if (scales) order += "read ";
    }
  }
  EXPECT_EQ(order.substr(0, 61), "dot complete read dot scale complete read dot scale complete ");
}

// Of products that come in eights, sixteen where they can be.
TEST_F(StaggerProducts, RoundsAreLongAndTakeWholeEights) {
  auto first_round = [](std::int64_t steps) {
    auto program = scheduled(product(Work::kScale, 3, steps));
    int products = 0;
    for (const Op& op : program->roles[0].agents.back().body) {
      if (op.code != OpCode::kLoop || products > 0) continue;
      products =
          static_cast<int>(std::count_if(op.bodies[0].begin(), op.bodies[0].end(),
                                         [](const Op& o) { return o.code == OpCode::kDotAsync; }));
    }
    return products;
  };
  for (auto [steps, round] : {std::pair{32, 16}, {24, 8}, {16, 16}, {21, 7}, {30, 6}, {23, 8}}) {
    EXPECT_EQ(first_round(steps), round) << steps;
  }
}

TEST_F(StaggerProducts, TurnsAreTakenWhereProductsAddToTheSameSums) {
  EXPECT_FALSE(takes_turns(*scheduled(product(Work::kScale, 3, 16))));
  EXPECT_TRUE(takes_turns(*scheduled(product(Work::kWeigh, 3, 16))));
}

TEST_F(StaggerProducts, TheRolesOrderDecidesWhoIsAheadAndWhoTakesTurns) {
  std::map<std::string, Doubles> inputs = {{"a", numbers(2 * kShared * kMostSteps * kStep)},
                                           {"b", numbers(kCols * kMostSteps * kStep)},
                                           {"u", numbers(2 * kShared * kMostSteps)}};
  Doubles want = run(scheduled(product(Work::kScale, 0, 0, ProductOrder::kAhead, kShared)), inputs,
                     kMostSteps);
  for (ProductOrder order :
       {ProductOrder::kAheadInTurn, ProductOrder::kInTurn, ProductOrder::kAwaited}) {
    auto split = scheduled(product(Work::kScale, 3, 0, order, kShared));
    EXPECT_EQ(overlaps(*split), order == ProductOrder::kAheadInTurn) << print(*split);
    EXPECT_EQ(takes_turns(*split), order == ProductOrder::kAheadInTurn) << print(*split);
    EXPECT_EQ(run(split, inputs, kMostSteps), want) << print(*split);
    EXPECT_TRUE(prove(*split).proved());
  }
}

TEST_F(StaggerProducts, NeedsASlotMore) {
  EXPECT_FALSE(overlaps(*scheduled(product(Work::kScale, 2, 8))));
  EXPECT_TRUE(overlaps(*scheduled(product(Work::kScale, 3, 8))));
}

TEST_F(StaggerProducts, IsProvedAndMissesWhatIsTakenAway) {
  for (Work work : {Work::kScale, Work::kWeigh}) {
    for (std::int64_t steps : {std::int64_t{0}, std::int64_t{13}, kMostSteps}) {
      ProofResult whole = prove(*scheduled(product(work, 3, steps)));
      EXPECT_TRUE(whole.proved()) << whole.report;
    }
    const Program program = *scheduled(product(work, 3, 19));
    int deleted = 0;
    for (bool any = true; any; ++deleted) {
      Program edited = program;
      int seen = 0;
      std::string what;
      std::function<void(Block&)> visit = [&](Block& block) {
        for (std::size_t i = 0; i < block.size() && what.empty(); ++i) {
          bool edge = block[i].code == OpCode::kPipeRelease || block[i].code == OpCode::kAwait;
          if (edge && seen++ == deleted) {
            what = print_op(program, nullptr, block[i]);
            block.erase(block.begin() + static_cast<std::ptrdiff_t>(i));
            return;
          }
          for (Block& body : block[i].bodies) visit(body);
        }
      };
      visit(edited.roles[0].agents.back().body);
      any = !what.empty();
      EXPECT_NE(prove(edited).proved(), any) << "without " << what << " (" << deleted << ")";
    }
    EXPECT_GT(deleted, 30);
  }
}

}  // namespace
}  // namespace stretto::stagger_products_test
