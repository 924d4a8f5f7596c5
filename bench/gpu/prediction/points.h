// Predictions against measurements: a list of operators, shapes and configs whose predicted times
// are written down first (bench/predictions), then measured, and how far the two lie apart. Some
// shapes have several configs, which tells what choosing by prediction alone loses.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "stretto/base/json.h"
#include "stretto/gpu/gpu_world.h"
#include "stretto/ops/operator/operator.h"
#include "stretto/predict/machine.h"

namespace stretto::bench {

struct Point {
  std::string op;
  OpShape shape;
  std::string config;
  double predicted_ms = 0;
  std::string bound_by;
  double measured_ms = 0;  // 0: not measured
  std::string error;       // why not

  std::string label() const;      // without the config
  std::string to_string() const;  // one line
  Json to_json() const;
};

// Tile level. UserError where its config is not offered any more.
Program point_program(const Point& point);
// Every point of `world_size` ranks, predicted on `machine`.
std::vector<Point> predict_points(int world_size, const predict::Machine& machine);
// Every config of such a shape, the default's first: "reduce_scatter:1024x5120", or of products
// "gemm:1024x5120x4096". UserError quoting what is none.
std::vector<Point> predict_shape(const std::string& text, int world_size,
                                 const predict::Machine& machine);
// Of a file that holds {"points": [...]}; those of `world_size` ranks. UserError naming the field.
std::vector<Point> read_points(const Json& file, const std::string& where, int world_size);
// Predicts anew, on another machine; a config that is not offered any more gets an error.
void predict_again(std::vector<Point>& points, const predict::Machine& machine);

struct PointsOptions {
  std::string only;  // labels that contain this
  int samples = 20;
  std::uint64_t seed = 0;
};
// Sorted by label, configs of one shape in turn with each other. Calls `done` after each. What
// fails for a point is in it.
void measure_points(GpuWorld& world, std::vector<Point>& points, const PointsOptions& options,
                    const std::function<void(const Point&)>& done);

// Error by operator and of all points: "ag_gemm 23 points: mean 0.08 p90 0.15 bias -0.02", and the
// loss of what is chosen without a measurement against the best measured one where a shape has
// several configs, of which the first is the default.
std::string summary(const std::vector<Point>& points);

}  // namespace stretto::bench
