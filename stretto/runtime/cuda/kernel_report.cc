// Reads what NVRTC 13 and 12 put into the log under --ptxas-options=-v, line by line:
//   ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; ...
//   ptxas info    : Compiling entry function 'gemm' for 'sm_90a'
//   ptxas info    : Function properties for gemm
//   ptxas         .     16 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads
//   ptxas info    : Used 90 registers, used 1 barriers, 16 bytes cumulative stack size, 64 bytes
//   smem
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <regex>
#include <sstream>
#include <string_view>

#include "stretto/runtime/cuda/nvrtc.h"

namespace stretto::cuda {
namespace {

bool is_warning(const std::string& line) {
  static const std::regex kWarning(
      R"(^ptxas\s*(warning|[^:]*:\s*(\(C\d+\)|Potential Performance Loss)))");
  return std::regex_search(line, kWarning);
}

// The number before `unit`, 0 where the line has none.
int number_before(const std::string& line, const std::string& unit) {
  std::smatch match;
  std::regex_search(line, match, std::regex(R"((\d+) )" + unit));
  return match.empty() ? 0 : std::stoi(match[1]);
}

// Instructions of 16 bytes whose first eight say WARPGROUP.DEPBAR, as CUDA 13's cuobjdump has it.
int waits_for_products(const std::string& cubin) {
  constexpr std::uint64_t kCode = 0x79c5, kCodeMask = 0xffff, kWaits = 0x8000;
  int waits = 0;
  for (std::size_t at = 0; at + 16 <= cubin.size(); at += 16) {
    std::uint64_t word = 0;
    std::memcpy(&word, cubin.data() + at, sizeof word);
    waits += (word & kCodeMask) == kCode && word >> 32 == kWaits ? 1 : 0;
  }
  return waits;
}

int times(const std::string& text, std::string_view part) {
  int count = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++count;
  return count;
}

}  // namespace

std::string serialized_products(const std::string& cubin, const std::string& source) {
  int asked = times(source, "wgmma_wait<"), waits = waits_for_products(cubin);
  if (asked == 0 || waits <= 2 * asked) return "";
  return fmt::format(
      "ptxas warning : Potential Performance Loss: {} waits for matrix products, of {} in the "
      "text: they are serialized\n",
      waits, asked);
}

std::vector<KernelReport> kernel_reports(const std::string& log) {
  static const std::regex kEntry(R"(Compiling entry function '([^']+)')");
  static const std::regex kProperties(R"(Function properties for (\S+))");
  std::vector<KernelReport> reports;
  std::vector<std::string> warnings;
  KernelReport* kernel = nullptr;   // the one whose lines follow
  bool in_called_function = false;  // its properties are within the kernel's cumulative stack
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (is_warning(line)) {
      warnings.push_back(line);
    } else if (std::regex_search(line, match, kEntry)) {
      std::string name = match[1];
      auto known = std::find_if(reports.begin(), reports.end(),
                                [&](const KernelReport& r) { return r.kernel == name; });
      if (known == reports.end()) known = reports.insert(known, KernelReport{.kernel = name});
      kernel = &*known;
      in_called_function = false;
    } else if (kernel == nullptr) {
      continue;
    } else if (std::regex_search(line, match, kProperties)) {
      in_called_function = match[1] != kernel->kernel;
    } else if (line.find("bytes stack frame") != std::string::npos) {
      // A called function spills on the kernel's account.
      kernel->spill_store_bytes += number_before(line, "bytes spill stores");
      kernel->spill_load_bytes += number_before(line, "bytes spill loads");
      if (!in_called_function) kernel->stack_bytes = number_before(line, "bytes stack frame");
    } else if (line.find("Used ") != std::string::npos) {
      kernel->registers = number_before(line, "registers");
      kernel->static_shared = number_before(line, "bytes smem");
      kernel->stack_bytes =
          std::max(kernel->stack_bytes, number_before(line, "bytes cumulative stack size"));
    }
  }
  for (const std::string& warning : warnings) {
    auto names = [&](const KernelReport& r) {
      return warning.find("'" + r.kernel + "'") != std::string::npos;
    };
    bool names_one = std::any_of(reports.begin(), reports.end(), names);
    for (KernelReport& report : reports) {
      if (!names_one || names(report)) report.warnings.push_back(warning);
    }
  }
  return reports;
}

}  // namespace stretto::cuda
