#include "bench/gpu/prediction/refit.h"

#include <algorithm>
#include <map>
#include <set>

#include "stretto/base/errors.h"
#include "stretto/compiler.h"
#include "stretto/predict/calibrate.h"

namespace stretto::bench {
namespace {

// Whether a point's shape is fitted to: every second one of its operator in the order of sizes.
std::vector<bool> is_fitted(const std::vector<Point>& points) {
  auto key = [](const Point& p) { return std::tuple(p.shape.n, p.shape.k, p.shape.m); };
  std::map<std::string, std::set<std::tuple<std::int64_t, std::int64_t, std::int64_t>>> shapes;
  for (const Point& p : points) shapes[p.op].insert(key(p));
  std::vector<bool> fitted;
  for (const Point& p : points) {
    const auto& of_op = shapes[p.op];
    fitted.push_back(std::distance(of_op.begin(), of_op.find(key(p))) % 2 == 0);
  }
  return fitted;
}

}  // namespace

Refit refit(const predict::Machine& start, std::vector<Point> points, const RefitOptions& options) {
  std::erase_if(points, [&](const Point& p) {
    return !(p.measured_ms > 0) || p.label().find(options.only) == std::string::npos ||
           (options.most_rows > 0 && p.shape.m > options.most_rows);
  });
  Refit result{.machine = start};
  std::vector<bool> fitted = is_fitted(points);
  for (std::size_t i = 0; i < points.size(); ++i) {
    (fitted[i] ? result.fitted : result.held_out).push_back(std::move(points[i]));
  }
  if (!options.parameters.empty()) {
    std::vector<predict::MeasuredProgram> measured;
    for (const Point& p : result.fitted) {
      try {
        measured.push_back({.program = lower(point_program(p)),
                            .options = {},
                            .milliseconds = p.measured_ms});
      } catch (const UserError&) {  // not offered any more
      }
    }
    result.machine = predict::fit(start, measured, options.parameters, options.rounds).machine;
  }
  predict_again(result.fitted, result.machine);
  predict_again(result.held_out, result.machine);
  return result;
}

}  // namespace stretto::bench
