#include "stretto/ops/harness/run_case.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>

#include "stretto/compiler.h"
#include "stretto/executor/executor.h"

namespace stretto {
namespace {

constexpr std::size_t kGuardBytes = 256;
constexpr std::byte kGuard{0xA5};
constexpr std::byte kPoison{0xFF};  // a NaN in every float format, -1 in integers

// One tensor's storage on one rank, with guard zones on both sides where it is the caller's own
// memory.
struct Storage {
  std::vector<std::byte> owned;
  SymmetricBuffer symmetric;
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

class RankRun {
 public:
  RankRun(Rank& rank, const OpCase& c, const CompiledProgram& compiled)
      : rank_(rank), case_(c), instance_(rank, compiled.schedule, compiled.quotas) {
    const Program& p = case_.program;
    storage_.resize(p.tensors.size());
    args_.tensors.resize(p.tensors.size());
    args_.extents = case_.extents;
    for (std::size_t t = 0; t < p.tensors.size(); ++t) make_storage(static_cast<int>(t));
  }

  Instance& instance() { return instance_; }

  // Returns what differed, or "".
  std::string launch(int launch_idx) {
    prepare(launch_idx);
    instance_.launch(args_);
    std::string difference = compare(launch_idx);
    return difference.empty() ? check_bits(launch_idx) : difference;
  }

 private:
  bool is_buffer(std::size_t t) const {
    return case_.program.tensors[t].kind == TensorKind::kBuffer;
  }

  void make_storage(int t) {
    auto idx = static_cast<std::size_t>(t);
    const Tensor& tensor = case_.program.tensors[idx];
    if (tensor.kind == TensorKind::kBuffer) return;
    Storage& s = storage_[idx];
    s.bytes = storage_bytes(case_.program, t);
    if (tensor.space == Space::kSymmetric) {
      s.symmetric = rank_.allocate(tensor.name, DType::kU8, std::max<std::size_t>(s.bytes, 1));
      s.data = s.symmetric.at[static_cast<std::size_t>(rank_.index())];
      args_.tensors[idx].symmetric = &s.symmetric;
      return;
    }
    s.owned.assign(s.bytes + 2 * kGuardBytes, kGuard);
    s.data = s.owned.data() + kGuardBytes;
    args_.tensors[idx].data = s.data;
  }

  void prepare(int launch_idx) {
    const auto& inputs = case_.inputs[static_cast<std::size_t>(rank_.index())];
    for (std::size_t t = 0; t < storage_.size(); ++t) {
      const Tensor& tensor = case_.program.tensors[t];
      if (tensor.kind == TensorKind::kBuffer) continue;
      if (tensor.kind == TensorKind::kOutput) {
        std::memset(storage_[t].data, static_cast<int>(kPoison), storage_[t].bytes);
      } else if (tensor.kind == TensorKind::kInput || launch_idx == 0) {
        for (std::size_t i = 0; i < inputs[t].size(); ++i) {
          store_element(tensor.dtype, storage_[t].data + i * size_bytes(tensor.dtype),
                        inputs[t][i]);
        }
      }
    }
  }

  std::string compare(int launch_idx) const {
    const auto& expected = case_.expected[static_cast<std::size_t>(rank_.index())];
    for (std::size_t t = 0; t < storage_.size(); ++t) {
      const Tensor& tensor = case_.program.tensors[t];
      if (std::string broken = check_guards(t); !broken.empty()) return broken;
      if (tensor.kind == TensorKind::kState && launch_idx > 0) continue;
      for (std::size_t i = 0; i < expected[t].size(); ++i) {
        double want = expected[t][i];
        if (std::isnan(want)) continue;
        double got = load_element(tensor.dtype, storage_[t].data + i * size_bytes(tensor.dtype));
        double allowed = case_.tolerance * (std::fabs(want) + case_.scale);
        if (!(std::fabs(got - want) <= allowed)) {
          return fmt::format(
              "launch {}: rank {}: {}[{}] is {}, expected {} (allowed difference {:.3g})",
              launch_idx, rank_.index(), tensor.name, i, got, want, allowed);
        }
      }
    }
    return "";
  }

  std::string check_guards(std::size_t t) const {
    const auto& owned = storage_[t].owned;
    for (std::size_t i = 0; i < owned.size(); ++i) {
      bool in_guard = i < kGuardBytes || i >= owned.size() - kGuardBytes;
      if (in_guard && owned[i] != kGuard) {
        return fmt::format(
            "rank {}: a write outside '{}', {} bytes from its start", rank_.index(),
            case_.program.tensors[t].name,
            static_cast<std::ptrdiff_t>(i) - static_cast<std::ptrdiff_t>(kGuardBytes));
      }
    }
    return "";
  }

  // Every launch gives the bits of the first one.
  std::string check_bits(int launch_idx) {
    if (launch_idx == 0) first_.resize(storage_.size());
    for (std::size_t t = 0; t < storage_.size(); ++t) {
      if (case_.program.tensors[t].kind != TensorKind::kOutput) continue;
      std::vector<std::byte> now(storage_[t].data, storage_[t].data + storage_[t].bytes);
      if (launch_idx == 0)
        first_[t] = std::move(now);
      else if (now != first_[t]) {
        return fmt::format("launch {}: rank {}: the bits of '{}' differ from those of launch 0",
                           launch_idx, rank_.index(), case_.program.tensors[t].name);
      }
    }
    return "";
  }

  Rank& rank_;
  const OpCase& case_;
  Instance instance_;
  std::vector<Storage> storage_;
  std::vector<std::vector<std::byte>> first_;
  LaunchArgs args_;
};

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

}  // namespace

std::string run_case(const OpCase& op_case, const RunOptions& options) {
  CompiledProgram compiled = compile(op_case.program, {.require_proof = options.require_proof});
  World world({.size = op_case.program.world_size});
  std::mutex mutex;
  std::string difference;
  world.run([&](Rank& rank) {
    RankRun run(rank, op_case, compiled);
    delay_at_random(run.instance(), options, rank.index());
    std::string found;
    for (int i = 0; i < options.launches; ++i) {
      std::string now = run.launch(i);
      if (found.empty()) found = now;
    }
    std::lock_guard lock(mutex);
    if (difference.empty() && !found.empty()) {
      difference = fmt::format("{} (seed {}): {}", op_case.config, options.seed, found);
    }
  });
  return difference;
}

}  // namespace stretto
