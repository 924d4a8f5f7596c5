// The proof, tested by mutation: one mistake at every synchronisation site of every shipped
// operator. If a mistake is accepted here, a user's kernel with the same mistake runs, and computes
// wrong numbers on one launch in a thousand.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "stretto/base/test_seed.h"
#include "stretto/executor/controlled.h"
#include "stretto/ir/sample_programs.h"
#include "stretto/ir/tables.h"
#include "stretto/lang/program_builder.h"
#include "stretto/ops/catalog/catalog.h"
#include "stretto/ops/catalog/gpu_shape.h"
#include "stretto/ops/collectives/collectives.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/mutation/explained_survivors.h"
#include "stretto/proof/mutation/run_mutants.h"

namespace stretto {
namespace {

// A small ragged shape with several tiles per rank.
Program small_program(const OperatorInfo& op, const OpShape& shape) {
  return spread_over_workers(run_pipeline(op.program(shape)));
}
Program small_program(const OperatorInfo& op, int world_size) {
  return small_program(op, op.shapes(world_size)[1]);
}

// The same as it runs on a GPU, in 16 bits where the operator has such a shape.
Program gpu_program(const OperatorInfo& op, int world_size) {
  return spread_over_workers(run_pipeline(op.program(gpu_shape(op, world_size))));
}

bool mentions_any(const std::string& text, const std::vector<std::string>& clues) {
  return std::any_of(clues.begin(), clues.end(),
                     [&](const std::string& clue) { return text.find(clue) != std::string::npos; });
}

// Whether it says at which sizes and for which tables it is so. That a line never meets its tensor
// is so for all, and whoever is notified by a table is refused before there is one.
bool names_all(const Program& program, const Finding& finding) {
  bool sizes =
      extent_bounds(program).empty() || finding.text.find("\n    with ") != std::string::npos;
  bool tables = !std::ranges::any_of(program.tensors, is_table) ||
                finding.text.find("tables '") != std::string::npos ||
                finding.kind == FindingKind::kOutside ||
                finding.text.find("a notify depends on a table") != std::string::npos;
  return sizes && tables;
}

// Tables at the top of what their contract allows, partitions in equal parts: empty ones would
// leave nothing to race on.
void fill_tables(const Program& program, int rank, const std::vector<std::int64_t>& extents,
                 ControlledMemory& memory) {
  std::vector<std::int64_t> vars = initial_vars(program, rank, extents);
  for (std::size_t t = 0; t < program.tensors.size(); ++t) {
    const Tensor& tensor = program.tensors[t];
    bool distinct = tensor.contract.kind == ContractKind::kPermutation;
    bool parts = tensor.contract.kind == ContractKind::kPartition;
    bool table = tensor.kind == TensorKind::kInput && tensor.dtype == DType::kI32 &&
                 (distinct || parts || tensor.contract.kind == ContractKind::kRange);
    if (!table) continue;
    auto* values = reinterpret_cast<std::int32_t*>(memory.data(rank, static_cast<int>(t)));
    std::int64_t count = num_elements(bound_shape(program, static_cast<int>(t)));
    auto top = static_cast<std::int32_t>(eval(tensor.contract.hi, vars) - 1);
    std::fill(values, values + count, top);
    if (!distinct && !parts) continue;
    auto lowest = static_cast<std::int32_t>(eval(tensor.contract.lo, vars));
    for (std::int32_t i = 0; parts && i + 1 < count; ++i) {
      values[i] = lowest + static_cast<std::int32_t>((top - lowest) * i / (count - 1));
    }
    if (parts) continue;
    for (std::int32_t i = 0; i < count; ++i) values[i] = top >= i ? top - i : lowest;
  }
}

// Empty, or what goes wrong when the program runs, under schedules that tend to show it.
std::string dynamic_failure(const Program& program, std::uint64_t seed) {
  auto shared = std::make_shared<const Program>(program);
  Quotas quotas = count_quotas(program, extent_bounds(program));
  for (std::uint64_t i = 0; i < 12; ++i) {
    ControlledOptions options{.launches = 3, .seed = seed + i, .compute = false};
    options.extents = extent_bounds(program);
    if (i % 2 == 1) {
      for (std::int64_t& e : options.extents) e = e / 3 + 1;
    }
    options.policy = i % 3 == 0   ? SchedulePolicy::kRandom
                     : i % 3 == 1 ? SchedulePolicy::kDelayRank
                                  : SchedulePolicy::kRunAhead;
    options.delayed_rank = static_cast<int>(i) % program.world_size;
    options.before_launch = [&](int rank, int, ControlledMemory& memory) {
      fill_tables(program, rank, options.extents, memory);
    };
    ControlledResult result = run_controlled(shared, quotas, options);
    if (!result.ok()) return result.report;
  }
  return "";
}

std::string describe(const std::string& label, const Mutant& mutant) {
  return fmt::format("{} | {} | {}", label, mutant.kind, mutant.site);
}

// "rrraar" as "r3 a2 r1".
std::string shortened(const std::string& letters) {
  std::string out;
  for (std::size_t i = 0, end = 0; i < letters.size(); i = end) {
    end = std::min(letters.find_first_not_of(letters[i], i), letters.size());
    out += fmt::format("{}{}{}", out.empty() ? "" : " ", letters[i], end - i);
  }
  return out;
}

// Label and verdicts of each program, from the file of what was committed.
std::map<std::string, std::string> kept_verdicts() {
  std::map<std::string, std::string> kept;
  std::ifstream file(STRETTO_MUTANT_VERDICTS);
  for (std::string line; std::getline(file, line);) {
    std::size_t colon = line.find(": ");
    if (colon != std::string::npos) kept[line.substr(0, colon)] = line.substr(colon + 2);
  }
  return kept;
}

// "r3 a2 r1" as "rrraar".
std::string written_out(const std::string& line) {
  std::string letters;
  std::istringstream runs(line);
  for (std::string run; runs >> run;) letters.append(std::stoul(run.substr(1)), run[0]);
  return letters;
}

// What was rejected is never accepted: where the mutants are those that were committed, such a
// letter stays as it was, so that the file as it is now does not agree with what the proof says.
std::string without_lost(const std::string& label, const std::string& letters,
                         const std::string& kept) {
  std::string out = letters;
  for (std::size_t i = 0; letters.size() == kept.size() && i < letters.size(); ++i) {
    if (kept[i] != 'r' || letters[i] != 'a') continue;
    ADD_FAILURE() << label << ": mutant " << i << " was rejected and is accepted now";
    out[i] = 'r';
  }
  return out;
}

// Who changes the proof, operators or mutants commits the new lines on purpose, and looks at each
// mutant that was rejected and is not complete now, or is accepted and was not.
// `is_whole`: all programs were looked at.
void compare_with_kept(const std::map<std::string, std::string>& verdicts, bool is_whole) {
  std::map<std::string, std::string> kept = kept_verdicts();
  std::string all;
  for (const auto& [label, letters] : verdicts) {
    EXPECT_EQ(shortened(letters), kept[label])
        << label << ": r: rejected, n: not complete, a: accepted, kept in mutant_verdicts";
    std::string line = shortened(without_lost(label, letters, written_out(kept[label])));
    all += fmt::format("{}: {}\n", label, line);
    kept.erase(label);
  }
  if (!is_whole) return;
  for (const auto& [label, line] : kept) ADD_FAILURE() << label << " has no mutants any more";
  if (!testing::Test::HasFailure()) return;
  std::string path = testing::TempDir() + "mutant_verdicts.txt";
  std::ofstream(path) << all;
  fmt::print("verdicts as they are now: {}\n", path);
}

class Mutants : public testing::Test {
 protected:
  // Of the programs that this commit draws.
  void check(const std::string& label, const Program& program) {
    if (!is_drawn("mutants of " + label, 6)) return;
    total_.add(run_mutants(label, program, [&](const Mutant& mutant, const ProofResult& result) {
      if (result.rejected()) {
        EXPECT_TRUE(mentions_any(result.report, mutant.clues))
            << describe(label, mutant) << "\n"
            << result.report << "\nnames none of "
            << fmt::format("{}", fmt::join(mutant.clues, ", "));
        EXPECT_TRUE(names_all(mutant.program, result.findings[0]))
            << describe(label, mutant) << "\n"
            << result.report;
        return;
      }
      if (!result.proved()) return;  // no launch takes it
      EXPECT_EQ(dynamic_failure(mutant.program, seed_), "") << describe(label, mutant);
    }));
  }

