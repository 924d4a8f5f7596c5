// Compiling CUDA text without a GPU. Skipped, with the reason, where NVRTC is not installed.
#include "stretto/runtime/cuda/nvrtc.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <optional>
#include <thread>

#include "stretto/base/env.h"
#include "stretto/base/errors.h"
#include "stretto/runtime/cuda/nvrtc_library.h"

namespace stretto::cuda {
namespace {
namespace fs = std::filesystem;

// Sets a variable for a scope.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const std::string& value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    setenv(name, value.c_str(), 1);
  }
  ~ScopedVariable() {
    if (old_) {
      setenv(name_, old_->c_str(), 1);
    } else {
      unsetenv(name_);
    }
  }

 private:
  const char* name_;
  std::optional<std::string> old_;
};

std::string new_directory() {
  std::string name = testing::TempDir() + "stretto-nvrtc-XXXXXX";
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary directory");
  return name;
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

constexpr const char* kTwoKernels = R"(
extern "C" __global__ void reverse(float* x, int n) {
  __shared__ float s[64];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[n] = s[63 - threadIdx.x];
}
// More live values than the 32 registers that two blocks of 1024 threads leave a thread.
extern "C" __global__ void __launch_bounds__(1024, 2) crowded(float* x, int n) {
  float a[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) a[i] = x[i * n + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 64; ++i) x[i * n + threadIdx.x] = a[i] * a[(i * 7 + 3) % 64];
}
)";

class NvrtcTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_nvrtc()) GTEST_SKIP() << message_of([] { nvrtc_info(); });
    directory_ = new_directory();
    cache_.emplace("STRETTO_CACHE_DIR", directory_);
  }
  void TearDown() override {
    if (!directory_.empty()) fs::remove_all(directory_);
  }

  std::vector<fs::path> entries() const {
    std::vector<fs::path> paths;
    for (const auto& file : fs::directory_iterator(fs::path(directory_) / "cuda")) {
      paths.push_back(file.path());
    }
    return paths;
  }

  std::string directory_;
  std::optional<ScopedVariable> cache_;
};

TEST(NvrtcSearchTest, WithoutALibraryItSaysHowToGetOne) {
  ScopedVariable nowhere("STRETTO_NVRTC", "/nowhere/libnvrtc.so.13");
  NvrtcSearch search = search_nvrtc();
  EXPECT_NE(search.error.find("/nowhere/libnvrtc.so.13"), std::string::npos) << search.error;
  EXPECT_NE(search.error.find("tools/build"), std::string::npos) << search.error;
  EXPECT_NE(search.error.find("STRETTO_NVRTC"), std::string::npos) << search.error;
}

TEST(NvrtcSearchTest, AnotherLibraryIsRefused) {
  NvrtcSearch search = open_nvrtc({"libdl.so.2"});
  EXPECT_NE(search.error.find("has no nvrtc"), std::string::npos) << search.error;
}

TEST_F(NvrtcTest, ReportsRegistersAndSpills) {
  KernelImage image = compile_cuda(kTwoKernels, "two.cu");
  EXPECT_EQ(image.cubin.substr(0, 4),
            "\x7f"
            "ELF");
  EXPECT_GT(image.compile_seconds, 0);
  std::vector<KernelReport> reports = kernel_reports(image.log);
  ASSERT_EQ(reports.size(), 2u) << image.log;
  for (const KernelReport& report : reports) {
    SCOPED_TRACE(report.kernel);
    EXPECT_GT(report.registers, 0);
    EXPECT_TRUE(report.warnings.empty());
    if (report.kernel == "reverse") {
      EXPECT_EQ(report.static_shared, 256);
      EXPECT_EQ(report.spill_store_bytes + report.spill_load_bytes + report.stack_bytes, 0);
    } else {
      EXPECT_EQ(report.kernel, "crowded");
      EXPECT_LE(report.registers, 32);
      EXPECT_GE(report.spill_store_bytes, 4 * 32) << "64 live values, 32 registers";
      EXPECT_GT(report.spill_load_bytes, 0);
      EXPECT_GT(report.stack_bytes, 0);
    }
  }
}

