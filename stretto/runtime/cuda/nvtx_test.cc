// Names of launches in profilers. A user who loses this sees kernels without what launched them, or
// pays for names that nobody reads.
#include "stretto/runtime/cuda/nvtx.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdlib>
#include <fstream>
#include <string>

namespace stretto::cuda {
namespace {
namespace fs = std::filesystem;

// A library that keeps what it is told, in place of NVIDIA's.
class NvtxTest : public testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/stretto-nvtx-XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
    std::ofstream(folder_ / "keeper.cc") << R"(
        #include <string>
        std::string said;
        extern "C" int nvtxRangePushA(const char* name) {
          said += std::string("<") + name;
          return 0;
        }
        extern "C" int nvtxRangePop() { said += ">"; return 0; }
        extern "C" const char* what_was_said() { return said.c_str(); })";
    std::string command =
        "c++ -shared -fPIC -o " + library().string() + " " + (folder_ / "keeper.cc").string();
    ASSERT_EQ(std::system(command.c_str()), 0);
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path library() const { return folder_ / "libkeeper.so"; }
  std::string said() const {
    void* handle = dlopen(library().c_str(), RTLD_NOW);
    auto say = reinterpret_cast<const char* (*)()>(dlsym(handle, "what_was_said"));
    return say == nullptr ? "" : say();
  }

 private:
  fs::path folder_;
};

TEST_F(NvtxTest, RangesNest) {
  NvtxLibrary nvtx = open_nvtx({"/nowhere/libnvtx3interop.so.1", library()}).library;
  {
    NvtxRange outer("ag_gemm", nvtx);
    NvtxRange inner("all_gather", nvtx);
  }
  { NvtxRange next("gemm_rs", nvtx); }
  EXPECT_EQ(said(), "<ag_gemm<all_gather>><gemm_rs>");
}

TEST_F(NvtxTest, NothingHappensWithoutALibrary) {
  NvtxSearch none = open_nvtx({"/nowhere/libnvtx3interop.so.1"});
  EXPECT_EQ(none.library.push, nullptr);
  EXPECT_NE(none.error, "");
  { NvtxRange range("ag_gemm", none.library); }
  EXPECT_EQ(said(), "");
}

TEST_F(NvtxTest, ALibraryOfSomethingElseIsPassedOver) {
  EXPECT_EQ(open_nvtx({"libdl.so.2"}).library.push, nullptr);
  EXPECT_NE(open_nvtx({"libdl.so.2", library()}).library.push, nullptr);
}

TEST(Nvtx, NothingIsOpenedWithoutAProfiler) {
  ASSERT_EQ(std::getenv("NVTX_INJECTION64_PATH"), nullptr);
  EXPECT_EQ(nvtx_library().push, nullptr);
}

}  // namespace
}  // namespace stretto::cuda
