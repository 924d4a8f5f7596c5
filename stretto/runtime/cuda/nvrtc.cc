#include "stretto/runtime/cuda/nvrtc.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <regex>
#include <set>
#include <sstream>
#include <utility>

#include "stretto/base/env.h"
#include "stretto/base/errors.h"
#include "stretto/base/own_files.h"
#include "stretto/base/turn.h"
#include "stretto/runtime/cuda/cubin_cache.h"
#include "stretto/runtime/cuda/nvrtc_library.h"

namespace stretto::cuda {
namespace {

constexpr int kLinesAround = 3;  // of each error
constexpr int kMaxExcerpts = 5;  // an error often repeats itself
constexpr const char* kLineInfo = "-lineinfo";
constexpr std::chrono::minutes kLongestWait{10};  // for another's compilation, which takes seconds

// One program of NVRTC. Its functions fail only on misuse, compile() apart.
class NvrtcProgram {
 public:
  NvrtcProgram(const std::string& source, const std::string& name) : nvrtc_(nvrtc_library()) {
    require(nvrtc_.create_program(&program_, source.c_str(), name.c_str(), 0, nullptr, nullptr),
            "nvrtcCreateProgram");
  }
  ~NvrtcProgram() { nvrtc_.destroy_program(&program_); }
  NvrtcProgram(const NvrtcProgram&) = delete;
  NvrtcProgram& operator=(const NvrtcProgram&) = delete;

  bool compile(const std::vector<std::string>& flags) {
    std::vector<const char*> texts;
    for (const std::string& flag : flags) texts.push_back(flag.c_str());
    result_ = nvrtc_.compile_program(program_, static_cast<int>(texts.size()), texts.data());
    return result_ == NVRTC_SUCCESS;
  }
  std::string result_text() const { return nvrtc_.error_string(result_); }
  std::string log() const {
    std::string text = read(nvrtc_.get_log_size, nvrtc_.get_log, "nvrtcGetProgramLog");
    while (!text.empty() && text.back() == '\0') text.pop_back();
    return text;
  }
  std::string cubin() const {
    return read(nvrtc_.get_cubin_size, nvrtc_.get_cubin, "nvrtcGetCUBIN");
  }
  std::string ptx() const {
    std::string text = read(nvrtc_.get_ptx_size, nvrtc_.get_ptx, "nvrtcGetPTX");
    while (!text.empty() && text.back() == '\0') text.pop_back();
    return text;
  }

 private:
  void require(nvrtcResult result, const char* what) const {
    if (result != NVRTC_SUCCESS) {
      throw DeviceError(fmt::format("{}: {}", what, nvrtc_.error_string(result)));
    }
  }
  std::string read(nvrtcResult (*size)(nvrtcProgram, std::size_t*),
                   nvrtcResult (*get)(nvrtcProgram, char*), const char* what) const {
    std::size_t bytes = 0;
    require(size(program_, &bytes), what);
    std::string text(bytes, '\0');
    require(get(program_, text.data()), what);
    return text;
  }

