// The ways in which cases are run on GPUs: launched, replayed, on two streams, and with a rank that
// does not come.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "stretto/base/errors.h"
#include "stretto/testing/gpu_harness/gpu_case.h"

namespace stretto {
namespace {

constexpr int kReplays = 24;            // of all cases together, between comparisons
constexpr std::size_t kOverlapped = 8;  // launches of each of two instances at the same time

using Graphs = std::vector<cuda::GraphExec>;  // [local rank]

std::string launched(GpuCases& cases, const GpuRunOptions& options) {
  for (int i = 0; i < options.launches; ++i) {
    cases.run(options.back_to_back, [&](std::size_t c) { cases.launch(c); });
    std::string found = cases.compare();
    if (!found.empty()) return fmt::format("launch {}: {}", i, found);
  }
  return "";
}

std::vector<Graphs> captured(GpuCases& cases) {
  std::vector<Graphs> graphs;
  for (std::size_t c = 0; c < cases.size(); ++c) graphs.push_back(cases.capture(c));
  return graphs;
}

// Every graph has one launch; launches that no graph holds come before and after.
std::string replayed(GpuCases& cases, const std::vector<Graphs>& graphs) {
  for (int round = 0; round < 2; ++round) {
    cases.run(kReplays, [&](std::size_t c) { cases.replay(graphs[c]); });
    std::string found = cases.compare();
    if (!found.empty()) return fmt::format("replay: {}", found);
    cases.run(1, [&](std::size_t c) { cases.launch(c); });
    found = cases.compare();
    if (!found.empty()) return fmt::format("launch after replays: {}", found);
  }
  return "";
}

// Where the world's ledger of SMs has room, both instances' kernels are on a GPU together.
std::string overlapped(GpuWorld& world, GpuCases& first, GpuCases& second) {
  std::vector<cuda::Stream> streams;
  for (int rank : world.local_ranks()) streams.emplace_back(world.device(rank));
  std::vector<RankStream> on;
  for (int rank : world.local_ranks()) on.push_back({rank, &streams[world.local_index(rank)]});
  first.prepare();
  second.prepare();
  // Once where state goes from launch to launch.
  std::size_t times = first.size();
  if (!keeps_state(first.executable().program())) times = std::max(times, kOverlapped);
  for (std::size_t i = 0; i < times; ++i) {
    first.launch(i % first.size());
    second.launch((i + 1) % second.size(), on);
  }
  for (const cuda::Stream& s : streams) s.synchronize();
  std::string found = first.compare();
  if (found.empty()) found = second.compare();
  return found.empty() ? "" : fmt::format("two streams: {}", found);
}

// What is wrong with how a launch ended to which the last rank did not come.
std::string stalled(GpuWorld& world, GpuCases& cases, bool meet) {
  const std::string& name = cases.executable().program().name;
  auto begin = std::chrono::steady_clock::now();
  std::vector<RankStream> others = world.local_streams();
  others.pop_back();
  cases.launch(0, others);
  try {
    cases.executable().wait();
  } catch (const Fault& fault) {
    const FaultRecord& record = fault.record();
    if (!meet) return fmt::format("a fault among ranks that never meet: {}", fault.what());
    if (std::chrono::steady_clock::now() - begin > 10 * world.timeout()) return "the fault is late";
    bool named = record.program == name && record.rank >= 0 && record.rank + 1 < world.size();
    return named ? "" : fmt::format("the fault names something else: {}", fault.what());
  }
  return meet ? "no fault, though a rank did not come" : "";
}

Proved ready(const GpuWorld& world, const Program& program, const GpuRunOptions& options) {
  const GpuTarget gpu = world.target();
  if (!options.waiver.empty()) return waive_proof(lower(program), options.waiver, gpu);
  return prove(lower(program), {.gpu = gpu});
}

// The code, with the constants of launches that start early.
GpuCode build_code(const GpuWorld& world, const Proved& compiled, const Program& program,
                   const GpuRunOptions& options) {
  KernelOptions kernel = options.kernel;
  kernel.target = world.target();
  if (options.early) kernel.constants.merge(weight_inputs(program));
  return generate(compiled.lowered(), kernel);
}

std::string with_seed(const std::string& found, const GpuRunOptions& options) {
  return found.empty() ? "" : fmt::format("{} (seed {})", found, options.seed);
}

}  // namespace

std::string run_gpu_case(GpuWorld& world, const OpCase& op_case, const GpuRunOptions& options) {
  return run_gpu_cases(world, {&op_case, 1}, options).found;
}

GpuRunResult run_gpu_cases(GpuWorld& world, std::span<const OpCase> op_cases,
                           const GpuRunOptions& options) {
  std::string unsaid = check_expected(op_cases);
  if (!unsaid.empty()) return {.found = with_seed(unsaid, options), .not_captured = {}};
  Proved compiled = ready(world, op_cases.front().program, options);
  GpuCode code = build_code(world, compiled, op_cases.front().program, options);
  GpuCases cases(world, op_cases, compiled, code, options.early);
  const LaunchPlan& plan = code.kernel.launch;
  GpuRunResult result{.found = launched(cases, options),
                      .not_captured = {},
                      .starts_early = options.early && !plan.cooperative && plan.gate.empty()};
  if (result.found.empty() && options.graphs) {
    try {
      result.found = replayed(cases, captured(cases));
    } catch (const UserError& refused) {
      if (code.kernel.launch.gate.empty()) throw;  // no copy engines
      result.not_captured = refused.what();
    }
  }
  if (result.found.empty() && options.streams) {
    GpuCases second(world, op_cases, compiled, std::move(code), options.early);
    result.found = overlapped(world, cases, second);
  }
  result.found = with_seed(result.found, options);
  return result;
}

std::string stall_gpu_cases(GpuWorld& world, std::span<const OpCase> op_cases,
                            const GpuRunOptions& options) {
  Proved compiled = ready(world, op_cases.front().program, options);
  GpuCases cases(world, op_cases, compiled,
                 build_code(world, compiled, op_cases.front().program, options), options.early);
  std::string found = launched(cases, {.launches = 1});
  std::vector<Graphs> graphs;
  try {
    graphs = captured(cases);
  } catch (const UserError&) {  // run_gpu_cases says so
  }
  if (found.empty()) found = stalled(world, cases, ranks_meet(compiled.program()));
  world.clear_fault();  // the order of launches, too, which is another on the last rank
  cases.executable().recover();
  if (found.empty()) found = launched(cases, {.launches = 2});
  if (found.empty() && graphs.size() == cases.size()) found = replayed(cases, graphs);
  return with_seed(found.empty() ? "" : fmt::format("a rank does not come: {}", found), options);
}

}  // namespace stretto
