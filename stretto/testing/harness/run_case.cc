#include "stretto/testing/harness/run_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "stretto/testing/harness/case_data.h"
#include "stretto/testing/harness/case_memory.h"

namespace stretto {
namespace {

SyncHook delays_at_random(const RunOptions& options, int rank) {
  if (options.delay_probability <= 0) return {};
  auto bits =
      std::make_shared<std::mt19937_64>(options.seed * 64 + static_cast<std::uint64_t>(rank));
  return [bits, options](const SyncPoint&) {
    double draw = static_cast<double>((*bits)() >> 11) * 0x1p-53;
    if (draw >= options.delay_probability) return;
    auto us = (*bits)() % static_cast<std::uint64_t>(options.max_delay_us + 1);
    std::this_thread::sleep_for(std::chrono::microseconds(us));
  };
}

// A case on one rank.
struct CaseOnRank {
  CaseOnRank(const OpCase& c, int rank) : op_case(c), first(tensors_at_first(c, rank)) {}

  // "" or what is wrong with what a launch left.
  std::string check(int rank, const CaseMemory& memory) {
    TensorBytes left = [&](std::size_t t) { return memory.view(t); };
    std::string found = compare_case(op_case, rank, left);
    if (found.empty()) found = memory.check_guards();
    if (found.empty()) found = check_untouched(op_case, rank, first, left);
    if (found.empty()) found = bits.check(op_case, left);
    return found;
  }

  const OpCase& op_case;
  TensorsAtFirst first;
  FirstBits bits;
};

constexpr std::size_t kMemories = 2, kTurns = 2;  // run_case.h

std::string run_rank(Rank& rank, std::span<const OpCase> cases, const Proved& compiled,
                     const RunOptions& options) {
  std::vector<CaseOnRank> all;
  for (const OpCase& c : cases) all.emplace_back(c, rank.index());
  const std::size_t launches = static_cast<std::size_t>(options.launches) * all.size();
  const std::size_t turns = (launches + kTurns - 1) / kTurns;
  std::vector<std::unique_ptr<CaseMemory>> memories;
  for (std::size_t i = 0; i < std::min(kMemories, turns); ++i) {
    memories.push_back(std::make_unique<CaseMemory>(rank, cases.front()));
  }
  std::unique_ptr<Executable> loaded =
      load(compiled, rank, {.poison = true, .sync_hook = delays_at_random(options, rank.index())});
  std::string found;
  for (std::size_t i = 0; i < launches; ++i) {
    CaseOnRank& now = all[i % all.size()];
    CaseMemory& memory = *memories[i / kTurns % memories.size()];
    memory.take(now.first, now.op_case.extents);
    memory.launch(*loaded);
    if (!found.empty()) continue;
    std::string differs = now.check(rank.index(), memory);
    if (differs.empty()) continue;
    found = fmt::format("{} (seed {}): launch {}: rank {}: {}", now.op_case.config, options.seed, i,
                        rank.index(), differs);
  }
  return found;
}

// `own`, or else which rank of another process has found something.
std::string found_anywhere(Rank& rank, const std::string& own, const std::vector<int>& local) {
  SymmetricBuffer found = rank.allocate("results that differ", DType::kU8, 1);
  *found.on<std::uint8_t>(rank.index()) = own.empty() ? 0 : 1;
  rank.barrier();
  std::string text = own;
  for (int r = 0; r < rank.size() && text.empty(); ++r) {
    bool is_local = std::ranges::find(local, r) != local.end();
    if (!is_local && *found.on<std::uint8_t>(r) != 0)
      text = fmt::format("rank {}: it says what", r);
  }
  rank.release(found);
  return text;
}

}  // namespace

std::string run_case(const OpCase& op_case, const RunOptions& options) {
  return run_cases({&op_case, 1}, options);
}

std::string run_cases(std::span<const OpCase> cases, const RunOptions& options) {
  const Program& program = cases.front().program;
  std::string unsaid = check_expected(cases);
  if (!unsaid.empty()) return unsaid;
  Proved compiled =
      options.waiver.empty() ? prove(lower(program)) : waive_proof(lower(program), options.waiver);
  std::shared_ptr<World> world = options.world;
  if (world == nullptr) {
    world = std::make_shared<World>(WorldOptions{.size = program.world_size});
  }
  std::mutex mutex;
  std::string difference;
  world->run([&](Rank& rank) {
    std::string found = run_rank(rank, cases, compiled, options);
    found = found_anywhere(rank, found, world->local_ranks());
    std::lock_guard lock(mutex);
    if (difference.empty()) difference = std::move(found);
  });
  return difference;
}

}  // namespace stretto
