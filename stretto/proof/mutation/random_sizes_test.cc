// Is a program that fails at some size ever called proved? Random programs that compute with their
// sizes, proved by pieces of sizes (proof/size_partition.h), and held against every size one by one
// and against runs of the program at sizes drawn by lot. If this fails, a user's launch at such a
// size reads garbage or hangs.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <map>
#include <memory>

#include "stretto/base/errors.h"
#include "stretto/base/test_seed.h"
#include "stretto/executor/controlled.h"
#include "stretto/ir/printer.h"
#include "stretto/ir/tables.h"
#include "stretto/ops/catalog/catalog.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/expand.h"
#include "stretto/proof/mutation/mutate.h"
#include "stretto/proof/mutation/random_sizes_testing.h"
#include "stretto/proof/prove.h"
#include "stretto/proof/size_partition.h"

namespace stretto {
namespace {

// Each drawn with its twin.
int num_sized_programs() { return std::getenv("STRETTO_SOAK") != nullptr ? 5'000 : 50; }

std::vector<std::int64_t> some_sizes(const Program& program, std::mt19937_64& random) {
  std::vector<std::int64_t> sizes = extent_bounds(program);
  for (std::int64_t& s : sizes) s = std::uniform_int_distribution<std::int64_t>(0, s)(random);
  return sizes;
}

// Entries that keep the contract, which is a range.
void fill_table(const Tensor& table, std::int64_t count, std::mt19937_64& random,
                std::int32_t* entries) {
  std::uniform_int_distribution<std::int64_t> value(table.contract.lo.const_value(),
                                                    table.contract.hi.const_value() - 1);
  for (std::int64_t i = 0; i < count; ++i) entries[i] = static_cast<std::int32_t>(value(random));
}

// Launches of these sizes after each other, with tables by lot. Buffers and outputs begin as NaN,
// inputs as 1: what is left of NaN in an output was read before it was written, or never written.
std::string run_at(const Program& program, const std::vector<std::vector<std::int64_t>>& sizes,
                   std::uint64_t seed) {
  std::string garbage;
  constexpr std::array kPolicies = {SchedulePolicy::kRandom, SchedulePolicy::kDelayRank,
                                    SchedulePolicy::kRunAhead};
  ControlledOptions options{.launches = static_cast<int>(sizes.size()),
                            .extents_in_turn = sizes,
                            .policy = kPolicies[seed % kPolicies.size()],
                            .seed = seed,
                            .delayed_rank = static_cast<int>(seed / 3 % 3) % program.world_size};
  std::mt19937_64 random(seed);
  auto each = [&](ControlledMemory& memory, int rank, auto&& visit) {
    for (std::size_t t = 0; t < program.tensors.size(); ++t) {
      std::byte* data = memory.data(rank, static_cast<int>(t));
      if (data != nullptr) visit(program.tensors[t], static_cast<int>(t), data);
    }
  };
  auto fill = [&](ControlledMemory& memory, int rank, bool all) {
    each(memory, rank, [&](const Tensor& tensor, int t, std::byte* data) {
      std::int64_t count = num_elements(bound_shape(program, t)) * tensor.num_slots;
      if (is_table(tensor)) {
        return fill_table(tensor, count, random, reinterpret_cast<std::int32_t*>(data));
      }
      if (tensor.packet) return;  // read when its tag has come
      auto* values = reinterpret_cast<float*>(data);
      bool poison =
          tensor.kind == TensorKind::kOutput || (all && tensor.kind != TensorKind::kInput);
      if (poison || all) std::fill(values, values + count, poison ? std::nanf("") : 1.0f);
    });
  };
  bool filled = false;
  options.before_launch = [&](int own, int, ControlledMemory& memory) {
    // At once on all ranks: others may write before a rank launches.
    for (int rank = 0; rank < program.world_size && !filled; ++rank) fill(memory, rank, true);
    filled = true;
    fill(memory, own, false);
  };
  options.after_launch = [&](int rank, int launch, ControlledMemory& memory) {
    each(memory, rank, [&](const Tensor& tensor, int, std::byte* data) {
      if (tensor.kind != TensorKind::kOutput) return;
      const auto* values = reinterpret_cast<const float*>(data);
      auto vars = initial_vars(program, rank, sizes[static_cast<std::size_t>(launch)]);
      std::int64_t count = 1;
      for (const Expr& dim : tensor.shape) count *= eval(dim, vars);
      for (std::int64_t i = 0; i < count; ++i) {
        if (std::isnan(values[i])) garbage = fmt::format("'{}' element {}", tensor.name, i);
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

// Whoever gets no verdict learns what was not shown, of what, and why; whose program is rejected,
// at which sizes and for which tables. That a line never meets its tensor is so for all.
void expect_all_said(const Program& program, const ProofResult& proof) {
  bool tables = std::ranges::any_of(program.tensors, is_table);
  for (const Finding& f : proof.findings) {
    EXPECT_NE(f.text.find("\n    with m = "), std::string::npos) << proof.report;
    bool named = f.text.find(", tables '") != std::string::npos;
    EXPECT_TRUE(named || !tables || f.kind == FindingKind::kOutside) << proof.report;
  }
  for (const Missing& m : proof.missing) {
    EXPECT_FALSE(m.what.empty() || m.where.empty() || m.expression.empty()) << proof.report;
  }
}

// Of programs, those that a run showed to be wrong, those that only the proof of every size
// rejects, and those that neither finds wrong.
struct Found {
  int wrong = 0, rejected_alone = 0, right = 0;
  int right_proved = 0, open = 0, in_pieces = 0, failing = 0;
  int judged() const { return wrong + rejected_alone + right; }
  void operator+=(const Found& other) {
    wrong += other.wrong, rejected_alone += other.rejected_alone, right += other.right;
    right_proved += other.right_proved, open += other.open, in_pieces += other.in_pieces;
    failing += other.failing;
  }
};

using Sizes = std::vector<std::vector<std::int64_t>>;  // of launches after each other

std::string describe(const Sizes& sizes) {
  std::string where;
  for (const auto& s : sizes) where += fmt::format(" ({})", fmt::join(s, ", "));
  return where;
}

// The oracle: empty, or what went wrong in a run at sizes where slips show, in one launch, in three
// of that size, and in three with another size among them. It knows nothing of the proof.
std::string dynamic_failure(const Program& program, const Sizes& slips_at,
                            std::mt19937_64& random) {
  for (std::size_t run = 0; run < 48 && !slips_at.empty(); ++run) {
    const auto& there = slips_at[random() % slips_at.size()];
    std::vector<std::int64_t> other = some_sizes(program, random);
    const std::array<Sizes, 4> launches = {
        {{there}, {there, there, there}, {there, other, there}, {other, there, other}}};
    const Sizes& sizes = launches[run % launches.size()];
    std::string failure = run_at(program, sizes, random());
    if (!failure.empty()) return failure + " at" + describe(sizes);
  }
  return "";
}

// Runs it twice: a launch of some size, or where `in_turn` three launches of different sizes after
// each other. What fails was not proved.
void run_by_lot(const Program& program, const ProofResult& proof, bool in_turn,
                std::mt19937_64& random, Found& found) {
  for (int run = 0; run < 2; ++run) {
    std::vector<std::vector<std::int64_t>> sizes;
    for (int launch = 0; launch < (in_turn ? 3 : 1); ++launch) {
      sizes.push_back(some_sizes(program, random));
    }
    std::string failure = run_at(program, sizes, random());
    found.failing += failure.empty() ? 0 : 1;
    EXPECT_TRUE(failure.empty() || !proof.proved()) << failure << " at" << describe(sizes);
    EXPECT_TRUE(failure.empty() || proof.rejected() || !proof.stats.every_table)
        << failure << " at" << describe(sizes);
  }
}

TEST(RandomSizes, NothingThatFailsAtSomeSizeIsProved) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("STRETTO_TEST_SEED={}", seed));
  std::mt19937_64 random(seed);
  Found all;
  std::map<std::string, Found> of_kind;
  for (int i = 0; i < num_sized_programs(); ++i) {
    if (i % 500 == 499) {
      fmt::print("{} pairs are drawn (seed {})\n", i + 1, seed);
      std::fflush(stdout);
    }
    std::uint64_t lot = random();
    bool twin_proved = false;  // the same without the slip
    for (bool slips : {false, true}) {
      sample::RandomSizes lots(lot, slips);
      Program program = run_pipeline(lots.program());
      Found& found = of_kind[lots.kind()];
      SCOPED_TRACE(fmt::format("program {} slips {}\n{}", lot, slips, print(program)));
      ProofResult by_size = prove(program, {.max_enumerated = 1u << 30, .partition = false});
      ProofResult by_piece = prove(program);
      expect_all_said(program, by_size);
      expect_all_said(program, by_piece);
      run_by_lot(program, by_piece, i % 3 == 0, random, found);
      std::string failure = slips ? dynamic_failure(program, lots.slips_at(), random) : "";
      EXPECT_TRUE(failure.empty() || (!by_size.proved() && !by_piece.proved())) << failure;
      // Too large to be looked at whole: what is found at some sizes is so, and nothing is proved
      // that fails at others.
      ProofResult by_few = prove(program, {.max_enumerated = 2 * by_size.stats.events});
      expect_all_said(program, by_few);
      EXPECT_TRUE(failure.empty() || !by_few.proved()) << failure;
      EXPECT_FALSE(by_few.proved() && by_size.rejected()) << by_size.report;
      EXPECT_FALSE(by_few.rejected() && by_size.proved()) << by_few.report;
      if (by_size.verdict == Verdict::kNotComplete) {  // of orders of launches
        ++found.open;
        continue;
      }
      EXPECT_TRUE(by_piece.verdict == by_size.verdict || by_piece.verdict == Verdict::kNotComplete)
          << by_piece.report << "\n"
          << by_size.report;
      found.in_pieces += by_piece.stats.cases < by_size.stats.cases ? 1 : 0;
      if (!slips) twin_proved = by_piece.proved();
      if (by_size.rejected()) {
        EXPECT_TRUE(slips) << by_size.report;
        EXPECT_TRUE(twin_proved) << "the mended twin of a wrong program";
        ++(failure.empty() ? found.rejected_alone : found.wrong);
      } else {
        ++found.right;
        found.right_proved += by_piece.proved() ? 1 : 0;
      }
    }
  }
  for (const auto& [kind, of] : of_kind) {
    fmt::print("{:14}: {:4} right, {:4} wrong, {:3} rejected that no run showed\n", kind, of.right,
               of.wrong, of.rejected_alone);
    all += of;
  }
  fmt::print(
      "{} programs, {} wrong, {} rejected that no run showed, {} right, {} of them proved, {} not "
      "complete; {} in pieces, {} runs by lot failed (seed {})\n",
      all.judged(), all.wrong, all.rejected_alone, all.right, all.right_proved, all.open,
      all.in_pieces, all.failing, seed);
  EXPECT_GE(all.right_proved, all.right * 95 / 100);
  // A third, less what it may be by chance: of each pair one may be wrong, with a probability of
  // two thirds or more; three standard deviations of that.
  EXPECT_GE(all.wrong, all.judged() / 3.0 - 3 * std::sqrt(all.judged() / 2.0 * 2 / 9));
  EXPECT_GT(all.failing, 0);
  EXPECT_LE(all.open, num_sized_programs() / 20 + 2);
}

// The pieces are all sizes, each once, and a launch of any size of a piece does as its sample's.
TEST(RandomSizes, PiecesAreAllSizesAndDoAsTheirSamples) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("STRETTO_TEST_SEED={}", seed));
  std::mt19937_64 random(seed);
  int partitions = 0;
  for (int i = 0; i < num_sized_programs(); ++i) {
    std::uint64_t lot = random();
    Program program = run_pipeline(sample::RandomSizes(lot, (i & 1) != 0).program());
    SCOPED_TRACE(fmt::format("program {}\n{}", lot, print(program)));
    std::unique_ptr<SizePartition> parts;
    NoPieces why;
    try {
      parts = partition_sizes(program, 2'000, why);
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
  EXPECT_GT(partitions, num_sized_programs() / 4);
}

// Mistakes in shipped operators, at bounds and ranks by lot: pieces of sizes and every size one by
// one say the same, where neither takes too long.
TEST(RandomSizes, MutantsOfOperatorsAreJudgedAsBySize) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("STRETTO_TEST_SEED={}", seed));
  std::mt19937_64 random(seed);
  constexpr std::chrono::milliseconds kLimit{3'000};
  int rejected = 0, accepted = 0, open = 0;
  for (int i = 0; i < num_sized_programs() / 4;) {
    const OperatorInfo& op = catalog()[random() % catalog().size()];
    auto world = static_cast<int>(1 + random() % 3);
    std::vector<OpShape> shapes = op.shapes(world);
    OpShape shape = shapes[random() % shapes.size()];
    shape.m = static_cast<std::int64_t>(73 + random() % 60);
    std::vector<Mutant> mutants;
    try {
      mutants = mutants_of(run_pipeline(op.program(shape)));
    } catch (const UserError&) {
      continue;  // of a shape that this operator does not have
    }
    if (mutants.empty() || extent_bounds(mutants[0].program).empty()) continue;
    ++i;
    const Mutant& mutant = mutants[random() % mutants.size()];
    SCOPED_TRACE(
        fmt::format("{} m={} P={}: {} at {}", op.name, shape.m, world, mutant.kind, mutant.site));
    ProofResult by_size = prove(
        mutant.program,
        {.max_enumerated = 1u << 30, .partition = false, .max_findings = 1, .time_limit = kLimit});
    ProofResult by_piece = prove(mutant.program, {.max_findings = 1, .time_limit = kLimit});
    bool is_open =
        by_size.verdict == Verdict::kNotComplete || by_piece.verdict == Verdict::kNotComplete;
    EXPECT_TRUE(is_open || by_piece.verdict == by_size.verdict) << by_piece.report << "\n"
                                                                << by_size.report;
    EXPECT_FALSE(by_piece.proved() && by_size.rejected());
    ++(is_open ? open : by_piece.rejected() ? rejected : accepted);
  }
  fmt::print("{} mutants rejected, {} proved, {} not complete one way or the other (seed {})\n",
             rejected, accepted, open, seed);
  EXPECT_GT(rejected, accepted);
}

}  // namespace
}  // namespace stretto
