#include "stretto/runtime/processes/launch.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "stretto/base/test_errors.h"

namespace stretto {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

int launch(int n, const std::string& script, milliseconds grace = milliseconds(200)) {
  return launch_processes({.num_processes = n, .command = {"sh", "-c", script}, .grace = grace});
}

class Launch : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = std::filesystem::temp_directory_path() / "stretto-launch-XXXXXX";
    folder_ = ::mkdtemp(name.data());
    ::setenv("OUT", folder_.c_str(), 1);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string text(const std::string& file) const {
    std::ostringstream text;
    text << std::ifstream(folder_ / file).rdbuf();
    return text.str();
  }
  bool comes(const std::string& file) const {
    for (int i = 0; i < 5000; ++i) {
      if (!text(file).empty()) return true;
      std::this_thread::sleep_for(milliseconds(1));
    }
    return false;
  }
  // A process that was killed may still be a zombie of somebody else's.
  static bool lives(int pid) {
    std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
    std::string number, name, state;
    stat >> number >> name >> state;
    return !state.empty() && state != "Z" && state != "X";
  }
  static bool ends(int pid) {
    for (int i = 0; i < 5000 && lives(pid); ++i) std::this_thread::sleep_for(milliseconds(1));
    return !lives(pid);
  }

  std::filesystem::path folder_;
};

TEST_F(Launch, EveryRankGetsItsEnvironment) {
  EXPECT_EQ(launch(3,
                   "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR "
                   "$STRETTO_MASTER_PORT ${STRETTO_LISTENER:+listener} > $OUT/$RANK"),
            0);
  std::string first = text("0");
  ASSERT_TRUE(first.starts_with("0 0 3 3 127.0.0.1 ")) << first;
  EXPECT_TRUE(first.ends_with(" listener\n")) << first;
  std::string port = first.substr(18, first.find(" listener") - 18);
  EXPECT_EQ(text("2"), "2 2 3 3 127.0.0.1 " + port + "\n");
}

TEST_F(Launch, TheFirstFailureIsReportedAndTheOthersAreEnded) {
  Clock::time_point begin = Clock::now();
  EXPECT_EQ(launch(3,
                   "trap '' TERM; [ $RANK = 1 ] && exit 7; sleep 60 & echo $! > $OUT/$RANK; "
                   "wait; sleep 60"),
            7);
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(20));
  EXPECT_EQ(launch(2, "[ $RANK = 1 ] && kill -SEGV $$; sleep 60"), 128 + SIGSEGV);
  EXPECT_EQ(launch(2, "exit $RANK"), 1);
  EXPECT_EQ(launch_processes({.num_processes = 2, .command = {"no such command\n"}}), 127);
}

TEST_F(Launch, ARankThatEndsByItselfWithinTheGraceIsLeftToIt) {
  EXPECT_EQ(
      launch(2, "[ $RANK = 1 ] && exit 7; sleep 0.2; echo told > $OUT/told", milliseconds(30'000)),
      7);
  EXPECT_EQ(text("told"), "told\n");
}

TEST_F(Launch, RefusesNothingToDo) {
  expect_user_error([] { launch_processes({.num_processes = 0, .command = {"true"}}); },
                    {"at least one"});
  expect_user_error([] { launch_processes({}); }, {"no command"});
}

int launcher_in_child(const std::string& script) {
  pid_t pid = ::fork();
  if (pid == 0) ::_exit(launch(2, script));
  return pid;
}

TEST_F(Launch, SignalsArePassedOn) {
  pid_t launcher = launcher_in_child(
      "trap 'echo got > $OUT/got$RANK; exit 5' TERM; echo $$ > $OUT/$RANK; "
      "while true; do sleep 0.01; done");
  ASSERT_TRUE(comes("0") && comes("1"));
  ::kill(launcher, SIGTERM);
  int status = 0;
  ::waitpid(launcher, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGTERM);
  EXPECT_EQ(text("got0") + text("got1"), "got\ngot\n");
}

// Both have ended before the launcher looks, rank 0 because rank 1 was killed.
TEST_F(Launch, WhoWasKilledIsTheFirstToFail) {
  pid_t launcher = launcher_in_child(
      "echo $$ > $OUT/$RANK; [ $RANK = 1 ] && exec sleep 60; "
      "until [ -s $OUT/1 ]; do sleep 0.01; done; "
      "while grep -q ' S ' /proc/$(cat $OUT/1)/stat; do sleep 0.01; done 2>/dev/null; exit 3");
  ASSERT_TRUE(comes("0") && comes("1"));
  ::kill(launcher, SIGSTOP);
  ::kill(std::stoi(text("1")), SIGKILL);
  for (const char* rank : {"1", "0"}) EXPECT_TRUE(ends(std::stoi(text(rank)))) << rank;
  ::kill(launcher, SIGCONT);
  int status = 0;
  ::waitpid(launcher, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGKILL);
}

TEST_F(Launch, KillingTheLauncherEndsTheRanks) {
  pid_t launcher = launcher_in_child("echo $$ > $OUT/$RANK; exec sleep 60");
  ASSERT_TRUE(comes("0") && comes("1"));
  ::kill(launcher, SIGKILL);
  ::waitpid(launcher, nullptr, 0);
  for (const char* rank : {"0", "1"}) EXPECT_TRUE(ends(std::stoi(text(rank)))) << rank;
}

}  // namespace
}  // namespace stretto
