// CUDA C++ text to machine code, inside this process: NVRTC is opened at run time and its results
// are kept on disk. The code generator comes before, Module (module.h) after. Needs no GPU.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace stretto::cuda {

struct CompileOptions {
  std::string arch = "sm_90a";
  std::vector<std::string> extra_flags;  // as NVRTC spells them, e.g. "-DN=3"
  bool use_cache = true;                 // STRETTO_CACHE_DIR (base/env.h)
};

struct KernelImage {
  std::string cubin;  // ELF
  std::string log;    // warnings, and the assembler's resource report of every kernel
  double compile_seconds =
      0;  // as measured when it was compiled, also where it came from the cache
  bool from_cache = false;
};

// What the assembler reported for one kernel. Bytes are per thread, except static_shared, which is
// per block.
struct KernelReport {
  std::string kernel;  // the symbol: mangled unless extern "C"
  int registers = 0;
  int spill_store_bytes = 0;
  int spill_load_bytes = 0;
  int stack_bytes = 0;  // local memory: spills, and arrays indexed at run time
  int static_shared = 0;
  // Assembler warnings and "Potential Performance Loss" notes (C75xx: wgmma serialised, setmaxnreg
  // ignored). One that names no function stands in the report of every kernel of the module.
  std::vector<std::string> warnings;
};

// Compiles self-contained source text; nothing is included from disk. `name` stands for the file in
// messages and, where no #line says otherwise, in profilers. InternalError with NVRTC's log and the
// numbered lines around each error where the text does not compile; DeviceError where there is no
// NVRTC. Thread-safe, also between processes that share a cache directory.
KernelImage compile_cuda(const std::string& source, const std::string& name,
                         const CompileOptions& options = {});

// The same up to PTX, never cached: for people to read.
std::string compile_ptx(const std::string& source, const std::string& name,
                        const CompileOptions& options = {});

// A line of such a log about what the assembler does without a word: where it does not see that a
// branch around matrix instructions is the same for all threads of a warp, it ends each of them
// before the next, so that the machine code waits far more often than `source` says. "" where it
// does not. For sm_90a.
std::string serialized_products(const std::string& cubin, const std::string& source);

// In the order of the log. A kernel is listed once.
std::vector<KernelReport> kernel_reports(const std::string& log);

struct NvrtcInfo {
  std::filesystem::path path;  // the library's
  int major = 0;
  int minor = 0;
};

// The library in use. Looked for in this order: STRETTO_NVRTC (then nowhere else), the loader's own
// directories, /usr/local/cuda, `cuda` beside the build's `bin` (put there by tools/build), and the
// packages of python3. DeviceError, naming the places and how to get it, where none has it.
const NvrtcInfo& nvrtc_info();
bool has_nvrtc();

}  // namespace stretto::cuda
