// The table of the lowered synchronisation, tested by mutation: without any one of its steps, or
// with a narrower scope, generated code may hand over memory that is not there yet. The proof has
// to see that in some shipped program, and to name the pair and the step.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "stretto/ir/sync_table.h"
#include "stretto/lang/program_builder.h"
#include "stretto/ops/catalog/catalog.h"
#include "stretto/ops/catalog/gpu_shape.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/mutation/run_mutants.h"

namespace stretto {
namespace {

struct Named {
  std::string name;
  Program program;
};

// What no shipped operator does: an agent that reads what it wrote, on_start and on_end that touch
// memory, products stored where the same worker stores again.
Program edges_touch_memory() {
  ProgramBuilder p("edges", 1);
  auto x = p.input("x", DType::kF32, {8, 8});
  auto before = p.buffer("before", DType::kF32, {8, 8});
  auto after = p.buffer("after", DType::kF32, {8, 8});
  auto y = p.output("y", DType::kF32, {8, 8});
  auto all = [](const TensorRef& t) { return t.tile({0, 0}, 8, 8); };
  p.on_start([&] { p.store(all(before), p.load(all(x))); });
  p.role("work", Resource::sms(1), p.range(1),
         [&](const Tile&) { p.store(all(after), p.load(all(before))); });
  p.on_end([&] { p.store(all(y), p.load(all(after))); });
  return run_pipeline(p.finish());
}

// on_start prepares what a product loads by TMA; its result is stored by TMA for on_end.
Program edges_around_a_product(bool fence) {
  ProgramBuilder p("edges_product", 1);
  auto x = p.input("x", DType::kBF16, {64, 64});
  auto b = p.input("b", DType::kBF16, {64, 64});
  auto a = p.buffer("a", DType::kBF16, {64, 64});
  auto c = p.buffer("c", DType::kBF16, {64, 64});
  auto y = p.output("y", DType::kBF16, {64, 64});
  auto all = [](const TensorRef& t) { return t.tile({0, 0}, 64, 64); };
  p.on_start([&] { p.store(all(a), p.load(all(x))); });
  p.role("gemm", Resource::sms(1).pipelined(fence ? 0 : 2), p.range(1), [&](const Tile&) {
    Value acc = p.zeros(DType::kF32, 64, 64);
    p.loop(1, [&](const Index&) { acc = dot(acc, p.load(all(a)), p.load(all(b)).T()); });
    p.store(all(c), cast(acc, DType::kBF16));
    if (!fence) return;
    p.worker_fence();
    Value again = p.load(all(c));
    p.store(all(c), again + again);
  });
  p.on_end([&] { p.store(all(y), p.load(all(c))); });
  return run_pipeline(p.finish());
}

// A consumer writes what another reads, in turn, with a named barrier between.
Program agents_at_a_barrier() {
  ProgramBuilder p("barrier", 1);
  auto x = p.input("x", DType::kF32, {8, 8});
  auto middle = p.buffer("middle", DType::kF32, {8, 8});
  auto y = p.output("y", DType::kF32, {8, 8});
  auto all = [](const TensorRef& t) { return t.tile({0, 0}, 8, 8); };
  p.role("work", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.store(all(middle), p.load(all(x)));
    p.worker_fence();
    p.store(all(y), p.load(all(middle)));
  });
  Program program = run_pipeline(p.finish());
  Role& role = program.roles[0];
  Block& body = role.agents[0].body;
  auto fence = std::find_if(body.begin(), body.end(),
                            [](const Op& op) { return op.code == OpCode::kFence; });
  role.barriers = {{.name = "written", .num_arrivals = 2}};
  Agent second = role.agents[0];
  second.name = "second";
  Op reach{.code = OpCode::kArrive, .symbol = 0, .loc = role.loc};
  Op pass{.code = OpCode::kBarrierSync, .symbol = 0, .loc = role.loc};
  second.body = {pass};
  second.body.insert(second.body.end(), fence + 1, body.end());
  body.erase(fence, body.end());
  body.push_back(reach);
  role.agents.push_back(second);
  return program;
}

// As an operator runs on a GPU, in 16 bits where it has such a shape.
Program on_gpu(const OperatorInfo& op, int world_size) {
  return spread_over_workers(run_pipeline(op.program(gpu_shape(op, world_size))));
}

const std::vector<Named>& programs() {
  static const std::vector<Named> all = [] {
    std::vector<Named> out = {{"edges", edges_touch_memory()},
                              {"edges_product", edges_around_a_product(false)},
                              {"fenced_product", edges_around_a_product(true)},
                              {"barrier", agents_at_a_barrier()}};
    for (const OperatorInfo& op : catalog()) out.push_back({op.name, on_gpu(op, 2)});
    return out;
  }();
  return all;
}

struct TableMutant {
  std::string name, step;  // the step that is missing, as a report names it; may be empty
  SyncTable table;
};

const char* doers(Doers by) {
  static constexpr const char* names[] = {"one thread", "issuers", "warps", "all", "each"};
  return names[static_cast<std::size_t>(by)];
}

void change_row(SyncRow row, std::vector<TableMutant>& out) {
  const SyncSteps& steps = sync_table()[row];
  auto add = [&](const std::string& what, std::size_t i, const SyncSteps& changed) {
    SyncTable table = sync_table();
    table[row] = changed;
    out.push_back(
        {fmt::format("{}: {} {}", name(row), what, describe(steps[i])), name(row), table});
  };
  for (std::size_t i = 0; i < steps.size(); ++i) {
    SyncSteps changed = steps;
    changed.erase(changed.begin() + static_cast<std::ptrdiff_t>(i));
    add("drop", i, changed);
    auto weaken = [&](const std::string& what, auto edit) {
      changed = steps;
      edit(changed[i]);
      if (changed[i] != steps[i]) add(what, i, changed);
    };
    if (steps[i].scope > Scope::kThread) {
      weaken("narrow",
             [](SyncStep& s) { s.scope = static_cast<Scope>(static_cast<int>(s.scope) - 1); });
    }
    for (Doers by : {Doers::kFirst, Doers::kEach}) {
      bool matters = steps[i].kind != StepKind::kMeet && steps[i].kind != StepKind::kCompleteLoads;
      if (matters && steps[i].by != Doers::kFirst && steps[i].by != Doers::kEach) {
        weaken(fmt::format("by {}", doers(by)), [by](SyncStep& s) { s.by = by; });
      }
    }
    if (steps[i].kind == StepKind::kCompleteStores) {
      weaken("only read by", [](SyncStep& s) { s.kind = StepKind::kReadStores; });
    }
    if (i + 1 < steps.size()) {
      changed = steps;
      std::swap(changed[i], changed[i + 1]);
      add("one later", i, changed);
    }
  }
}

std::vector<TableMutant> table_mutants() {
  std::vector<TableMutant> out;
  for (std::size_t r = 0; r < kNumSyncRows; ++r) change_row(static_cast<SyncRow>(r), out);
  SyncTable table = sync_table();
  table.coherent_loads = false;
  out.push_back({"loads through the read-only cache", "not coherent", table});
  return out;
}

// Changes of the table that no program can be hurt by.
struct Harmless {
  const char* mutant;
  const char* reason;
};
const std::vector<Harmless>& harmless() {
  static const std::vector<Harmless> all = {
      {"worker_fence: narrow fence.acq_rel.gpu by every thread",
       "a worker that may fence is one block"},
      {"worker_fence: one later fence.acq_rel.gpu by every thread",
       "the two fences of a thread come in either order"},
      {"worker_fence: one later fence.proxy.async by every thread",
       "the thread that issues what follows may fence instead of the one that wrote"},
      {"pipe stage: by one thread release.cta by every warp",
       "after a barrier of all threads one could arrive for all"},
      {"pipe stage: by each release.cta by every warp",
       "after a barrier of all threads one could arrive for all"},
      {"pipe put: one later release.cta by one thread",
       "the slot is full when both the arrival and the bytes have come"},
  };
  return all;
}

TEST(SyncTable, EveryProgramIsProvedWithIt) {
  for (const Named& p : programs()) {
    ProofResult result = prove(p.program, mutant_options());
    EXPECT_FALSE(result.rejected()) << p.name << "\n" << result.report;
  }
}

TEST(SyncTable, EveryStepIsNeeded) {
  std::set<std::string> survivors;
  int num_mutants = 0;
  for (const TableMutant& mutant : table_mutants()) {
    ++num_mutants;
    ProofOptions options = mutant_options();
    options.table = &mutant.table;
    bool caught = false;
    for (const Named& p : programs()) {
      ProofResult result = prove(p.program, options);
      if (!result.rejected()) continue;
      caught = true;
      EXPECT_NE(result.report.find(mutant.step), std::string::npos)
          << mutant.name << ", " << p.name << ":\n"
          << result.report;
      break;
    }
    if (!caught) survivors.insert(mutant.name);
  }
  for (const std::string& s : survivors) {
    EXPECT_TRUE(std::any_of(harmless().begin(), harmless().end(),
                            [&](const Harmless& h) { return s == h.mutant; }))
        << "nothing needs: " << s;
  }
  for (const Harmless& h : harmless()) {
    EXPECT_EQ(survivors.count(h.mutant), 1u) << "is needed after all: " << h.mutant;
  }
  fmt::print("{} changes of the table, {} harmless\n", num_mutants, survivors.size());
}

// Products in 16 bits may leave by TMA, all else by threads.
TEST(SyncTable, BulkReductionsOfSeveralRanksAreRefused) {
  for (DType dtype : {DType::kBF16, DType::kF32}) {
    ProgramBuilder p("meet", 2);
    auto x = p.input("x", dtype, {8, 8});
    auto sum = p.buffer("sum", dtype, {8, 8}, {.space = Space::kSymmetric});
    auto y = p.output("y", dtype, {8, 8});
    p.role("add", Resource::sms(1), p.range(1), [&](const Tile&) {
      Value rows = p.load(x.tile({0, 0}, 8, 8));
      Value product = cast(dot(p.zeros(DType::kF32, 8, 8), rows, rows.T()), dtype);
      p.reduce_store(sum.on(0).tile({0, 0}, 8, 8), product);
      p.store(y.tile({0, 0}, 8, 8), product);
    });
    ProofResult result = prove(run_pipeline(p.finish()));
    bool refused = result.report.find("reductions of several ranks") != std::string::npos;
    EXPECT_EQ(refused, dtype == DType::kBF16) << result.report;
  }
}

}  // namespace
}  // namespace stretto
