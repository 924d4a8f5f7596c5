// A prediction as the trace that the recorder would have written of the launch.
#pragma once

#include <filesystem>

#include "stretto/predict/prediction.h"

namespace stretto {

// The prediction must have recorded its spans. UserError naming the path when it cannot be written.
void write_predicted_trace(const predict::Prediction& prediction,
                           const std::filesystem::path& path);

}  // namespace stretto
