// Reads what NVRTC 13 and 12 put into the log under --ptxas-options=-v, line by line:
//   ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; ...
//   ptxas info    : Compiling entry function 'gemm' for 'sm_90a'
//   ptxas info    : Function properties for gemm
//   ptxas         .     16 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads
//   ptxas info    : Used 90 registers, used 1 barriers, 16 bytes cumulative stack size, 64 bytes
//   smem
#include <algorithm>
#include <regex>
#include <sstream>

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

}  // namespace

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
