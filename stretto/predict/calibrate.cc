#include "stretto/predict/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <numeric>
#include <optional>

#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/base/threads.h"

namespace stretto::predict {
namespace {

// What a parameter that was zero is tried with, in its unit.
constexpr double kFirstStep = 0.01;

// A field that the machine does not have would be ignored when the file is read.
void check_known(const Json& figures, const Json& known, const std::string& where) {
  for (const auto& [key, value] : figures.items()) {
    if (!known.contains(key)) throw UserError(fmt::format("{}: {}: no such figure", where, key));
    if (value.is_object() && known[key].is_object() && key != "tflops") {
      check_known(value, known[key], where + ": " + key);
    }
  }
}

Json::json_pointer pointer(const std::string& parameter, const Json& machine) {
  Json::json_pointer at("/" + parameter);
  if (!machine.contains(at) || !machine[at].is_number()) {
    throw UserError(fmt::format("'{}' is no parameter of a machine", parameter));
  }
  return at;
}

// Predictions on as many threads as there are processors; added up in order.
double mean_over(const Machine& machine, const std::vector<MeasuredProgram>& measured,
                 double (*distance)(double ratio)) {
  std::vector<double> distances(measured.size());
  std::vector<std::exception_ptr> failed(measured.size());
  auto one = [&](const MeasuredProgram& m) {
    return distance(run_timetable(build_timetable(m.program, machine, m.options)).seconds * 1e3 /
                    m.milliseconds);
  };
  side_by_side(measured.size(), num_processors(), [&](std::size_t i) {
    try {
      distances[i] = one(measured[i]);
    } catch (const Error&) {
      failed[i] = std::current_exception();
    }
  });
  for (const std::exception_ptr& error : failed) {
    if (error) std::rethrow_exception(error);
  }
  return std::accumulate(distances.begin(), distances.end(), 0.0) /
         static_cast<double>(measured.size());
}

// Nothing where a value is out of its range: a burst below one.
std::optional<Machine> machine_of(const Json& json, const std::string& name) {
  try {
    return read_machine(json, name);
  } catch (const UserError&) {
    return std::nullopt;
  }
}

double log_distance(double ratio) { return std::abs(std::log(ratio)); }
double plain_distance(double ratio) { return std::abs(ratio - 1); }

void check(const std::vector<MeasuredProgram>& measured) {
  if (measured.empty()) throw UserError("calibration: no measured programs");
  for (const MeasuredProgram& m : measured) {
    if (m.milliseconds > 0 && std::isfinite(m.milliseconds)) continue;
    throw UserError(fmt::format("calibration: {} took {} ms, which cannot be",
                                m.program.program().name, m.milliseconds));
  }
}

}  // namespace

Machine with_figures(const Machine& machine, const Json& figures, const std::string& where) {
  Json json = to_json(machine);
  if (!figures.is_object()) throw UserError(where + ": need an object");
  check_known(figures, json, where);
  json.merge_patch(figures);
  return read_machine(json, where);
}

const std::vector<std::string>& fitted_parameters() {
  static const std::vector<std::string> parameters = {
      "tensor/tflops/bfloat16",
      "tensor/burst",
      "overhead_us/k_step",
      "memory/sm_gbs",
      "memory/sm_copy_gbs",
      "memory/latency_us",
      "memory/l2_gbs",
      "memory/thread_bytes",
      "overhead_us/tile",
      "overhead_us/notify",
      "overhead_us/bulk_notify",
      "link/load_latency_us",
      "overhead_us/local_signal",
      "launch_us/graph",
      "power_ms_per_gb/l2",
      "power_ms_per_gb/link",
      "vector_gops_per_sm",
  };
  return parameters;
}

Fit fit(const Machine& start, const std::vector<MeasuredProgram>& measured,
        const std::vector<std::string>& parameters, int rounds) {
  check(measured);
  Json json = to_json(start);
  double error = mean_over(start, measured, log_distance);
  double factor = 1.5;
  for (int round = 0; round < rounds; ++round) {
    bool better = false;
    for (const std::string& parameter : parameters) {
      Json::json_pointer at = pointer(parameter, json);
      for (double step : {factor, 1 / factor}) {
        Json tried = json;
        double value = json[at].get<double>();
        tried[at] = value > 0 ? value * step : kFirstStep;
        std::optional<Machine> machine = machine_of(tried, start.name);
        if (!machine) continue;
        double got = mean_over(*machine, measured, log_distance);
        if (got >= error) continue;
        error = got;
        json = std::move(tried);
        better = true;
        break;
      }
    }
    if (!better) factor = std::sqrt(factor);
  }
  Fit result{.machine = read_machine(json, start.name)};
  result.error = mean_over(result.machine, measured, plain_distance);
  return result;
}

}  // namespace stretto::predict
