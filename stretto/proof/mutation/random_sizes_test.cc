// Is a program that fails at some size ever called proved? Random programs that compute with their
// sizes, proved by pieces of sizes (proof/size_partition.h), and held against every size one by one
// and against runs of the program at sizes drawn by lot. If this fails, a user's launch at such a
// size reads garbage or hangs.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <iterator>
#include <memory>

#include "stretto/base/errors.h"
#include "stretto/base/test_seed.h"
#include "stretto/executor/controlled.h"
#include "stretto/ir/printer.h"
#include "stretto/ops/catalog/catalog.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/expand.h"
#include "stretto/proof/mutation/mutate.h"
#include "stretto/proof/mutation/random_sizes_testing.h"
#include "stretto/proof/prove.h"
#include "stretto/proof/size_partition.h"

namespace stretto {
namespace {

int num_programs() { return std::getenv("STRETTO_SOAK") != nullptr ? 5'000 : 100; }

std::vector<std::int64_t> some_sizes(const Program& program, std::mt19937_64& random) {
  std::vector<std::int64_t> sizes = extent_bounds(program);
  for (std::int64_t& s : sizes) s = std::uniform_int_distribution<std::int64_t>(0, s)(random);
  return sizes;
}

// Buffers and outputs begin as NaN, inputs as 1: what is left of NaN in an output was read before
// it was written, or never written.
std::string run_at(const Program& program, const std::vector<std::int64_t>& sizes,
                   std::uint64_t seed) {
  std::string garbage;
  ControlledOptions options{.launches = 1, .extents = sizes, .seed = seed};
  auto each = [&](ControlledMemory& memory, int rank, auto&& visit) {
    for (std::size_t t = 0; t < program.tensors.size(); ++t) {
      auto* data = reinterpret_cast<float*>(memory.data(rank, static_cast<int>(t)));
      if (data != nullptr) visit(program.tensors[t], static_cast<int>(t), data);
    }
  };
  bool filled = false;
  options.before_launch = [&](int, int, ControlledMemory& memory) {
    // At once on all ranks: others may write before a rank launches.
    for (int rank = 0; rank < program.world_size && !filled; ++rank) {
      each(memory, rank, [&](const Tensor& tensor, int t, float* data) {
        std::int64_t count = num_elements(bound_shape(program, t)) * tensor.num_slots;
        std::fill(data, data + count, tensor.kind == TensorKind::kInput ? 1.0f : std::nanf(""));
      });
    }
    filled = true;
  };
  options.after_launch = [&](int rank, int, ControlledMemory& memory) {
    each(memory, rank, [&](const Tensor& tensor, int, float* data) {
      if (tensor.kind != TensorKind::kOutput) return;
      std::int64_t count = 1;
      for (const Expr& dim : tensor.shape) count *= eval(dim, initial_vars(program, rank, sizes));
      for (std::int64_t i = 0; i < count; ++i) {
        if (std::isnan(data[i])) garbage = fmt::format("'{}' element {}", tensor.name, i);
      }
    });
  };
  try {
    auto shared = std::make_shared<const Program>(program);
    Quotas quotas = count_quotas(program, extent_bounds(program));
    ControlledResult result = run_controlled(shared, quotas, options);
    return result.ok() ? garbage : result.report;
  } catch (const Error& e) {
    return e.what();
  }
}

TEST(RandomSizes, NothingThatFailsAtSomeSizeIsProved) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("STRETTO_SEED={}", seed));
  std::mt19937_64 random(seed);
  int right = 0, right_proved = 0, wrong = 0, failing = 0, in_pieces = 0, open = 0;
  for (int i = 0; i < num_programs(); ++i) {
    std::uint64_t lot = random();
    for (bool slips : {false, true}) {
      Program program = run_pipeline(sample::RandomSizes(lot, slips).program());
      SCOPED_TRACE(fmt::format("program {} slips {}\n{}", lot, slips, print(program)));
      ProofResult by_size = prove(program, {.max_enumerated = 1u << 30, .partition = false});
      ProofResult by_piece = prove(program);
      if (by_size.verdict == Verdict::kNotComplete) {  // of orders of launches
        ++open;
        continue;
      }
      EXPECT_TRUE(by_piece.verdict == by_size.verdict || by_piece.verdict == Verdict::kNotComplete)
          << by_piece.report << "\n"
          << by_size.report;
      in_pieces += by_piece.stats.cases < by_size.stats.cases ? 1 : 0;
      if (by_size.rejected()) {
        EXPECT_TRUE(slips) << by_size.report;
        ++wrong;
      } else {
        ++right;
        right_proved += by_piece.proved() ? 1 : 0;
      }
      for (int run = 0; run < 2; ++run) {
        std::vector<std::int64_t> sizes = some_sizes(program, random);
        std::string failure = run_at(program, sizes, random());
        failing += failure.empty() ? 0 : 1;
        EXPECT_TRUE(failure.empty() || by_piece.rejected())
            << failure << " at " << fmt::format("{}", fmt::join(sizes, ", "));
      }
    }
  }
  fmt::print("{} programs right, {} of them proved, {} wrong; {} in pieces, {} runs failed\n",
             right, right_proved, wrong, in_pieces, failing);
  EXPECT_GE(right_proved, right * 95 / 100);
  EXPECT_GE(3 * wrong, right + wrong - 40);
  EXPECT_GT(failing, 0);
  EXPECT_LE(open, num_programs() / 20);
}

// The pieces are all sizes, each once, and a launch of any size of a piece does as its sample's.
TEST(RandomSizes, PiecesAreAllSizesAndDoAsTheirSamples) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("STRETTO_SEED={}", seed));
  std::mt19937_64 random(seed);
  int partitions = 0;
  for (int i = 0; i < num_programs(); ++i) {
    std::uint64_t lot = random();
    Program program = run_pipeline(sample::RandomSizes(lot, (i & 1) != 0).program());
    SCOPED_TRACE(fmt::format("program {}\n{}", lot, print(program)));
    std::unique_ptr<SizePartition> parts;
    try {
      parts = partition_sizes(program, 2'000);
    } catch (const Error&) {
      continue;  // a slip that no launch gets past
    }
    if (parts == nullptr) continue;
    ++partitions;
    std::int64_t covered = 0, all = 1;
    for (std::int64_t bound : extent_bounds(program)) all *= bound + 1;
    for (const SizePiece& piece : parts->pieces) {
      std::int64_t volume = 1;
      SizePoint point{};
      for (std::size_t a = 0; a < static_cast<std::size_t>(parts->axes.count); ++a) {
        volume *= piece.box.hi[a] - piece.box.lo[a] + 1;
        point[a] =
            std::uniform_int_distribution<std::int64_t>(piece.box.lo[a], piece.box.hi[a])(random);
      }
      covered += volume;
      SizeRegion region(parts->axes, piece.box, piece.sample);
      InstanceGraph sample = expand(program, parts->axes, region);
      EXPECT_EQ(region.box().lo, piece.box.lo);
      EXPECT_EQ(region.box().hi, piece.box.hi);
      InstanceGraph there =
          expand(program, extents_at(parts->axes, point), nullptr, PipeLoopMode::kFold);
      ASSERT_EQ(sample.agents.size(), there.agents.size());
      for (std::size_t a = 0; a < sample.agents.size(); ++a) {
        const AgentTrace &x = sample.agents[a], &y = there.agents[a];
        ASSERT_EQ(x.syncs.size(), y.syncs.size());
        for (std::size_t s = 0; s < x.syncs.size(); ++s) {
          EXPECT_EQ(x.syncs[s].counter, y.syncs[s].counter);
          EXPECT_EQ(x.syncs[s].amount, y.syncs[s].amount);
        }
        ASSERT_EQ(x.accesses.size(), y.accesses.size());
        for (std::size_t k = 0; k < x.accesses.size(); ++k) {
          const Access& of_piece = x.accesses[k];
          int span = of_piece.span >= 0 ? of_piece.span : of_piece.box;
          const Box &outer = sample.boxes[static_cast<std::size_t>(span)],
                    &inner = there.boxes[static_cast<std::size_t>(y.accesses[k].box)];
          EXPECT_EQ(intersection(outer, inner), inner);
        }
      }
    }
    EXPECT_EQ(covered, all);
  }
  EXPECT_GT(partitions, num_programs() / 4);
}

