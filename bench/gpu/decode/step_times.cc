#include "bench/gpu/decode/step_times.h"

#include <algorithm>

#include "bench/gpu/decode/decode_models.h"

namespace stretto::bench {

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

GpuModelOptions step_options(const Settings& s) { return {.require_proof = s.proof}; }

double time_replays(GpuForwardStep& step) {
  std::vector<double> ms;
  step.replay(4);
  for (int i = 0; i < 10; ++i) {
    constexpr int kTimes = 8;
    Clock::time_point begin = Clock::now();
    step.replay(kTimes);
    ms.push_back(seconds_since(begin) * 1e3 / kTimes);
  }
  return median(ms);
}

Json to_json(const std::vector<GpuForwardStep::StageTime>& stages) {
  Json out = Json::array();
  for (const GpuForwardStep::StageTime& t : stages) {
    double us = t.ms * 1e3 / t.launches, of_step_us = t.of_step_ms * 1e3 / t.launches;
    say("    {:<16} {:<22} {:4} launches, {:8.2f} us each, {:7.3f} ms, {:5.2f} TB/s; of the step "
        "{:8.2f} us each, {:7.3f} ms",
        t.program, t.weights, t.launches, us, t.ms,
        static_cast<double>(t.weight_bytes) / (t.ms * 1e9), of_step_us, t.of_step_ms);
    out.push_back({{"program", t.program},
                   {"weights", t.weights},
                   {"launches", t.launches},
                   {"bytes", t.weight_bytes / static_cast<std::size_t>(t.launches)},
                   {"us", us},
                   {"of_step_us", of_step_us}});
  }
  return out;
}

std::unique_ptr<GpuForwardStep> captured_step(const Settings& s, GpuModel& model,
                                              const GpuModelOptions& options) {
  auto made = model.make_step(1, options);
  std::unique_ptr<GpuForwardStep> step(static_cast<GpuForwardStep*>(made.release()));
  int token = 5;
  for (int i = 0; i < 2; ++i) {
    step->run({&token, 1}, s.context, 1);
    static_cast<void>(step->logits(0, 1));
  }
  return step;
}

Json time_tries(const Settings& s, GpuModel& model) {
  Json out = Json::array();
  for (const std::string& text : s.tries) {
    for (const std::string& slots : {std::string("0:0:0"), text}) {
      GpuModelOptions options = step_options(s);
      options.slots = parse_slots(slots);
      double ms = time_replays(*captured_step(s, model, options));
      say("  slots {}: {:.3f} ms", slots, ms);
      out.push_back({{"slots", slots}, {"early_ms", ms}});
    }
  }
  return out;
}

Json time_aheads(const Settings& s, GpuModel& model) {
  constexpr int kRounds = 5;
  std::vector<std::unique_ptr<GpuForwardStep>> steps;
  for (int mb : s.aheads) {
    GpuModelOptions options = step_options(s);
    options.ahead_bytes = std::int64_t{mb} << 20;
    steps.push_back(captured_step(s, model, options));
  }
  std::vector<std::vector<double>> ms(steps.size());
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < steps.size(); ++i) ms[i].push_back(time_replays(*steps[i]));
  }
  Json out = Json::array();
  for (std::size_t i = 0; i < steps.size(); ++i) {
    auto [least, most] = std::minmax_element(ms[i].begin(), ms[i].end());
    say("  {} MB ahead: {:.3f} ms, {:.3f} to {:.3f}", s.aheads[i], median(ms[i]), *least, *most);
    out.push_back({{"mb", s.aheads[i]}, {"early_ms", median(ms[i])}, {"rounds_ms", ms[i]}});
    if (s.stages) out.back()["stages"] = to_json(steps[i]->time_stages(9));
  }
  return out;
}

}  // namespace stretto::bench
