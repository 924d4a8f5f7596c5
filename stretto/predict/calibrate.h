// Fits a machine's description to what was measured on it. Microbenchmarks give figures directly
// (bandwidths, latencies, copy rates); what has no microbenchmark (costs per tile and step,
// overlap, contention) is searched for so that predictions of measured programs come out right.
// Measuring is the caller's.
#pragma once

#include <string>
#include <vector>

#include "stretto/predict/machine.h"
#include "stretto/predict/prediction.h"

namespace stretto::predict {

// `figures` has the form of a machine file, with only the fields that were measured. UserError
// naming `where` and the field that is out of range or unknown.
Machine with_figures(const Machine& machine, const Json& figures, const std::string& where);

struct MeasuredProgram {
  Lowered program;
  TimetableOptions options;
  double milliseconds = 0;  // above 0
};

struct Fit {
  Machine machine;
  double error = 0;  // mean |predicted / measured - 1|
};

// Parameters that fit() may change, as paths into the machine file: "memory/latency_us".
const std::vector<std::string>& fitted_parameters();

// Searches one parameter after the other, with steps that shrink from a factor of 1.5, for the
// least mean |log(predicted / measured)|; each of `rounds` costs two predictions of every program
// per parameter. Never worse than `start`. UserError on an empty list, a time that is not above 0
// or an unknown parameter.
Fit fit(const Machine& start, const std::vector<MeasuredProgram>& measured,
        const std::vector<std::string>& parameters = fitted_parameters(), int rounds = 8);

}  // namespace stretto::predict
