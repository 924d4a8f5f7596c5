// A packet seen half written, or taken for this launch's when it is the last one's, is a wrong sum
// in a small all-reduce.
#include "stretto/executor/kernels/packet.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/executor/kernels/kernels_test_support.h"

namespace stretto::kernels {
namespace {

std::vector<std::byte> random_bytes(testing::Random& random, std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random.integer(0, 255));
  return bytes;
}

TEST(Packet, RoundTripOfEverySizeAndNothingElseIsTouched) {
  testing::Random random;
  for (std::size_t size = 0; size <= 33; ++size) {
    std::vector<std::byte> payload = random_bytes(random, size), out(size + 8, std::byte{0xee});
    std::vector<std::uint64_t> words(num_packets(size) + 1, 0xeeeeeeeeeeeeeeeeu);
    store_packets(words.data(), payload, 7);
    EXPECT_EQ(words.back(), 0xeeeeeeeeeeeeeeeeu);
    ASSERT_TRUE(try_load_packets(words.data(), std::span(out).first(size), 7));
    EXPECT_TRUE(std::equal(payload.begin(), payload.end(), out.begin()));
    for (std::size_t i = size; i < out.size(); ++i) EXPECT_EQ(out[i], std::byte{0xee});
    if (size > 0) {
      EXPECT_FALSE(try_load_packets(words.data(), std::span(out).first(size), 8));
    }
  }
}

TEST(Packet, OneMissingWordIsMissed) {
  testing::Random random;
  std::vector<std::byte> payload = random_bytes(random, 40), out(40);
  for (std::size_t missing = 0; missing < num_packets(40); ++missing) {
    std::vector<std::uint64_t> words(num_packets(40));
    store_packets(words.data(), payload, 3);
    words[missing] = (words[missing] & 0xffffffffu) | std::uint64_t{2} << 32;
    EXPECT_FALSE(try_load_packets(words.data(), out, 3)) << missing;
  }
}

TEST(Packet, MisalignedWordsAreOurBug) {
  alignas(8) std::byte memory[32] = {};
  std::byte payload[4] = {};
  auto* words = reinterpret_cast<std::uint64_t*>(memory + 4);
  EXPECT_THROW(store_packets(words, payload, 1), InternalError);
  EXPECT_THROW(try_load_packets(words, payload, 1), InternalError);
}

TEST(Packet, AReaderSeesAnEpochWholeOrNotAtAll) {
  constexpr std::uint32_t kEpochs = 50;
  constexpr std::size_t kWords = 64;
  std::vector<std::uint64_t> words(kWords, 0), acknowledged(1, 0);
  std::thread writer([&] {
    std::vector<std::uint32_t> payload(kWords);
    std::vector<std::byte> none;
    for (std::uint32_t epoch = 1; epoch <= kEpochs; ++epoch) {
      for (std::size_t i = 0; i < kWords; ++i)
        payload[i] = epoch * 1000003u + static_cast<std::uint32_t>(i);
      store_packets(words.data(), std::as_bytes(std::span(payload)), epoch);
      std::byte reply[4];
      while (!try_load_packets(acknowledged.data(), reply, epoch)) std::this_thread::yield();
    }
  });
  std::vector<std::uint32_t> seen(kWords);
  for (std::uint32_t epoch = 1; epoch <= kEpochs; ++epoch) {
    while (!try_load_packets(words.data(), std::as_writable_bytes(std::span(seen)), epoch))
      std::this_thread::yield();
    for (std::size_t i = 0; i < kWords; ++i)
      EXPECT_EQ(seen[i], epoch * 1000003u + static_cast<std::uint32_t>(i));
    std::byte reply[4] = {};
    store_packets(acknowledged.data(), reply, epoch);
  }
  writer.join();
}

}  // namespace
}  // namespace stretto::kernels
