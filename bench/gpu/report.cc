#include "bench/gpu/report.h"

#include <fmt/chrono.h>

#include <chrono>
#include <fstream>
#include <string_view>

#include "bench/gpu/harness/command_line.h"
#include "stretto/runtime/cuda/cublaslt.h"
#include "stretto/runtime/cuda/nccl.h"
#include "stretto/runtime/cuda/nvrtc.h"

namespace stretto::bench {

std::string date_text() {
  auto now = std::chrono::system_clock::now();
  return fmt::format("{:%FT%TZ}", fmt::gmtime(std::chrono::system_clock::to_time_t(now)));
}

Json machine_json(const GpuWorld& world, const Settings& s) {
  int version = 0;
  cuda::check(cuda::driver().driver_get_version(&version), "cuDriverGetVersion");
  return {{"machine", world.device(0).properties().to_string()},
          {"driver", s.driver},
          {"cuda_driver_api", version},
          {"nvrtc", fmt::format("{}.{}", cuda::nvrtc_info().major, cuda::nvrtc_info().minor)},
          {"cublaslt", cuda::cublaslt_description()},
          {"date", date_text()},
          {"commit", s.commit},
          {"command", command_line()},
          {"seed", s.seed}};
}

Report::Report(const GpuWorld& world, const Settings& s, const std::vector<const char*>& compared)
    : settings_(s), json_(machine_json(world, s)) {
  fmt::print("{}\n", json_["machine"].get<std::string>());
  for (const char* key : compared) {
    if (std::string_view(key) == "nccl") json_[key] = cuda::nccl_description();
    fmt::print("{}\n", json_[key].get<std::string>());
  }
  std::fflush(stdout);
}

void Report::write() const {
  if (!settings_.out.empty()) std::ofstream(settings_.out) << json_.dump(1) << "\n";
}

int Report::finish(const char* name, const std::string& found) const {
  fmt::print("{}: {}{}{} failed (seed {})\n", name, found, found.empty() ? "" : ", ", failed_,
             settings_.seed);
  return status();
}

}  // namespace stretto::bench