TEST_F(NvrtcTest, SeesAnIgnoredRegisterBudget) {
  KernelImage image = compile_cuda(R"(
extern "C" __global__ void f(int* x) {  // no launch bounds: the count at entry is unknown
  asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
  x[threadIdx.x] = 1;
})",
                                   "budget.cu");
  std::vector<KernelReport> reports = kernel_reports(image.log);
  ASSERT_EQ(reports.size(), 1u);
  ASSERT_EQ(reports[0].warnings.size(), 1u) << image.log;
  EXPECT_NE(reports[0].warnings[0].find("setmaxnreg"), std::string::npos);
}

TEST_F(NvrtcTest, AnErrorShowsItsLine) {
  std::string source =
      "// one\n// two\nextern \"C\" __global__ void f(int* x) {\n  *x = missing;\n}\n";
  EXPECT_THROW(compile_cuda(source, "bad.cu"), InternalError);
  std::string what = message_of([&] { compile_cuda(source, "bad.cu"); });
  EXPECT_NE(what.find("bad.cu(4): error"), std::string::npos) << what;
  EXPECT_NE(what.find("->     4 |   *x = missing;"), std::string::npos) << what;
  EXPECT_NE(what.find("       3 | extern"), std::string::npos) << what;
}

TEST_F(NvrtcTest, ProfilersSeeThePlacesOfLineDirectives) {
  KernelImage image = compile_cuda(
      "extern \"C\" __global__ void f(int* x) {\n#line 7 \"folder/program.cc\"\n  *x = 1;\n}\n",
      "generated.cu");
  EXPECT_NE(image.cubin.find("program.cc"), std::string::npos);
  EXPECT_NE(image.cubin.find("generated.cu"), std::string::npos);
}

TEST_F(NvrtcTest, AnErrorShowsItsLineOfTheTextWhateverItIsWrittenFor) {
  std::string source =
      "// one\n#line 70 \"program.cc\"\nextern \"C\" __global__ void f(int* x) {\n"
      "  *x = missing;\n}\n";
  std::string what = message_of([&] { compile_cuda(source, "bad.cu"); });
  EXPECT_NE(what.find("bad.cu(4): error"), std::string::npos) << what;
  EXPECT_NE(what.find("->     4 |   *x = missing;"), std::string::npos) << what;
}

TEST_F(NvrtcTest, AnAssemblerErrorShowsItsPtx) {
  std::string source = "extern \"C\" __global__ void f() { asm volatile(\"nonsense.u32;\"); }\n";
  EXPECT_THROW(compile_cuda(source, "asm.cu"), InternalError);
  std::string what = message_of([&] { compile_cuda(source, "asm.cu"); });
  EXPECT_NE(what.find("Ptx assembly aborted"), std::string::npos) << what;
  std::size_t arrow = what.find("-> ");
  ASSERT_NE(arrow, std::string::npos) << what;
  EXPECT_NE(what.find("nonsense.u32;", arrow), std::string::npos) << what;
}

TEST_F(NvrtcTest, AnUnknownFlagIsNamed) {
  std::string what =
      message_of([] { compile_cuda("", "x.cu", {.extra_flags = {"--no-such-flag"}}); });
  EXPECT_NE(what.find("--no-such-flag"), std::string::npos) << what;
}

TEST_F(NvrtcTest, PtxIsText) {
  std::string ptx = compile_ptx(kTwoKernels, "two.cu");
  EXPECT_NE(ptx.find(".target sm_90a"), std::string::npos);
  EXPECT_NE(ptx.find(".entry reverse("), std::string::npos);
}

TEST_F(NvrtcTest, TheSecondTimeComesFromDisk) {
  KernelImage first = compile_cuda(kTwoKernels, "two.cu");
  KernelImage second = compile_cuda(kTwoKernels, "two.cu");
  EXPECT_FALSE(first.from_cache);
  EXPECT_TRUE(second.from_cache);
  EXPECT_EQ(second.cubin, first.cubin);
  EXPECT_EQ(second.log, first.log);
  std::string changed = std::string(kTwoKernels) + " ";
  EXPECT_FALSE(compile_cuda(changed, "two.cu").from_cache);
  EXPECT_FALSE(compile_cuda(kTwoKernels, "two.cu", {.extra_flags = {"-DN=1"}}).from_cache);
  EXPECT_FALSE(compile_cuda(kTwoKernels, "two.cu", {.use_cache = false}).from_cache);
  EXPECT_EQ(entries().size(), 3u);
}

