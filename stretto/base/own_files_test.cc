// What is read back and run must be the user's own: otherwise another user's code runs.
#include "stretto/base/own_files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>

#include "stretto/base/errors.h"
#include "stretto/base/keyed_hash.h"
#include "stretto/base/test_seed.h"

namespace stretto {
namespace {
namespace fs = std::filesystem;

class OwnFiles : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "stretto-own-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
    const char* before = std::getenv("STRETTO_CACHE_DIR");
    before_ = before == nullptr ? "" : before;
    setenv("STRETTO_CACHE_DIR", (root_ / "cache").c_str(), 1);
  }
  void TearDown() override {
    setenv("STRETTO_CACHE_DIR", before_.c_str(), 1);
    fs::remove_all(root_);
  }
  static std::string bytes_of(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }
  static void put(const fs::path& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  }

  fs::path root_;
  std::string before_;
  static constexpr std::size_t kMost = 1 << 20;
};

// RFC 7693, and Python's hashlib.blake2b(bytes, key=key, digest_size=32).
TEST(KeyedHash, IsBlake2b) {
  EXPECT_EQ(keyed_hash("", "abc"),
            "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319");
  std::string long_text;
  for (int i = 0; i < 256; ++i) long_text += static_cast<char>(i);
  std::string key = long_text.substr(0, 32);
  EXPECT_EQ(keyed_hash(key, long_text.substr(0, 0)),
            "4e51e7a913fc80137da52880fecca175bf81e117d5c68126dc2774033517ea0d");
  EXPECT_EQ(keyed_hash(key, long_text.substr(0, 1)),
            "41ff93a4eaeebd3b78a93438a6f62a92ab5959c859e682b72c7def406197ca4d");
  EXPECT_EQ(keyed_hash(key, long_text.substr(0, 127)),
            "12879e69734944f25f9ed95cbfdbb3659a307e485ed8ec118ce7c60f107357f1");
  EXPECT_EQ(keyed_hash(key, long_text.substr(0, 128)),
            "138893f1631ef3165629515d6ed800da3771b7926dced294205c7507351deebc");
  EXPECT_EQ(keyed_hash(key, long_text.substr(0, 129)),
            "ca60f75cbb714330c046d8f28b4ed351a3ee81776bb02a96abb646fe573e3d5c");
  EXPECT_EQ(keyed_hash(key, long_text.substr(0, 255)),
            "f60f5c4a575c43db6c93608515866ea998e04b35792f5a92b27aa5880cd6721e");
  EXPECT_EQ(keyed_hash(key, long_text.substr(0, 256)),
            "b42be36ea26392f67d1d3706ffa72b6c61c2ff38e1fabd9a49e154d54b967d83");
}

TEST_F(OwnFiles, GivesBackOnlyWhatItHasSealed) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  SealedFolder folder(root_ / "cache" / "kind");
  EXPECT_FALSE(folder.read("a", kMost));
  std::string bytes(1 + random() % 3000, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  ASSERT_FALSE(folder.write("a", bytes));
  ASSERT_EQ(folder.read("a", kMost), bytes);
  EXPECT_FALSE(folder.read("a", 10)) << "longer than asked for";
  std::string whole = bytes_of(folder.path("a"));
  for (int round = 0; round < 200; ++round) {
    std::string damaged = whole;
    std::size_t at = random() % whole.size();
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << random() % 8));
    put(folder.path("a"), damaged);
    EXPECT_FALSE(folder.read("a", kMost)) << "byte " << at;
    put(folder.path("a"), whole.substr(0, at));
    EXPECT_FALSE(folder.read("a", kMost)) << "cut to " << at;
  }
  put(folder.path("b"), whole);
  EXPECT_FALSE(folder.read("b", kMost)) << "under another name";
  SealedFolder other(root_ / "cache" / "other kind");
  ASSERT_FALSE(other.write("b", "x"));
  put(other.path("a"), whole);
  EXPECT_FALSE(other.read("a", kMost)) << "as another kind";
  ASSERT_FALSE(folder.write("a", bytes));
  put(root_ / "elsewhere", whole);
  fs::remove(folder.path("a"));
  fs::create_symlink(root_ / "elsewhere", folder.path("a"));
  EXPECT_FALSE(folder.read("a", kMost)) << "a link";
}