// Mistakes in shipped operators, at bounds and ranks by lot: pieces of sizes and every size one by
// one say the same.
TEST(RandomSizes, MutantsOfOperatorsAreJudgedAsBySize) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("STRETTO_SEED={}", seed));
  std::mt19937_64 random(seed);
  constexpr const char* kOperators[] = {"gemm_rs", "all_gather", "ag_gemm", "all_reduce_two_shot",
                                        "all_to_all"};
  int rejected = 0, accepted = 0;
  for (int i = 0; i < num_programs() / 4; ++i) {
    const OperatorInfo* op = find_operator(kOperators[random() % std::size(kOperators)]);
    auto world = static_cast<int>(2 + random() % 2);
    std::vector<OpShape> shapes = op->shapes(world);
    OpShape shape = shapes[random() % shapes.size()];
    shape.m = static_cast<std::int64_t>(73 + random() % 60);
    std::vector<Mutant> mutants = mutants_of(run_pipeline(op->program(shape)));
    const Mutant& mutant = mutants[random() % mutants.size()];
    SCOPED_TRACE(
        fmt::format("{} m={} P={}: {} at {}", op->name, shape.m, world, mutant.kind, mutant.site));
    ProofResult by_size =
        prove(mutant.program, {.max_enumerated = 1u << 30, .partition = false, .max_findings = 1});
    ProofResult by_piece = prove(mutant.program, {.max_findings = 1});
    bool open =
        by_size.verdict == Verdict::kNotComplete || by_piece.verdict == Verdict::kNotComplete;
    EXPECT_TRUE(open || by_piece.verdict == by_size.verdict) << by_piece.report << "\n"
                                                             << by_size.report;
    EXPECT_FALSE(by_piece.proved() && by_size.rejected());
    ++(by_piece.rejected() ? rejected : accepted);
  }
  fmt::print("{} mutants rejected, {} not\n", rejected, accepted);
  EXPECT_GT(rejected, accepted);
}

}  // namespace
}  // namespace stretto
