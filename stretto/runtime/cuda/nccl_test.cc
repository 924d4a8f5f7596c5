// NCCL as the baseline of collectives: our declarations against NVIDIA's header where it is
// installed, the error of a machine without the library, and sums on a machine with GPUs.
#include "stretto/runtime/cuda/nccl.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <random>

#include "stretto/base/errors.h"
#include "stretto/base/test_seed.h"
#include "stretto/runtime/cuda/signature_testing.h"

// Its names are global, ours are in stretto::cuda.
#if __has_include(<nccl.h>) && __has_include(<cuda_runtime.h>)
#include <nccl.h>
#define STRETTO_HAS_NCCL_HEADER 1
#endif

namespace stretto::cuda {
namespace {

#ifdef STRETTO_HAS_NCCL_HEADER

static_assert(int{stretto::cuda::ncclSuccess} == int{::ncclSuccess});
static_assert(int{stretto::cuda::ncclSum} == int{::ncclSum});
static_assert(int{stretto::cuda::ncclInt32} == int{::ncclInt32} &&
              int{stretto::cuda::ncclFloat16} == int{::ncclFloat16});
static_assert(int{stretto::cuda::ncclFloat32} == int{::ncclFloat32} &&
              int{stretto::cuda::ncclBfloat16} == int{::ncclBfloat16});

static_assert(sizeof(stretto::cuda::ncclUniqueId) == sizeof(::ncclUniqueId));

#define STRETTO_NCCL_COMPARE(member, symbol, result, parameters) \
  static_assert(same_signature(decltype(NcclLibrary::member){}, decltype(&::symbol){}), #symbol);
STRETTO_NCCL_FUNCTIONS(STRETTO_NCCL_COMPARE)
#undef STRETTO_NCCL_COMPARE

#endif  // STRETTO_HAS_NCCL_HEADER

TEST(NcclSearch, AMissingFileIsAnErrorThatSaysHow) {
  NcclSearch search = open_nccl({"/nowhere/libnccl.so.2"});
  EXPECT_NE(search.error.find("no NCCL"), std::string::npos) << search.error;
  EXPECT_NE(search.error.find("/nowhere/libnccl.so.2"), std::string::npos) << search.error;
  EXPECT_NE(search.error.find("STRETTO_NCCL"), std::string::npos) << search.error;
}

TEST(NcclSearch, AnotherLibraryIsRefusedByName) {
  NcclSearch search = open_nccl({"libc.so.6"});
  EXPECT_NE(search.error.find("libc.so.6 has no nccl"), std::string::npos) << search.error;
}

TEST(NcclSearch, MulticastIsOffBeforeTheLibraryIsOpened) {
  setenv("NCCL_NVLS_ENABLE", "1", 1);
  open_nccl({"/nowhere/libnccl.so.2"});
  EXPECT_STREQ(std::getenv("NCCL_NVLS_ENABLE"), "0");
}

TEST(NcclSearch, WithoutALibraryItsUseIsADeviceError) {
  if (search_nccl().error.empty()) GTEST_SKIP() << "this machine has NCCL";
  EXPECT_THROW(nccl_description(), DeviceError);
}

// Whole numbers, so that sums are exact; each collective against its definition.
TEST(NcclRanks, CollectivesGiveWhatTheirNamesSay) {
  if (num_devices() < 2) GTEST_SKIP() << "fewer than two GPUs";
  if (NcclSearch search = search_nccl(); !search.error.empty()) GTEST_SKIP() << search.error;
  constexpr std::size_t kRanks = 2, kCount = 1000;
  std::uint64_t seed = test_seed();
  SCOPED_TRACE("STRETTO_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 bits(seed);
  std::vector<Device> devices;
  std::vector<Stream> streams;
  std::vector<DeviceMemory> from, to;
  std::vector<std::vector<std::int32_t>> in(kRanks), out(kRanks);
  for (std::size_t r = 0; r < kRanks; ++r) {
    devices.emplace_back(static_cast<int>(r));
    streams.emplace_back(devices[r]);
    from.emplace_back(devices[r], kRanks * kCount * 4);
    to.emplace_back(devices[r], kRanks * kCount * 4);
    for (std::size_t i = 0; i < kRanks * kCount; ++i) {
      in[r].push_back(static_cast<std::int32_t>(bits() >> 44));
    }
    streams[r].upload(from[r].address(), in[r].data(), from[r].bytes());
    out[r].resize(kRanks * kCount);
  }
  NcclRanks ranks({0, 1});
  std::vector<NcclPart> parts;
  for (std::size_t r = 0; r < kRanks; ++r) {
    parts.push_back({&streams[r], from[r].address(), to[r].address()});
  }
  auto after = [&](auto&& call) {
    for (std::size_t r = 0; r < kRanks; ++r) streams[r].fill_bytes(parts[r].to, 0xff, 8 * kCount);
    call();
    for (std::size_t r = 0; r < kRanks; ++r) {
      streams[r].download(out[r].data(), parts[r].to, to[r].bytes());
      streams[r].synchronize();
    }
  };
  using Expected = std::function<std::int32_t(std::size_t rank, std::size_t i)>;
  auto compare = [&](const char* what, std::size_t count, const Expected& want) {
    for (std::size_t r = 0; r < kRanks; ++r) {
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(out[r][i], want(r, i)) << what << " rank " << r << " element " << i;
      }
    }
  };
  after([&] { ranks.all_gather(parts, kCount, DType::kI32); });
  compare("all-gather", 2 * kCount,
          [&](std::size_t, std::size_t i) { return in[i / kCount][i % kCount]; });
  after([&] { ranks.reduce_scatter(parts, kCount, DType::kI32); });
  compare("reduce-scatter", kCount, [&](std::size_t r, std::size_t i) {
    return in[0][r * kCount + i] + in[1][r * kCount + i];
  });
  after([&] { ranks.all_reduce(parts, kCount, DType::kI32); });
  compare("all-reduce", kCount, [&](std::size_t, std::size_t i) { return in[0][i] + in[1][i]; });
  after([&] { ranks.all_to_all(parts, kCount, DType::kI32); });
  compare("all-to-all", 2 * kCount,
          [&](std::size_t r, std::size_t i) { return in[i / kCount][r * kCount + i % kCount]; });
}

}  // namespace
}  // namespace stretto::cuda
