// A prediction as the trace that the recorder would have written of the launch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "stretto/predict/prediction.h"
#include "stretto/runtime/recorder.h"

namespace stretto {

// The prediction must have recorded its spans. UserError naming the path when it cannot be written.
void write_predicted_trace(const predict::Prediction& prediction,
                           const std::filesystem::path& path);

// What was measured, with the prediction beside it as processes "predicted, MACHINE rank 0", ..., a
// copy for each recorded launch, which begins with it.
void write_both_traces(const Recorder& measured, const predict::Prediction& prediction,
                       const std::string& machine, const Recorder::Notes& notes,
                       const std::filesystem::path& path);

}  // namespace stretto
