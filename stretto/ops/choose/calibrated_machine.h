// The description of this machine that `stretto calibrate` wrote, which predictions and choices for
// its own GPUs read.
#pragma once

#include <filesystem>
#include <string>

#include "stretto/ir/gpu_target.h"
#include "stretto/predict/machine.h"

namespace stretto {

// STRETTO_CACHE_DIR/machines/local-x<ranks>.json
std::filesystem::path calibration_path(int ranks);
// h200x1, h200x2, ...: the built-in machine with as many GPUs, or the next larger one.
std::string builtin_machine_of(int ranks);
// What calibration_path() holds, where it exists, else the built-in machine.
predict::Machine calibrated_machine(int ranks);
// The same of GPUs with the SMs of `gpu`; where it was described with another number of them, what
// all SMs of a GPU multiply together goes with the number.
predict::Machine calibrated_machine(int ranks, const GpuTarget& gpu);

}  // namespace stretto
