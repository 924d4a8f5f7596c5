// GpuForwardStep::time_stages.
#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <set>

#include "stretto/base/statistics.h"
#include "stretto/model/gpu/gpu_forward_step.h"

namespace stretto {
namespace {

bool is_weight(const std::string& name) {
  return name != "cos" && name != "sin" && !name.ends_with("_cache");
}

}  // namespace

std::vector<GpuForwardStep::StageTime> GpuForwardStep::time_stages(int rounds) {
  finish();
  set_extents({.count = plan_.bound, .past = 0, .most = plan_.bound});
  head_args_.tensors[head_tensor_] = head_input_;
  head_args_.extents = {plan_.head_rows};
  std::map<std::string, std::size_t> bytes;
  for (const PlanBuffer& b : model_buffers(shape_)) {
    if (is_weight(b.name)) bytes[b.name] = b.bytes();
  }
  std::vector<Call> step;  // as the plan orders them
  std::map<std::size_t, StageTime> stages;
  std::map<std::size_t, std::set<std::string>> names;  // of weights
  auto add = [&](const PlanLaunch& launch, const GpuLaunchArgs& args) {
    step.push_back({launch.program, &args});
    StageTime& stage = stages[launch.program];
    stage.program = instances_[launch.program]->program().name;
    ++stage.launches;
    // Of an embedding a few rows are read.
    if (stage.program == "embedding") return;
    for (const Binding& b : launch.bindings) {
      auto found = bytes.find(b.buffer);
      if (found == bytes.end()) continue;
      stage.weight_bytes += found->second;
      names[launch.program].insert(b.buffer.substr(b.buffer.rfind('.') + 1));
    }
  };
  for (std::size_t i = 0; i < args_.size(); ++i) add(plan_.launches[i], args_[i]);
  add(plan_.head, head_args_);
  if (plan_.choose) add(*plan_.choose, choose_args_);

  auto time_those = [&](const std::function<bool(std::size_t)>& wanted) {
    std::vector<Call> calls;
    std::copy_if(step.begin(), step.end(), std::back_inserter(calls),
                 [&](const Call& call) { return wanted(call.program); });
    return time_calls(calls, rounds);
  };
  for (auto& [program, stage] : stages) {
    for (const std::string& name : names[program]) {
      stage.weights += (stage.weights.empty() ? "" : " ") + name;
    }
    stage.ms = time_those([only = program](std::size_t p) { return p == only; });
  }
  set_early_starts(early_starts_);
  double all = time_those([](std::size_t) { return true; });
  std::vector<StageTime> out;
  for (auto& [program, stage] : stages) {
    // The first launch stays, as in the step: what follows it may start early.
    if (program != step.front().program) {
      stage.of_step_ms =
          all - time_those([left_out = program](std::size_t p) { return p != left_out; });
    }
    out.push_back(stage);
  }
  set_early_starts(false);
  return out;
}

double GpuForwardStep::time_calls(const std::vector<Call>& calls, int rounds) {
  std::vector<cuda::GraphExec> graphs;
  std::vector<std::pair<cuda::Event, cuda::Event>> events;
  for (int r : world_.local_ranks()) {
    graphs.push_back(cuda::capture(world_.stream(r), [&] {
      for (const Call& c : calls) launch(c.program, *c.args, r, world_.stream(r));
    }));
    const cuda::Device& device = world_.device(r);
    events.emplace_back(cuda::Event(device, cuda::Event::Timing::kOn),
                        cuda::Event(device, cuda::Event::Timing::kOn));
  }
  std::vector<double> ms;
  constexpr int kWarmup = 2;
  for (int i = 0; i < rounds + kWarmup; ++i) {
    for (int r : world_.local_ranks()) {
      auto at = static_cast<std::size_t>(r);
      const cuda::Stream& stream = world_.stream(r);
      stream.record(events[at].first);
      graphs[at].launch(stream);
      stream.record(events[at].second);
    }
    finish();
    double slowest = 0;
    for (const auto& [begin, end] : events) {
      slowest = std::max(slowest, cuda::elapsed_ms(begin, end));
    }
    if (i >= kWarmup) ms.push_back(slowest);
  }
  return median(std::move(ms));
}

}  // namespace stretto
