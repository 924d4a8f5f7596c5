// Who may have only so many threads gets the same results, later.
#include "stretto/base/threads.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "stretto/base/errors.h"

namespace stretto {
namespace {

// No thread finds room for its stack, of a size that none had before.
class NoMoreThreads {
 public:
  NoMoreThreads() {
    set_stack_bytes(std::size_t{1} << 32);
    ::getrlimit(RLIMIT_AS, &before_);
    rlimit none{.rlim_cur = 1, .rlim_max = before_.rlim_max};
    ::setrlimit(RLIMIT_AS, &none);
  }
  ~NoMoreThreads() {
    ::setrlimit(RLIMIT_AS, &before_);
    set_stack_bytes(std::size_t{8} << 20);
  }

 private:
  static void set_stack_bytes(std::size_t bytes) {
    pthread_attr_t usual;
    pthread_attr_init(&usual);
    pthread_attr_setstacksize(&usual, bytes);
    pthread_setattr_default_np(&usual);
    pthread_attr_destroy(&usual);
  }

  rlimit before_{};
};

TEST(Threads, WorkIsDoneOnceWithOrWithoutHelpers) {
  for (bool alone : {false, true}) {
    std::vector<std::atomic<int>> done(1000);
    {
      std::unique_ptr<NoMoreThreads> none = alone ? std::make_unique<NoMoreThreads>() : nullptr;
      side_by_side(done.size(), 4, [&](std::size_t i) { ++done[i]; });
    }
    for (const std::atomic<int>& times : done) EXPECT_EQ(times, 1) << "alone " << alone;
  }
}

TEST(Threads, AnErrorEndsTheWork) {
  std::atomic<int> done = 0;
  auto work = [&](std::size_t i) {
    ++done;
    if (i == 10) throw UserError("the tenth");
  };
  EXPECT_THROW(side_by_side(1'000'000, 3, work), UserError);
  EXPECT_LT(done, 1'000'000);
}

TEST(Threads, OneThatCannotBeIsNamed) {
  std::string said;
  {
    NoMoreThreads none;
    try {
      start_thread("the reader", [] {}).join();
    } catch (const UserError& e) {
      said = e.what();
    }
  }
  EXPECT_NE(said.find("no thread for the reader: "), std::string::npos) << said;
}

}  // namespace
}  // namespace stretto
