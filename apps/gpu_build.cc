#include "apps/gpu_build.h"

#include <fmt/format.h>

#include "stretto/gpu/gpu_code.h"

namespace stretto {
namespace {

constexpr int kRegistersOfBlock = 65536;

std::string complaint_about(const cuda::KernelReport& report, const LaunchPlan& launch) {
  std::string out;
  auto add = [&](const std::string& what) { out += (out.empty() ? "" : "; ") + what; };
  if (report.spill_store_bytes + report.spill_load_bytes > 0) {
    add(fmt::format("{} bytes of spills", report.spill_store_bytes + report.spill_load_bytes));
  }
  if (report.stack_bytes > 0) add(fmt::format("{} bytes of local memory", report.stack_bytes));
  if (report.registers * launch.block > kRegistersOfBlock) {
    add(fmt::format("{} threads of {} registers", launch.block, report.registers));
  }
  for (const std::string& warning : report.warnings) add(warning);
  return out;
}

}  // namespace

GeneratedKernel generate_for_gpu(Program program) {
  return generate_kernel(lower(std::move(program)).program());
}

GpuBuild build_for_gpu(Program program, const std::string& arch) {
  GpuCode code = generate(lower(std::move(program)), {.target = {.arch = arch}});
  GpuBuild build{.seconds = code.image.compile_seconds};
  std::vector<cuda::KernelReport> reports = cuda::kernel_reports(code.image.log);
  if (reports.empty()) build.complaint += "NVRTC reports neither registers nor spills";
  for (const cuda::KernelReport& report : reports) {
    build.spills += report.spill_store_bytes + report.spill_load_bytes;
    build.warnings += static_cast<int>(report.warnings.size());
    build.complaint += complaint_about(report, code.kernel.launch);
  }
  return build;
}

}  // namespace stretto