  const NvrtcLibrary& nvrtc_;
  nvrtcProgram program_ = nullptr;
  nvrtcResult result_ = NVRTC_SUCCESS;
};

// NVRTC's own cache, which 12.9 and later have where there is a driver, forgets what the assembler
// said: spills would pass unseen.
bool has_own_cache(const NvrtcInfo& info) {
  return std::pair(info.major, info.minor) >= std::pair(12, 9);
}

std::vector<std::string> flags_of(const CompileOptions& options, const std::string& arch) {
  std::vector<std::string> flags = {"-std=c++20", "--gpu-architecture=" + arch, "-default-device",
                                    kLineInfo, "--ptxas-options=-v"};
  if (has_own_cache(nvrtc_info())) flags.emplace_back("--no-cache");
  flags.insert(flags.end(), options.extra_flags.begin(), options.extra_flags.end());
  return flags;
}

// "sm_90a" -> "compute_90a": stops before the assembler.
std::string virtual_arch(const std::string& arch) {
  return arch.rfind("sm_", 0) == 0 ? "compute_" + arch.substr(3) : arch;
}

std::vector<int> error_lines(const std::string& log, const std::regex& pattern) {
  std::set<int> lines;
  for (std::sregex_iterator match(log.begin(), log.end(), pattern), end; match != end; ++match) {
    if ((*match)[1].length() > 9) continue;
    lines.insert(std::stoi((*match)[1]));
  }
  return {lines.begin(), lines.end()};
}

// Numbered lines of `text` around each of `errors` (1-based), an arrow at the line itself.
std::string excerpts(const std::string& text, const std::vector<int>& errors) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  std::string out;
  int shown = 0;
  for (int error : errors) {
    if (++shown > kMaxExcerpts) break;
    int first = std::max(1, error - kLinesAround);
    int last = std::min(static_cast<int>(lines.size()), error + kLinesAround);
    for (int number = first; number <= last; ++number) {
      out += fmt::format("{} {:5} | {}\n", number == error ? "->" : "  ", number,
                         lines[static_cast<std::size_t>(number) - 1]);
    }
    out += "\n";
  }
  return out;
}

// Whoever looks for the error wants the line of this text, not the one it was written for.
std::string without_line_directives(const std::string& source) {
  return std::regex_replace(source, std::regex("(^|\n)#(?=line )"), "$1//");
}

// Compiler errors name lines of the source, assembler errors lines of the PTX.
std::string failure(const std::string& directed, const std::string& name,
                    const CompileOptions& options) {
  std::string source = without_line_directives(directed);
  NvrtcProgram program(source, name);
  if (program.compile(flags_of(options, options.arch))) {
    return fmt::format("{} compiles without its #line directives only", name);
  }
  std::string log = program.log();
  std::string report =
      fmt::format("{} does not compile ({}):\n{}\n", name, program.result_text(), log);
  static const std::regex kSourceLine(R"(\((\d+)\): (?:catastrophic )?error)");
  static const std::regex kPtxLine(R"(ptxas [^\n]*, line (\d+); (?:error|fatal))");
  if (std::vector<int> errors = error_lines(log, kSourceLine); !errors.empty()) {
    return report + excerpts(source, errors);
  }
  if (std::vector<int> errors = error_lines(log, kPtxLine); !errors.empty()) {
    NvrtcProgram again(source, name);
    if (again.compile(flags_of(options, virtual_arch(options.arch)))) {
      return report + "PTX:\n" + excerpts(again.ptx(), errors);
    }
  }
  return report;
}

std::string cache_key(const std::string& source, const std::string& name,
                      const std::vector<std::string>& flags) {
  const NvrtcInfo& info = nvrtc_info();
  std::string key = fmt::format("nvrtc {}.{}\nname {}\n", info.major, info.minor, name);
  for (const std::string& flag : flags) key += "flag " + flag + "\n";
  return key + "source\n" + source;
}

}  // namespace

KernelImage compile_cuda(const std::string& source, const std::string& name,
                         const CompileOptions& options) {
  std::vector<std::string> flags = flags_of(options, options.arch);
  std::string key = cache_key(source, name, flags);
  CubinCache cache(env_cache_dir() / "cuda", env_cache_bytes());
  if (options.use_cache) {
    if (std::optional<KernelImage> kept = cache.find(key)) return *kept;
    make_own_folder(cache.entry(key).parent_path());  // where that fails each process compiles
  }
  // The ranks of a world need the same kernels at the same time.
  Turn turn(cache.entry(key).replace_extension(".lock"));
  if (options.use_cache) {
    auto made = made_by_another(turn, kLongestWait, [&] { return cache.find(key); });
    if (made) return *made;
  }
  auto start = std::chrono::steady_clock::now();
  NvrtcProgram program(source, name);
  if (!program.compile(flags)) throw InternalError(failure(source, name, options));
  std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  KernelImage image{.cubin = program.cubin(),
                    .log = program.log(),
                    .compile_seconds = elapsed.count(),
                    .from_cache = false};
  image.log += serialized_products(image.cubin, source);
  if (options.use_cache) cache.insert(key, image);
  return image;
}

std::string compile_ptx(const std::string& source, const std::string& name,
                        const CompileOptions& options) {
  NvrtcProgram program(source, name);
  std::vector<std::string> flags = flags_of(options, virtual_arch(options.arch));
  std::erase(flags, kLineInfo);  // directives between the instructions
  if (!program.compile(flags)) {
    throw InternalError(failure(source, name, options));
  }
  return program.ptx();
}

const NvrtcInfo& nvrtc_info() { return nvrtc_library().info; }

bool has_nvrtc() {
  try {
    nvrtc_library();
    return true;
  } catch (const DeviceError&) {
    return false;
  }
}

}  // namespace stretto::cuda
