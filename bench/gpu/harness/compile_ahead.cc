#include "bench/gpu/harness/compile_ahead.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "stretto/base/errors.h"
#include "stretto/gpu/gpu_code.h"

namespace stretto::bench {
namespace {

CompiledKernel compile_one(const LabelledProgram& labelled, bool proof) {
  CompiledKernel out{.label = labelled.label};
  try {
    Lowered lowered = lower(labelled.program);
    if (proof) prove(lowered, labelled.launches);
    cuda::KernelImage image = generate(lowered, labelled.options).image;
    out.seconds = image.compile_seconds;
    out.reports = cuda::kernel_reports(image.log);
  } catch (const Error& e) {
    out.error = e.what();
  }
  return out;
}

}  // namespace

bool CompiledKernel::is_clean() const {
  return error.empty() && !reports.empty() && std::all_of(reports.begin(), reports.end(), [](const auto& r) {
           return r.spill_store_bytes == 0 && r.spill_load_bytes == 0 && r.stack_bytes == 0 &&
                  r.warnings.empty();
         });
}

std::string CompiledKernel::to_string() const {
  std::string out =
      fmt::format("{:6} {}", error.empty() ? is_clean() ? "ok" : "dirty" : "FAILED", label);
  if (!error.empty()) return out + ": " + error;
  for (const cuda::KernelReport& r : reports) {
    out +=
        fmt::format(" | {} registers, {} + {} bytes spilled, {} bytes of stack, {:.1f} s",
                    r.registers, r.spill_store_bytes, r.spill_load_bytes, r.stack_bytes, seconds);
    for (const std::string& w : r.warnings) out += "\n       " + w;
  }
  return out;
}

std::vector<CompiledKernel> compile_ahead(const std::vector<LabelledProgram>& programs,
                                          bool proof) {
  std::vector<CompiledKernel> out(programs.size());
  std::atomic<std::size_t> next{0};
  auto work = [&] {
    for (std::size_t i = next++; i < programs.size(); i = next++) {
      out[i] = compile_one(programs[i], proof);
    }
  };
  std::vector<std::jthread> threads;
  for (unsigned i = 0; i < std::max(std::thread::hardware_concurrency(), 1u); ++i) {
    threads.emplace_back(work);
  }
  threads.clear();  // joins
  return out;
}

}  // namespace stretto::bench
