#include "stretto/ops/harness/run_case.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

#include "stretto/compiler.h"
#include "stretto/ops/harness/case_memory.h"

namespace stretto {
namespace {

// First difference between what a launch left and what the reference expects, or "".
std::string compare(const OpCase& c, const CaseMemory& memory, int rank, int launch_idx) {
  const auto& expected = c.expected[static_cast<std::size_t>(rank)];
  for (std::size_t t = 0; t < expected.size(); ++t) {
    const Tensor& tensor = c.program.tensors[t];
    if (tensor.kind == TensorKind::kState && launch_idx > 0) continue;
    for (std::size_t i = 0; i < expected[t].size(); ++i) {
      double want = expected[t][i];
      if (std::isnan(want)) continue;
      double got = memory.element(t, i);
      double allowed = c.tolerance * (std::fabs(want) + c.scale);
      if (!(std::fabs(got - want) <= allowed)) {
        return fmt::format("{}[{}] is {}, expected {} (allowed difference {:.3g})", tensor.name, i,
                           got, want, allowed);
      }
    }
  }
  return memory.check_guards();
}

// Output bits of the first launch, which every later one must repeat.
class FirstBits {
 public:
  std::string check(const OpCase& c, const CaseMemory& memory) {
    bool first = bits_.empty();
    bits_.resize(c.program.tensors.size());
    for (std::size_t t = 0; t < bits_.size(); ++t) {
      if (c.program.tensors[t].kind != TensorKind::kOutput) continue;
      std::vector<std::byte> now = memory.bytes_of(t);
      if (first) {
        bits_[t] = std::move(now);
      } else if (now != bits_[t]) {
        return fmt::format("the bits of '{}' differ from those of launch 0",
                           c.program.tensors[t].name);
      }
    }
    return "";
  }

 private:
  std::vector<std::vector<std::byte>> bits_;
};

bool keeps_state(const Program& program) {
  for (const Tensor& t : program.tensors) {
    if (t.kind == TensorKind::kState) return true;
  }
  return false;
}

void delay_at_random(Instance& instance, const RunOptions& options, int rank) {
  if (options.delay_probability <= 0) return;
  auto bits =
      std::make_shared<std::mt19937_64>(options.seed * 64 + static_cast<std::uint64_t>(rank));
  instance.set_sync_hook([bits, options](const Instance::SyncPoint&) {
    double draw = static_cast<double>((*bits)() >> 11) * 0x1p-53;
    if (draw >= options.delay_probability) return;
    auto us = (*bits)() % static_cast<std::uint64_t>(options.max_delay_us + 1);
    std::this_thread::sleep_for(std::chrono::microseconds(us));
  });
}

std::string run_rank(Rank& rank, const OpCase& c, const CompiledProgram& compiled,
                     const RunOptions& options) {
  CaseMemory memory(rank, c);
  Instance instance(rank, compiled.schedule, compiled.quotas);
  delay_at_random(instance, options, rank.index());
  bool repeats = !keeps_state(c.program);
  FirstBits first_bits;
  std::string found;
  for (int i = 0; i < options.launches; ++i) {
    memory.poison_outputs();
    instance.launch(memory.args());
    if (!found.empty()) continue;
    std::string now =
        repeats || i == 0 ? compare(c, memory, rank.index(), i) : memory.check_guards();
    if (now.empty() && repeats) now = first_bits.check(c, memory);
    if (!now.empty()) found = fmt::format("launch {}: rank {}: {}", i, rank.index(), now);
  }
  return found;
}

}  // namespace

std::string run_case(const OpCase& op_case, const RunOptions& options) {
  CompiledProgram compiled = compile(op_case.program, {.require_proof = options.require_proof});
  World world({.size = op_case.program.world_size});
  std::mutex mutex;
  std::string difference;
  world.run([&](Rank& rank) {
    std::string found = run_rank(rank, op_case, compiled, options);
    std::lock_guard lock(mutex);
    if (difference.empty() && !found.empty()) {
      difference = fmt::format("{} (seed {}): {}", op_case.config, options.seed, found);
    }
  });
  return difference;
}

}  // namespace stretto
