// NVRTC's interface over the host's compiler.
#include <dlfcn.h>
#include <fmt/format.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "stretto/base/scratch.h"
#include "stretto/runtime/cuda/nvrtc_library.h"
#include "stretto/simulator/cuda_text.h"
#include "stretto/simulator/image.h"
#include "stretto/simulator/gpu_simulator.h"

namespace stretto::cuda {

namespace sim = stretto::simulator;
namespace fs = std::filesystem;

struct nvrtcProgram_st {
  std::string source, image, log;
};

namespace {

// Apart from every version of NVRTC: what is cached is of no use to a GPU, nor to a simulator that
// makes kernels otherwise.
constexpr int kMajor = 9000, kMinor = STRETTO_SIMULATOR_VERSION;

std::string contents(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

std::string own_library() {
  Dl_info info{};
  dladdr(reinterpret_cast<const void*>(&sim::open_image), &info);
  return fs::canonical(info.dli_fname).string();
}

// Lines as the assembler reports resources (runtime/cuda/kernel_report.cc).
std::string report(const sim::HostText& text) {
  std::string out;
  for (const sim::KernelText& kernel : text.kernels) {
    out += fmt::format(
        "ptxas info    : Compiling entry function '{0}' for 'sm_90a'\n"
        "ptxas info    : Function properties for {0}\n"
        "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Used {1} registers\n",
        kernel.name, sim::registers_per_thread(static_cast<unsigned>(kernel.max_threads)));
  }
  return out;
}

nvrtcResult compile(nvrtcProgram_st& program, const std::string& flags) {
  Scratch folder;
  sim::HostText text = sim::host_text(program.source);
  fs::path source = folder / "kernel.cc", object = folder / "kernel.so",
           log = folder / "log";
  std::ofstream(source) << text.text;
  std::string command = fmt::format(
      "{} {} -shared {} '-I{}' '-I{}' -o '{}' '{}' '{}' >&2", env_compiler(),
      STRETTO_SIMULATOR_FLAGS, flags, STRETTO_SIMULATOR_PRECOMPILED, STRETTO_SIMULATOR_INCLUDE,
      object.string(), source.string(), own_library());
  if (folder.run(command, log) != 0) {
    program.log = contents(log);
    return NVRTC_ERROR_COMPILATION;
  }
  program.image = sim::image_of(contents(object));
  program.log = report(text);
  return NVRTC_SUCCESS;
}

}  // namespace

#define SIM_NVRTC extern "C" __attribute__((visibility("default")))

SIM_NVRTC nvrtcResult nvrtcVersion(int* major, int* minor) {
  return *major = kMajor, *minor = kMinor, NVRTC_SUCCESS;
}
SIM_NVRTC const char* nvrtcGetErrorString(nvrtcResult r) {
  return r == NVRTC_SUCCESS ? "success" : "the host's compiler refuses the kernel";
}
SIM_NVRTC nvrtcResult nvrtcCreateProgram(nvrtcProgram* program, const char* source, const char*,
                                         int, const char* const*, const char* const*) {
  return *program = new nvrtcProgram_st{.source = source, .image = {}, .log = {}}, NVRTC_SUCCESS;
}
SIM_NVRTC nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count,
                                          const char* const* flags) {
  std::string kept;
  for (int i = 0; i < count; ++i) {
    if (std::strncmp(flags[i], "-D", 2) == 0) kept += fmt::format("'{}' ", flags[i]);
  }
  try {
    return compile(*program, kept);
  } catch (const std::exception& e) {
    program->log = e.what();
    return NVRTC_ERROR_COMPILATION;
  }
}
SIM_NVRTC nvrtcResult nvrtcDestroyProgram(nvrtcProgram* program) {
  return delete *program, *program = nullptr, NVRTC_SUCCESS;
}
SIM_NVRTC nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, std::size_t* bytes) {
  return *bytes = program->log.size(), NVRTC_SUCCESS;
}
SIM_NVRTC nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char* log) {
  return std::memcpy(log, program->log.data(), program->log.size()), NVRTC_SUCCESS;
}
SIM_NVRTC nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, std::size_t* bytes) {
  return *bytes = program->image.size(), NVRTC_SUCCESS;
}
SIM_NVRTC nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char* image) {
  return std::memcpy(image, program->image.data(), program->image.size()), NVRTC_SUCCESS;
}
// There is none: what people would read is the kernel's text.
SIM_NVRTC nvrtcResult nvrtcGetPTXSize(nvrtcProgram, std::size_t* bytes) {
  return *bytes = 0, NVRTC_SUCCESS;
}
SIM_NVRTC nvrtcResult nvrtcGetPTX(nvrtcProgram, char*) { return NVRTC_SUCCESS; }

}  // namespace stretto::cuda