TEST_F(NvrtcTest, ATruncatedEntryIsCompiledAgain) {
  KernelImage first = compile_cuda(kTwoKernels, "two.cu");
  ASSERT_EQ(entries().size(), 1u);
  fs::path entry = entries()[0];
  auto size = fs::file_size(entry);
  fs::resize_file(entry, size / 2);
  KernelImage again = compile_cuda(kTwoKernels, "two.cu");
  EXPECT_FALSE(again.from_cache);
  EXPECT_EQ(again.cubin, first.cubin);
  EXPECT_TRUE(compile_cuda(kTwoKernels, "two.cu").from_cache) << "and kept";
}

// Also of what NVRTC has compiled before.
TEST_F(NvrtcTest, EveryCompilationIsReported) {
  for (int round = 0; round < 3; ++round) {
    KernelImage image = compile_cuda(kTwoKernels, "two.cu", {.use_cache = false});
    EXPECT_EQ(kernel_reports(image.log).size(), 2u) << "round " << round << ": " << image.log;
  }
}

TEST_F(NvrtcTest, ThreadsCompileAtOnce) {
  std::vector<std::string> failures(4);
  {
    std::vector<std::jthread> threads;
    for (std::size_t t = 0; t < failures.size(); ++t) {
      threads.emplace_back([&failures, t] {
        failures[t] = message_of([t] {
          std::string name = fmt::format("kernel_{}", t / 2);  // each compiled by two threads
          std::string source = fmt::format("extern \"C\" __global__ void {}() {{}}", name);
          KernelImage image = compile_cuda(source, "threads.cu");
          std::vector<KernelReport> reports = kernel_reports(image.log);
          if (reports.size() != 1 || reports[0].kernel != name) {
            throw InternalError(fmt::format("{} reports in the log of {} bytes: {}", reports.size(),
                                            image.log.size(), image.log));
          }
        });
      });
    }
  }
  for (const std::string& failure : failures) EXPECT_EQ(failure, "");
  EXPECT_EQ(entries().size(), 2u);
}

TEST_F(NvrtcTest, ProcessesCompileTheSameKernelAtOnce) {
  nvrtc_info();
  std::vector<pid_t> children;
  for (int process = 0; process < 3; ++process) {
    pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      std::string what = message_of([] {
        for (int round = 0; round < 3; ++round) {
          if (kernel_reports(compile_cuda(kTwoKernels, "two.cu").log).size() != 2) {
            throw InternalError("not both kernels");
          }
        }
      });
      _exit(what.empty() ? 0 : 1);
    }
    children.push_back(child);
  }
  for (pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  ASSERT_EQ(entries().size(), 1u);
  EXPECT_TRUE(compile_cuda(kTwoKernels, "two.cu").from_cache);
}

// What first calls of a world's ranks would lose: the host's cores, once for each rank.
TEST_F(NvrtcTest, OfProcessesThatAskTogetherOneCompiles) {
  nvrtc_info();
  constexpr int kProcesses = 4, kCompiled = 2, kFound = 3;
  std::vector<pid_t> children;
  for (int process = 0; process < kProcesses; ++process) {
    pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      int status = 1;
      message_of([&] {
        KernelImage image = compile_cuda(kTwoKernels, "two.cu");
        if (kernel_reports(image.log).size() == 2) status = image.from_cache ? kFound : kCompiled;
      });
      _exit(status);
    }
    children.push_back(child);
  }
  int compiled = 0, found = 0;
  for (pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    compiled += WEXITSTATUS(status) == kCompiled;
    found += WEXITSTATUS(status) == kFound;
  }
  EXPECT_EQ(compiled, 1);
  EXPECT_EQ(found, kProcesses - 1);
  EXPECT_EQ(entries().size(), 1u);  // no file of a turn is left
}

// As where the others' compiler does not come back, or each has failed: nobody waits for a failure.
TEST_F(NvrtcTest, EachThatAsksForWhatDoesNotCompileIsTold) {
  std::vector<std::string> failures(3);
  {
    std::vector<std::jthread> threads;
    for (std::string& failure : failures) {
      threads.emplace_back(
          [&failure] { failure = message_of([] { compile_cuda("no kernel", "none.cu"); }); });
    }
  }
  for (const std::string& failure : failures) {
    EXPECT_NE(failure.find("none.cu"), std::string::npos) << failure;
  }
  EXPECT_EQ(entries().size(), 0u);
}

}  // namespace
}  // namespace stretto::cuda