TEST_F(OwnFiles, AKeyThatOthersCouldReadIsMadeAnew) {
  SealedFolder folder(root_ / "cache" / "kind");
  ASSERT_FALSE(folder.write("a", "x"));
  fs::path key = root_ / "cache" / "seal.key";
  std::string first = bytes_of(key);
  ASSERT_EQ(::chmod(key.c_str(), 0644), 0);
  EXPECT_FALSE(folder.read("a", kMost));
  ASSERT_FALSE(folder.write("a", "x"));
  EXPECT_NE(bytes_of(key), first);
  EXPECT_EQ(folder.read("a", kMost), "x");
}

TEST_F(OwnFiles, SaysOnceWhyNothingIsKeptWithoutAKey) {
  fs::create_directories(root_ / "cache" / "seal.key" / "in the way");
  SealedFolder folder(root_ / "cache" / "kind");
  testing::internal::CaptureStderr();
  EXPECT_TRUE(folder.write("a", "x"));
  EXPECT_TRUE(folder.write("b", "x"));
  std::string said = testing::internal::GetCapturedStderr();
  std::size_t at = said.find("seal.key cannot be written");
  ASSERT_NE(at, std::string::npos) << said;
  EXPECT_EQ(said.find("seal.key cannot be written", at + 1), std::string::npos) << said;
  EXPECT_NE(said.find("STRETTO_CACHE_DIR chooses another"), std::string::npos) << said;
}

TEST_F(OwnFiles, IsForThisUserAloneWhateverTheUmask) {
  for (mode_t mask : {0000, 0002, 0777}) {
    fs::path cache = root_ / ("cache" + std::to_string(mask));
    setenv("STRETTO_CACHE_DIR", cache.c_str(), 1);
    mode_t before = ::umask(mask);
    std::error_code error = SealedFolder(cache / "kind").write("a", "x");
    ::umask(before);
    EXPECT_FALSE(error) << error.message();
    struct stat found = {};
    for (auto [path, mode] : {std::pair{cache, 0700}, {cache / "kind", 0700},
                              {cache / "seal.key", 0600}, {cache / "kind/a", 0600}}) {
      ASSERT_EQ(::lstat(path.c_str(), &found), 0) << path;
      EXPECT_EQ(found.st_mode & 0777, static_cast<mode_t>(mode)) << path;
    }
  }
}

TEST_F(OwnFiles, RefusesWhatOthersCouldWrite) {
  fs::create_directories(root_ / "open" / "cache");
  SealedFolder folder(root_ / "open" / "cache");
  ASSERT_FALSE(folder.write("a", "x"));
  ASSERT_EQ(::chmod((root_ / "open").c_str(), 0777), 0);
  EXPECT_THROW(folder.read("a", kMost), UserError) << "the folder above";
  EXPECT_THROW(static_cast<void>(folder.write("a", "x")), UserError);
  ASSERT_EQ(::chmod((root_ / "open").c_str(), 01777), 0);
  EXPECT_EQ(folder.read("a", kMost), "x") << "sticky, as /tmp";
  ASSERT_EQ(::chmod((root_ / "open" / "cache").c_str(), 01777), 0);
  EXPECT_NE(why_not_own(root_ / "open" / "cache"), "") << "not so the folder itself";
}

TEST_F(OwnFiles, FollowsLinksAndLooksAtTheirOwners) {
  fs::create_directories(root_ / "disk" / "cache");
  fs::create_directory_symlink("disk", root_ / "link");
  EXPECT_EQ(why_not_own(root_ / "link" / "cache"), "");
  EXPECT_EQ(why_not_own(root_ / "link" / ".." / "disk"), "");
  fs::create_directory_symlink("loop", root_ / "loop");
  EXPECT_NE(why_not_own(root_ / "loop" / "cache"), "");
  ASSERT_EQ(::chmod((root_ / "disk").c_str(), 0777), 0);
  EXPECT_NE(why_not_own(root_ / "link" / "cache"), "") << "what the link leads through";
  ASSERT_EQ(::chmod((root_ / "disk").c_str(), 0755), 0);
  if (::geteuid() != 0) GTEST_SKIP() << "only root gives files away";
  ASSERT_EQ(::lchown((root_ / "link").c_str(), 4321, 4321), 0);
  EXPECT_NE(why_not_own(root_ / "link" / "cache"), "") << "another's link";
  ASSERT_EQ(::chown((root_ / "disk" / "cache").c_str(), 4321, 4321), 0);
  EXPECT_NE(why_not_own(root_ / "disk" / "cache").find("4321"), std::string::npos);
}

}  // namespace
}  // namespace stretto
