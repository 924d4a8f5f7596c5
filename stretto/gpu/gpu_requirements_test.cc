// Machines that worlds of GPUs do not work on, told before anything runs: without these errors a
// user has a kernel that does not load, or ranks that wait for each other until the deadline.
#include "stretto/gpu/gpu_requirements.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "stretto/base/errors.h"

namespace stretto::gpu_requirements_test {
namespace {

cuda::DeviceProperties gpu(int ordinal, const char* name, int major, int minor) {
  cuda::DeviceProperties p;
  p.ordinal = ordinal;
  p.name = name;
  p.pci = "0000:1b:0" + std::to_string(ordinal);
  p.cc_major = major;
  p.cc_minor = minor;
  return p;
}

template <typename Require>
std::string error_of(Require require) {
  try {
    require();
  } catch (const DeviceError& e) {
    return e.what();
  }
  return "";
}

void expect_words(const std::string& text, const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    EXPECT_NE(text.find(word), std::string::npos) << "'" << word << "' is not in: " << text;
  }
}

TEST(GpuRequirements, OlderAndNewerGpusAreNamed) {
  struct Other {
    const char* name;
    int major, minor;
  };
  for (const Other& other : {Other{"NVIDIA A100-SXM4-80GB", 8, 0},
                             {"NVIDIA L40S", 8, 9},
                             {"Tesla V100-SXM2-16GB", 7, 0},
                             {"NVIDIA B200", 10, 0}}) {
    std::string text =
        error_of([&] { require_hopper(gpu(3, other.name, other.major, other.minor)); });
    expect_words(
        text, {"GPU 3", other.name, std::to_string(other.major) + "." + std::to_string(other.minor),
               "9.0", "ranks on CPU"});
  }
  EXPECT_EQ(error_of([] { require_hopper(gpu(0, "NVIDIA H200", 9, 0)); }), "");
}

TEST(GpuRequirements, PeersThatCannotReachEachOtherAreNamed) {
  cuda::DeviceProperties a = gpu(0, "NVIDIA H100 PCIe", 9, 0), b = gpu(1, "NVIDIA H200", 9, 0);
  EXPECT_EQ(error_of([&] { require_peers(a, b, {.addresses = true, .atomics = true}); }), "");
  std::string off = error_of([&] { require_peers(a, b, {}); });
  expect_words(off, {"GPU 0 (NVIDIA H100 PCIe, at 0000:1b:00) cannot address the memory of GPU 1 "
                     "(NVIDIA H200, at 0000:1b:01)",
                     "peer access is off", "nvidia-smi topo"});
  std::string plain = error_of([&] { require_peers(b, a, {.addresses = true, .atomics = false}); });
  expect_words(plain, {"GPU 1", "has no atomics in the memory of GPU 0"});
  EXPECT_NE(error_of([&] { require_peers(a, b, {.addresses = false, .atomics = true}); }), "");
}

}  // namespace
}  // namespace stretto::gpu_requirements_test
