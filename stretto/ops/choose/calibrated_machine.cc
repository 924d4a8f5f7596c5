#include "stretto/ops/choose/calibrated_machine.h"

#include <fmt/format.h>

#include "stretto/base/env.h"
#include "stretto/base/own_files.h"

namespace stretto {

std::filesystem::path calibration_path(int ranks) {
  return env_cache_dir() / "machines" / fmt::format("local-x{}.json", ranks);
}

std::string builtin_machine_of(int ranks) {
  int gpus = 1;
  while (gpus < ranks && gpus < 8) gpus *= 2;
  return fmt::format("h200x{}", gpus);
}

predict::Machine calibrated_machine(int ranks) {
  std::filesystem::path path = calibration_path(ranks);
  require_own(path, "STRETTO_CACHE_DIR");
  std::error_code error;
  bool exists = std::filesystem::exists(path, error);
  return predict::find_machine(exists ? path.string() : builtin_machine_of(ranks));
}

predict::Machine calibrated_machine(int ranks, const GpuTarget& gpu) {
  predict::Machine machine = calibrated_machine(ranks);
  for (auto& [dtype, flops] : machine.tensor_flops) flops *= double(gpu.sms) / machine.num_sms;
  machine.num_sms = gpu.sms;
  return machine;
}

}  // namespace stretto
