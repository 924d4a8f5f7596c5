// Subcommands of gpu_bench about the model of machines: predicted points, what they measure, what
// is fitted to them.
#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <optional>

#include "bench/gpu/prediction/points.h"
#include "bench/gpu/report.h"
#include "bench/gpu/runs.h"
#include "stretto/ops/calibrate/calibrate_gpus.h"
#include "stretto/predict/prediction.h"

namespace stretto::bench {
namespace {

std::string machine_of_ranks(int ranks) {
  return fmt::format("h200x{}", ranks <= 1 ? 1 : ranks <= 2 ? 2 : ranks <= 4 ? 4 : 8);
}

}  // namespace

int run_predict_points(const Settings& s) {
  Json out = {{"commit", s.commit}, {"date", date_text()}};
  std::size_t count = 0;
  for (int ranks : s.ranks) {
    predict::Machine machine =
        predict::find_machine(s.calibrated.empty() ? machine_of_ranks(ranks) : s.calibrated);
    out["machines"].push_back(machine.name);
    std::vector<Point> points;
    if (s.shapes.empty()) points = predict_points(ranks, machine);
    for (const std::string& shape : s.shapes) {
      for (Point& p : predict_shape(shape, ranks, machine)) points.push_back(std::move(p));
    }
    for (const Point& p : points) {
      out["points"].push_back(p.to_json());
      ++count;
      if (!p.error.empty()) fmt::print("{}\n", p.to_string());
    }
  }
  std::ofstream(s.out) << out.dump(1) << "\n";
  fmt::print("{} points in {}\n", count, s.out);
  return 0;
}

int run_points(const Settings& s) {
  Json file = read_json_file(s.file);
  std::optional<Report> report;
  std::vector<Point> all;
  for (int ranks : s.world_size == 1 ? std::vector{1} : std::vector{1, s.world_size}) {
    std::vector<Point> points = read_points(file, s.file, ranks);
    GpuWorld world({.size = ranks});
    if (!report) report.emplace(world, s);
    measure_points(world, points, {.only = s.only, .samples = s.samples, .seed = s.seed},
                   [&](const Point& p) { report->keep("points", p); });
    all.insert(all.end(), points.begin(), points.end());
  }
  std::string text = "predicted before:\n" + summary(all);
  if (!s.calibrated.empty()) {
    predict_again(all, predict::find_machine(s.calibrated));
    text += "predicted with " + s.calibrated + ":\n" + summary(all);
    for (const Point& p : all) report->json()["after"].push_back(p.to_json());
  }
  report->json()["summary"] = text;
  report->write();
  fmt::print("{}", text);
  return 0;
}

int run_refit(const Settings& s) {
  Json file = read_json_file(s.file);
  std::vector<Point> points;
  for (int ranks : s.ranks) {
    for (Point& p : read_points(file, s.file, ranks)) points.push_back(std::move(p));
  }
  Refit found = refit(predict::find_machine(s.calibrated), std::move(points), s.refit);
  for (const auto* part : {&found.fitted, &found.held_out}) {
    for (const Point& p : *part) {
      fmt::print("{} {}\n", part == &found.fitted ? "fit " : "held", p.to_string());
    }
  }
  fmt::print("fitted:\n{}held out:\n{}", summary(found.fitted), summary(found.held_out));
  if (!s.out.empty()) std::ofstream(s.out) << predict::to_json(found.machine).dump(1) << "\n";
  return 0;
}

int run_calibrate(const Settings& s) {
  GpuWorld world({.size = s.world_size});
  Json out = machine_json(world, s);
  GpuCalibration found = calibrate_gpus(
      world, {.name = fmt::format("{} x{}", world.device(0).properties().name, s.world_size),
              .start = predict::find_machine(machine_of_ranks(s.world_size)),
              .seed = s.seed,
              .progress = [](const std::string& line) {
                fmt::print("{}\n", line);
                std::fflush(stdout);
              }});
  out.update(found.to_json());
  std::ofstream(s.out) << out.dump(1) << "\n";
  fmt::print("{}\n", predict::to_json(found.machine).dump(1));
  return 0;
}

}  // namespace stretto::bench
