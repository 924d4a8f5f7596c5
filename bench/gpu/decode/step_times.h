// What gpu_decode measures of steps of one row, as they are and with what is tried.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "stretto/base/json.h"
#include "stretto/model/gpu/gpu_forward_step.h"
#include "stretto/model/gpu/gpu_model.h"

namespace stretto::bench {

using Clock = std::chrono::steady_clock;

struct Settings {
  std::string model = "llama-3-8b", dtype = "bf16", out, commit, driver;
  std::vector<int> ranks = {1, 2, 4};
  std::int64_t max_tokens = 4096, context = 512;
  int tokens = 64, layers = 0;
  double seconds = 240;
  bool proof = false, stages = true, early = true;
  bool exchanges = true;           // time what they take, too
  std::vector<std::string> tries;  // of RowSlots
  std::vector<int> aheads;         // MB of the gate projection that attention brings into L2
  bool prefill = false;            // compile those kernels, too
  std::int64_t prompt = 0;         // tokens of a prompt to time, too; 0: none
  bool whole_experts = false, ulysses = false;
  int data_groups = 1;  // of as many GPUs as `ranks` says each; compiled alone
};

// Printed at once, so that a run that is cut short has said what it found.
template <typename... Args>
void say(fmt::format_string<Args...> text, Args&&... args) {
  fmt::print(text, std::forward<Args>(args)...);
  fmt::print("\n");
  std::fflush(stdout);
}

inline double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}
double median(std::vector<double> v);

// Of steps of one row.
GpuModelOptions step_options(const Settings& s);
// A step that was captured: its second run.
std::unique_ptr<GpuForwardStep> captured_step(const Settings& s, GpuModel& model,
                                              const GpuModelOptions& options);
// Milliseconds of a replay of the captured step, the host enqueuing eight at a time.
double time_replays(GpuForwardStep& step);
Json to_json(const std::vector<GpuForwardStep::StageTime>& stages);

// A step with the slots of each of `s.tries`, and as it is between them.
Json time_tries(const Settings& s, GpuModel& model);
// A step with each of `s.aheads`, in turn, and its launches.
Json time_aheads(const Settings& s, GpuModel& model);

}  // namespace stretto::bench
