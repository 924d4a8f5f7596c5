// The cache of compiled kernels: a damaged entry that is loaded runs garbage on the GPU.
#include "stretto/runtime/cuda/cubin_cache.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <random>

#include "stretto/base/test_seed.h"

namespace stretto::cuda {
namespace {
namespace fs = std::filesystem;

constexpr std::uint64_t kPlenty = std::uint64_t{1} << 30;

class CubinCacheTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "stretto-cubins-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    directory_ = name;
  }
  void TearDown() override { fs::remove_all(directory_); }

  fs::path directory_;
};

std::string random_bytes(std::mt19937_64& random, std::size_t count) {
  std::string bytes(count, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

KernelImage random_image(std::mt19937_64& random) {
  return {.cubin = random_bytes(random, 1 + random() % 5000),
          .log = random_bytes(random, random() % 300),
          .compile_seconds = 0.1 + static_cast<double>(random() % 1000) / 7};
}

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

void write_file(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

TEST_F(CubinCacheTest, GivesBackWhatWasPutIn) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  CubinCache cache(directory_ / "deeper" / "still", kPlenty);
  for (int round = 0; round < 20; ++round) {
    std::string key = random_bytes(random, random() % 2000);
    KernelImage image = random_image(random);
    EXPECT_FALSE(cache.find(key));
    cache.insert(key, image);
    std::optional<KernelImage> found = cache.find(key);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->cubin, image.cubin);
    EXPECT_EQ(found->log, image.log);
    EXPECT_EQ(found->compile_seconds, image.compile_seconds);
    EXPECT_TRUE(found->from_cache);
  }
}

TEST_F(CubinCacheTest, NoDamagedEntryIsFound) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  CubinCache cache(directory_, kPlenty);
  std::string key = "key" + random_bytes(random, 100);
  cache.insert(key, random_image(random));
  std::string whole = read_file(cache.entry(key));
  ASSERT_TRUE(cache.find(key));

  for (std::size_t length = 0; length < whole.size(); length += 1 + random() % 64) {
    write_file(cache.entry(key), whole.substr(0, length));
    EXPECT_FALSE(cache.find(key)) << "cut to " << length;
  }
  write_file(cache.entry(key), whole + "x");
  EXPECT_FALSE(cache.find(key)) << "longer";
  for (int round = 0; round < 500; ++round) {
    std::string damaged = whole;
    std::size_t at = random() % whole.size();
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << random() % 8));
    write_file(cache.entry(key), damaged);
    EXPECT_FALSE(cache.find(key)) << "byte " << at;
  }
  write_file(cache.entry(key), "stretto-cubin-1 18446744073709551615 1 " +
                                   std::to_string(key.size()) + " 1 0000000000000000\n");
  EXPECT_FALSE(cache.find(key)) << "sizes that overflow";

  KernelImage again = random_image(random);
  cache.insert(key, again);
  ASSERT_TRUE(cache.find(key));
  EXPECT_EQ(cache.find(key)->cubin, again.cubin);
}

TEST_F(CubinCacheTest, AnotherKeysEntryIsNotFound) {
  std::mt19937_64 random(test_seed());
  CubinCache cache(directory_, kPlenty);
  cache.insert("key one", random_image(random));
  fs::copy_file(cache.entry("key one"), cache.entry("key two"));
  EXPECT_FALSE(cache.find("key two")) << "as if the two keys had one hash";
}

TEST_F(CubinCacheTest, AnUnusableDirectoryIsNoError) {
  std::mt19937_64 random(test_seed());
  CubinCache cache("/proc/nowhere", kPlenty);
  cache.insert("key", random_image(random));
  EXPECT_FALSE(cache.find("key"));
}

// What fills a disk is not found out before it is full; what is used must stay.
TEST_F(CubinCacheTest, OverTheLimitTheLeastRecentlyUsedGo) {
  constexpr int kEntries = 40, kFits = 10;
  constexpr std::size_t kBytes = 10000;
  CubinCache cache(directory_, kFits * (kBytes + 200));
  KernelImage image{.cubin = std::string(kBytes, 'c')};
  auto name = [](int i) { return "key " + std::to_string(i); };
  auto age = fs::file_time_type::clock::now() - std::chrono::hours(1);
  auto sizes = [&] {
    std::uintmax_t bytes = 0;
    for (const auto& file : fs::directory_iterator(directory_)) bytes += file.file_size();
    return bytes;
  };
  fs::create_directories(directory_);
  write_file(directory_ / "not ours", std::string(50 * kBytes, 'x'));
  for (int i = 0; i < kEntries; ++i) {
    cache.insert(name(i), image);
    fs::last_write_time(cache.entry(name(i)), age + std::chrono::seconds(i));
    EXPECT_TRUE(cache.find(name(0))) << "used all the time, lost at " << i;
    EXPECT_LE(sizes(), 50 * kBytes + kFits * (kBytes + 200));
  }
  EXPECT_TRUE(cache.find(name(kEntries - 1)));
  EXPECT_TRUE(cache.find(name(kEntries - kFits / 2)));
  EXPECT_FALSE(cache.find(name(1)));
  EXPECT_FALSE(cache.find(name(kEntries - kFits - 1)));
  EXPECT_TRUE(fs::exists(directory_ / "not ours"));

  CubinCache tiny(directory_, 1);
  tiny.insert("large", image);
  EXPECT_TRUE(tiny.find("large")) << "what was just compiled stays";
  EXPECT_FALSE(tiny.find(name(0)));
}

// Writers and readers of the same entries in several processes: whatever is found is whole.
TEST_F(CubinCacheTest, ProcessesShareADirectory) {
  constexpr int kProcesses = 6;
  constexpr int kRounds = 100;
  std::uint64_t seed = test_seed();
  SCOPED_TRACE(seed);
  std::vector<pid_t> children;
  for (int process = 0; process < kProcesses; ++process) {
    pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      std::mt19937_64 random(seed + static_cast<std::uint64_t>(process));
      CubinCache cache(directory_, kPlenty);
      int found = 0;
      for (int round = 0; round < kRounds; ++round) {
        std::string key = "key " + std::to_string(random() % 3);
        // The log says how long the cubin is and of which byte it is made.
        std::size_t length = 1 + random() % 200000;
        cache.insert(key, {.cubin = std::string(length, static_cast<char>('a' + process)),
                           .log = std::to_string(length) + static_cast<char>('a' + process)});
        std::optional<KernelImage> image = cache.find(key);
        if (!image) continue;
        ++found;
        std::size_t said = std::stoul(image->log);
        if (image->cubin != std::string(said, image->log.back())) _exit(1);
      }
      _exit(found == kRounds ? 0 : 2);  // an entry, once there, never disappears
    }
    children.push_back(child);
  }
  for (pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
  }
  int files = 0;
  for (const auto& file : fs::directory_iterator(directory_)) {
    EXPECT_EQ(file.path().extension(), ".cubin") << "a temporary file stayed";
    ++files;
  }
  EXPECT_EQ(files, 3);
}

}  // namespace
}  // namespace stretto::cuda
