// What a step plan would take on a machine, without a GPU: its launches one after the other from a
// graph, each as predict/prediction.h has it, and the memory of a rank. Comes after check.h; the
// command `stretto predict --model` prints it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "stretto/predict/launch_tables.h"
#include "stretto/predict/machine.h"
#include "stretto/step/plan.h"

namespace stretto::step {

// What holds a step up.
enum class Bound : std::uint8_t { kCompute, kMemory, kLinks, kLaunch };
const char* name(Bound bound);  // "compute", "memory", "links", "launch"

struct NodePrediction {
  std::size_t node = 0;
  double time_ms = 0;
  Bound bound = Bound::kLaunch;
};

struct StepPrediction {
  double time_ms = 0;
  Bound bound = Bound::kLaunch;       // that the nodes have which take the most time together
  std::vector<NodePrediction> nodes;  // those that are not passed over, once for each run
};

struct StepPredictOptions {
  std::vector<std::int64_t> values;  // for Plan::extents
  // How often a section is run; none of its name: once.
  std::map<std::string, std::int64_t> runs = {};
  // What the tables of a program's launches hold; none, or none for a program: the largest values.
  std::function<predict::LaunchTables(std::size_t program)> tables = {};
};

// Errors as check() and predict::predict().
StepPrediction predict(const Plan& plan, const predict::Machine& machine,
                       const StepPredictOptions& options);

// What a rank needs, in bytes.
struct StepBytes {
  std::size_t constants = 0, state = 0;
  std::size_t work = 0;      // memory.h
  std::size_t programs = 0;  // their own buffers

  std::size_t total() const { return constants + state + work + programs; }
};
StepBytes bytes_of(const Plan& plan);

}  // namespace stretto::step
