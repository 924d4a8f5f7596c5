// If these fail, scripts ask a server that is not there, or wait for one that is.
#include "stretto/runtime/ready_file.h"

#include <gtest/gtest.h>

#include <fstream>
#include <stdexcept>
#include <string>

#include "stretto/base/errors.h"
#include "stretto/base/scratch.h"

namespace stretto::ready_file_test {
namespace {

namespace fs = std::filesystem;

std::string text_of(const fs::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(ReadyFile, IsThereWhileTheServerIsReady) {
  Scratch dir;
  const fs::path path = dir / "ready";
  std::ofstream(path) << "an earlier server's";
  {
    ReadyFile file(path.string());
    EXPECT_FALSE(fs::exists(path));
    file.announce("http://127.0.0.1:1");
    EXPECT_EQ(text_of(path), "http://127.0.0.1:1\n");
    file.withdraw();
    EXPECT_FALSE(fs::exists(path));
    file.announce("http://127.0.0.1:2");
  }
  EXPECT_FALSE(fs::exists(path));
}

TEST(ReadyFile, GoesWhereTheServerFails) {
  Scratch dir;
  const fs::path path = dir / "ready";
  auto serve = [&] {
    ReadyFile file(path.string());
    file.announce("http://127.0.0.1:1");
    throw std::runtime_error("the engine has died");
  };
  EXPECT_THROW(serve(), std::runtime_error);
  EXPECT_FALSE(fs::exists(path));
}

TEST(ReadyFile, LeavesWhatIsNotItsOwn) {
  Scratch dir;
  const fs::path link = dir / "link", file = dir / "file";
  std::ofstream(file) << "another's";
  fs::create_symlink(file, link);
  {
    ReadyFile ready(link.string());
    ready.announce("http://127.0.0.1:1");
    EXPECT_EQ(text_of(link), "http://127.0.0.1:1\n");
  }
  EXPECT_FALSE(fs::exists(link));
  EXPECT_EQ(text_of(file), "another's");
  const fs::path device = dir / "null";
  fs::create_symlink("/dev/null", device);
  { ReadyFile(device.string()).announce("http://127.0.0.1:1"); }
  EXPECT_TRUE(fs::exists("/dev/null"));
  EXPECT_TRUE(fs::is_symlink(device));
}

TEST(ReadyFile, NeedsAPlaceToBeWritten) {
  Scratch dir;
  EXPECT_THROW(ReadyFile((dir / "no" / "ready").string()), UserError);
  ReadyFile none("");
  none.announce("http://127.0.0.1:1");
}

}  // namespace
}  // namespace stretto::ready_file_test
