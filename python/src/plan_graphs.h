// What a plan of several launches and copies enqueues, as one graph for each memory that it is on:
// one call of the driver in place of one for each. From the second time on; what comes once is not
// worth a graph. For plan_cache.h.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "stretto/base/recently_used.h"
#include "stretto/runtime/cuda/stream.h"

namespace stretto::python {

class PlanGraphs {
 public:
  static constexpr std::size_t kMost = 16;  // memories; the last used stay

  // Not where CUDA_DEVICE_MAX_CONNECTIONS is set, as GpuInstance::replay_copies.
  static bool are_wanted();
  // Of plans that are made from now on; for benchmarks.
  static void want(bool on) { wanted_ = on; }

  // The graph of this memory: null the first time, and where the plan was refused. `key`: all
  // addresses, and what else the ranks' calls depend on. `make` captures.
  template <typename Make>
  const cuda::GraphExec* find(std::span<const std::uint64_t> key, const Make& make) {
    if (is_refused_) return nullptr;
    Known* known = known_.find([&](const Known& k) { return std::ranges::equal(k.key, key); });
    if (known == nullptr) {
      known_.keep({{key.begin(), key.end()}, {}});
      return nullptr;
    }
    if (!known->graph) known->graph = make();
    return &*known->graph;
  }
  // A graph cannot have it.
  void refuse() {
    is_refused_ = true;
    forget();
  }
  // Those that are under way run to their ends (cuGraphExecDestroy).
  void forget() { known_ = {}; }

 private:
  struct Known {
    std::vector<std::uint64_t> key;
    std::optional<cuda::GraphExec> graph;
  };
  static inline std::atomic<bool> wanted_ = true;
  RecentlyUsed<Known, kMost> known_;
  bool is_refused_ = false;
};

}  // namespace stretto::python
