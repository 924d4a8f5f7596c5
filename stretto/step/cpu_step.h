// A step plan on one CPU rank: memory assigned, programs proved and bound once, so that a step is a
// list of launches. Comes after check.h and memory.h. Construction, destruction and every run are
// collective over the ranks: all run the same sections in the same order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "stretto/base/progress.h"
#include "stretto/runtime/world.h"
#include "stretto/step/memory.h"
#include "stretto/step/plan.h"

namespace stretto::step {

// This rank's handles: in the world of all ranks, and in that of its group.
struct Worlds {
  Rank& all;
  Rank& group;
};

struct CpuStepOptions {
  Sharing sharing = Sharing::kByLife;
  // Before a node, fills what the step's buffers in the arena hold that no node needs any more with
  // bytes of a NaN, so that a read of it shows. For tests.
  bool poison = false;
  Progress* progress = nullptr;  // hears what the construction does; outlives that
};

class CpuStep {
 public:
  // `given`: memory of constants and states, by name, but for symmetric ones; outlives this.
  // UserError as check(), and where one is not given; Rejected for a program that cannot be proved.
  CpuStep(const Worlds& worlds, Plan plan, const std::map<std::string, std::byte*>& given,
          const CpuStepOptions& options = {});
  ~CpuStep();
  CpuStep(const CpuStep&) = delete;
  CpuStep& operator=(const CpuStep&) = delete;

  const Plan& plan() const;
  const Memory& memory() const;
  // Where an input or output lies, for the caller. InternalError for a name that is none.
  std::byte* data(const std::string& buffer) const;

  // `values` are those of Plan::extents, all within their bounds, else InternalError. UserError and
  // Fault as Launch::run. `after` is called with the index of each node that ran.
  using After = std::function<void(std::size_t node)>;
  void run(const std::string& section, const std::vector<std::int64_t>& values,
           const After& after = {});

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace stretto::step
