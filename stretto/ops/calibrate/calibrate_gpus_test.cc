// What a user would lose: predictions that are right on the machine they have. Measured times are
// those of a model here: what a calibration makes of them is checked against it.
#include "stretto/ops/calibrate/calibrate_gpus.h"

#include <gtest/gtest.h>

#include <cmath>

#include "stretto/compiler.h"
#include "stretto/ops/calibrate/micro_programs.h"
#include "stretto/predict/prediction.h"

namespace stretto {
namespace {

double predicted_ms(const Program& program, const predict::Machine& machine) {
  Lowered compiled = lower(program);
  return predict::predict(compiled, machine).time_ms;
}

// What the machine file says was measured with so many SMs.
double measured(const predict::RateCurve& curve, int sms) {
  for (const auto& point : curve.points) {
    if (point.sms == sms) return point.rate;
  }
  ADD_FAILURE() << "not measured with " << sms << " SMs";
  return 1;
}

TEST(MicroPrograms, TakeWhatTheirOneResourceTakes) {
  predict::Machine m = predict::find_machine("h200x2");
  constexpr std::int64_t kRows = 16384;
  double bytes = static_cast<double>(kRows * kMoveCols) * 2;
  double all = predicted_ms(move_rows(2, Route::kLocal, kRows, 132), m);
  EXPECT_NEAR(all, 2 * bytes / m.hbm_rate * 1e3, 0.1 * all);
  for (int sms : {4, 16}) {
    double pull = predicted_ms(move_rows(2, Route::kPull, kRows, sms), m);
    double push = predicted_ms(move_rows(2, Route::kPush, kRows, sms), m);
    EXPECT_NEAR(pull, bytes / measured(m.pull, sms) * 1e3, 0.1 * pull) << sms;
    EXPECT_NEAR(push, bytes / measured(m.push, sms) * 1e3, 0.1 * push) << sms;
  }
  for (int ranks : {1, 2}) {
    constexpr int kHops = 64;
    double hop = m.notify_cost + (ranks == 1 ? m.local_signal_latency : m.link_latency);
    double time = predicted_ms(ping_pong(ranks, kHops), m) - predicted_ms(smallest(ranks), m);
    EXPECT_NEAR(time, kHops * hop * 1e3, 0.1 * time) << ranks;
  }
}

TEST(MicroPrograms, AreProved) {
  for (int ranks : {1, 2, 3}) {
    EXPECT_NO_THROW(prove(lower(smallest(ranks)))) << ranks;
    EXPECT_NO_THROW(prove(lower(ping_pong(ranks, 8)))) << ranks;
    EXPECT_NO_THROW(prove(lower(move_rows(ranks, Route::kLocal, 256, 3)))) << ranks;
  }
}

TEST(TrainingRuns, AreFittedToTheMachineThatTheyWereMeasuredOn) {
  predict::Machine truth = predict::find_machine("h200x1"), start = truth;
  truth.tensor_flops[DType::kBF16] *= 0.8;
  truth.tile_cost *= 3;
  std::vector<TrainingRun> runs;
  for (TrainingRun& run : training_runs(1)) {
    if (runs.size() == 8) break;
    run.measured_ms = predicted_ms(run.program, truth);
    runs.push_back(std::move(run));
  }
  double before = 0;
  for (const TrainingRun& run : runs) {
    before += std::abs(predicted_ms(run.program, start) / run.measured_ms - 1) / 8;
  }
  GpuCalibration found = fit_runs(start, runs, 4);
  EXPECT_LT(found.error, before / 2);
  EXPECT_EQ(found.training.size(), runs.size());
  // What it writes is a machine.
  predict::Machine read = predict::read_machine(found.to_json(), "calibration");
  EXPECT_EQ(predict::to_json(read), predict::to_json(found.machine));
}

}  // namespace
}  // namespace stretto
