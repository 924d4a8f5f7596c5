// Losing any of this, a model that was half downloaded hangs its reader, loads without what a file
// says, or is refused with words that help nobody.
#include "stretto/base/downloaded_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "stretto/base/test_errors.h"

namespace stretto {
namespace {

namespace fs = std::filesystem;

class DownloadedFile : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(dir_); }
  void TearDown() override { fs::remove_all(dir_); }
  fs::path write(const std::string& name, const std::string& bytes) {
    std::ofstream(dir_ / name, std::ios::binary) << bytes;
    return dir_ / name;
  }
  void refuse(const fs::path& path, const std::vector<std::string>& parts) {
    EXPECT_FALSE(is_absent(path));
    expect_user_error([&] { read_downloaded_file(path, 1000); }, parts);
  }
  fs::path dir_ = fs::temp_directory_path() / ("stretto_downloaded_" + std::to_string(::getpid()));
};

TEST_F(DownloadedFile, IsReadAlsoThroughLinks) {
  // As the hub's cache links a snapshot to its blobs.
  fs::create_directories(dir_ / "snapshot");
  write("blob", "bytes");
  fs::create_symlink("../blob", dir_ / "snapshot/config.json");
  EXPECT_EQ(read_downloaded_file(dir_ / "snapshot/config.json", 5), "bytes");
  expect_user_error([&] { read_downloaded_file(dir_ / "blob", 4); }, {"blob", "larger than the 4"});
}

TEST_F(DownloadedFile, APipeIsNotWaitedFor) {
  ASSERT_EQ(::mkfifo((dir_ / "pipe").c_str(), 0600), 0);
  refuse(dir_ / "pipe", {"pipe", "is not a regular file"});
  refuse("/dev/null", {"/dev/null", "is not a regular file"});
  refuse(dir_, {dir_.string(), "is a directory"});
}

TEST_F(DownloadedFile, ALinkToNothingIsNotAbsent) {
  fs::create_symlink("../blobs/none", dir_ / "link");
  refuse(dir_ / "link", {"link", "'../blobs/none'", "is missing"});
  EXPECT_TRUE(is_absent(dir_ / "none"));
  EXPECT_TRUE(is_absent(dir_ / "none" / "at all"));
  expect_user_error([&] { read_downloaded_file(dir_ / "none", 1); }, {"none: is missing"});
}

TEST_F(DownloadedFile, ADirectoryOfAModelIsOne) {
  check_model_directory(dir_);
  expect_user_error([] { check_model_directory(""); }, {"directory is empty"});
  expect_user_error([] { check_model_directory("meta-llama/Llama"); },
                    {"meta-llama/Llama: is not a readable directory"});
  expect_user_error([&] { check_model_directory(write("file", "x")); }, {"readable directory"});
  fs::create_directories(dir_ / "snapshots/0123");
  expect_user_error([&] { check_model_directory(dir_); }, {"hub's cache", "snapshots"});
  write("config.json", "{}");
  check_model_directory(dir_);
}

// As huggingface/transformers#27923 and many more, where the reader speaks of its header.
TEST_F(DownloadedFile, AnLfsPointerIsNamed) {
  refuse(write("x.json", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"),
         {"x.json", "Git LFS pointer", "git lfs pull"});
}

}  // namespace
}  // namespace stretto