  std::uint64_t seed_ = test_seed();
  MutationSummary total_;
};

// A worker that reads back what it wrote.
Program fenced() {
  ProgramBuilder p("fenced", 1);
  auto x = p.input("x", DType::kF32, {4, 8});
  auto scratch = p.buffer("scratch", DType::kF32, {4, 8});
  auto y = p.output("y", DType::kF32, {4, 8});
  p.role("transpose", Resource::sms(2), p.range(4), [&](const Tile& t) {
    p.store(scratch.tile({t.index, 0}, 1, 8), p.load(x.tile({t.index, 0}, 1, 8)));
    p.worker_fence();
    p.store(y.tile({t.index, 0}, 1, 8), p.load(scratch.tile({t.index, 0}, 1, 8)));
  });
  return run_pipeline(p.finish());
}

// Products that an agent of its own stores at a peer, which hands them on.
Program epilogue_warp() {
  ProgramBuilder p("epilogue_warp", 2);
  auto a = p.input("a", DType::kBF16, {13, 64});
  auto b = p.input("b", DType::kBF16, {140, 64});
  auto got = p.buffer("got", DType::kBF16, {13, 140}, {.space = Space::kSymmetric});
  auto c = p.output("c", DType::kBF16, {13, 140});
  auto ready = p.signal("ready", 1), arrived = p.signal("arrived", 4);
  Index other = 1 - p.rank();
  p.on_start([&] { p.notify(ready[0], other); });
  Resource sms = Resource::sms(2).pipelined(2).with_epilogue(2);
  p.role("multiply", sms, p.grid(c, 8, 128), [&](const Tile& t) {
    Value acc = p.zeros(DType::kF32, 8, 128);
    p.loop(4, [&](const Index& i) {
      acc = dot(acc, p.load(a.tile({t.row, i * 16}, 8, 16)),
                p.load(b.tile({t.col, i * 16}, 128, 16)).T());
    });
    p.wait(ready[0], 1);
    p.store(got.tile({t.row, t.col}, 8, 128).on(other), cast(acc, DType::kBF16));
    p.notify(arrived[t.index], other);
  });
  p.role("hand_on", Resource::sms(1), p.grid(c, 8, 128), [&](const Tile& t) {
    p.wait(arrived[t.index], 1);
    p.store(c.tile({t.row, t.col}, 8, 128), p.load(got.tile({t.row, t.col}, 8, 128)));
  });
  return run_pipeline(p.finish());
}

// On more ranks, or with more rows, the same mutant may do harm.
void expect_explained_there_alone(const Survivor& survivor) {
  Survivor on_more_ranks = survivor, with_more_rows = survivor;
  on_more_ranks.ranks += 20;
  with_more_rows.bounds += "m = 999";
  for (const Survivor& s : {on_more_ranks, with_more_rows}) {
    EXPECT_EQ(find_explanation(s), nullptr) << s.label << " | " << s.kind << " | " << s.site;
  }
}

// Of all that an explanation names, something survives.
void expect_all_named_survive(const Explanation& e, const std::vector<Survivor>& survivors) {
  std::set<int> ranks(e.at.ranks.begin(), e.at.ranks.end());
  std::set<std::string> bounds(e.at.bounds.begin(), e.at.bounds.end());
  for (const Survivor& s : survivors) {
    if (!explains(e, s)) continue;
    ranks.erase(s.ranks);
    bounds.erase(s.bounds);
  }
  EXPECT_TRUE(ranks.empty() && bounds.empty())
      << "explains nothing any more: " << e.program << " | " << e.kind << " | " << e.site << " on "
      << fmt::format("{} ranks, {}", fmt::join(ranks, " or "), fmt::join(bounds, " or "));
}

// Explained with 37 rows, and not where nobody has looked.
TEST(Explanations, HoldForNoBoundsThatTheyDoNotName) {
  const OperatorInfo& op = *find_operator("reduce_scatter");
  OpShape shape = op.shapes(2)[1];
  auto survivors = [&] { return run_mutants("reduce_scatter P=2", small_program(op, shape)); };
  EXPECT_EQ(survivors().unexplained(), 0);
  shape.m += 5;
  MutationSummary elsewhere = survivors();
  EXPECT_GT(elsewhere.survivors.size(), 0u);
  EXPECT_EQ(elsewhere.unexplained(), static_cast<int>(elsewhere.survivors.size()));
}

TEST_F(Mutants, OfEveryOperatorAreRejectedOrExplained) {
  SCOPED_TRACE("STRETTO_TEST_SEED=" + std::to_string(seed_));
  for (const OperatorInfo& op : catalog()) {
    for (int world_size : {2, 3}) {
      check(fmt::format("{} P={}", op.name, world_size), small_program(op, world_size));
      Program split = gpu_program(op, world_size);
      if (is_split(split)) check(fmt::format("{} P={} gpu", op.name, world_size), split);
    }
  }
  // Of four ranks a window hides some from each other.
  for (const char* name : {"sequence_attention", "ring_attention", "token_ring"}) {
    const OperatorInfo& op = *find_operator(name);
    Program program = op.program(op.shapes(4).back());
    check(fmt::format("{} P=4 window", name), spread_over_workers(run_pipeline(program)));
  }
  // The ring's slots are used again from four ranks on.
  check("ring_attention P=4", small_program(*find_operator("ring_attention"), 4));
  for (const char* name : {"ep_send", "ep_send_fp8", "ep_return"}) {
    for (int world_size : {2, 3}) {
      Program program =
          find_operator(name)->program(find_operator(name)->shapes(world_size).back());
      check(fmt::format("{} P={} in turn", name, world_size),
            spread_over_workers(run_pipeline(program)));
    }
  }
  for (int world_size : {2, 3}) {
    CollectiveDesc d{.dtype = DType::kBF16, .m = 37, .n = 29, .world_size = world_size};
    CollectiveConfig pushing{.tile_rows = 3, .tile_cols = 16, .push = true};
    check(fmt::format("push_all_reduce P={}", world_size),
          spread_over_workers(run_pipeline(all_reduce(d, pushing))));
    pushing.ring_slots = 2;
    check(fmt::format("ring_all_reduce P={}", world_size), run_pipeline(all_reduce(d, pushing)));
    pushing.num_receivers = 1;
    check(fmt::format("ring_reduce_scatter P={}", world_size),
          run_pipeline(reduce_scatter(d, pushing)));
  }
  check("fenced", fenced());
  check("epilogue_warp", epilogue_warp());
  check("piped", sample::schedule_program());

  EXPECT_GE(total_.mutants, every_case_is_drawn() ? 300 : 100);
  EXPECT_GE(total_.mutants_by_kind.size(), every_case_is_drawn() ? 12u : 8u);
  for (const Survivor& s : total_.survivors) {
    EXPECT_FALSE(s.reason.empty()) << fmt::format("unexplained on {} ranks, {}: {} | {} | {}",
                                                  s.ranks, s.bounds, s.label, s.kind, s.site);
    if (!s.reason.empty()) expect_explained_there_alone(s);
  }
  if (every_case_is_drawn()) {
    for (const Explanation& e : explanations()) expect_all_named_survive(e, total_.survivors);
  }
  compare_with_kept(total_.verdicts, every_case_is_drawn());
  fmt::print("{} mutants of {} kinds, {} rejected, {} not complete, {} harmless, {:.1f} s\n",
             total_.mutants, total_.mutants_by_kind.size(), total_.rejected, total_.not_complete,
             total_.survivors.size(), total_.seconds);
}

}  // namespace
}  // namespace stretto
