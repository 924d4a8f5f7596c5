// Several instances at a time, on two streams of each rank: side by side where their blocks fit,
// one after the other where not, and never stuck; an order that differs between ranks is an error
// that names both. Needs two GPUs.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/base/test_seed.h"
#include "stretto/gpu/gpu_instance.h"
#include "stretto/gpu/gpu_launches_testing.h"
#include "stretto/lang/program_builder.h"
#include "stretto/runtime/cuda/driver.h"
#include "stretto/runtime/cuda/driver_calls_testing.h"

namespace stretto::gpu_admission_test {
namespace {

constexpr int kRanks = 2, kCols = 256;
constexpr int kSms = 132;

// sum += the other rank's `in`, a row for each SM, which waits for the row of its number: all rows
// of both ranks are under way at the same time, or none ends.
Program meet(const std::string& name, int sms) {
  ProgramBuilder p(name, kRanks);
  TensorRef in = p.input("in", DType::kF32, {sms, kCols});
  TensorRef inbox = p.buffer("inbox", DType::kF32, {sms, kCols}, {.space = Space::kSymmetric});
  TensorRef sum = p.state("sum", DType::kF32, {sms, kCols});
  SignalRef free = p.signal("free"), sent = p.signal("sent", sms);
  Index peer = 1 - p.rank();
  p.on_start([&] { p.notify(free, peer); });
  p.role("meet", Resource::sms(sms), p.range(sms), [&](const Tile& t) {
    p.wait(free, peer);
    p.put_signal(inbox.on(peer).tile({t.index, 0}, 1, kCols), in.tile({t.index, 0}, 1, kCols),
                 sent[t.index], peer);
    p.wait(sent[t.index]);
    Value old = p.load(sum.tile({t.index, 0}, 1, kCols));
    Value more = p.load(inbox.tile({t.index, 0}, 1, kCols));
    p.worker_fence();  // every warp reads the row, one of them writes it
    p.store(sum.tile({t.index, 0}, 1, kCols), old + more);
  });
  return p.finish();
}

// An instance of it with tensors of its own.
class Meeting {
 public:
  Meeting(GpuWorld& world, const std::string& name, int sms)
      : world_(world),
        sms_(sms),
        in_(world.allocate(bytes())),
        sum_(world.allocate(bytes())),
        instance_(world, prove(lower(meet(name, sms)))) {
    for (int r = 0; r < kRanks; ++r) {
      std::vector<float> values(bytes() / 4);
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = value(r, i);
      world.stream(r).upload(in_.on[static_cast<std::size_t>(r)].address(), values.data(), bytes());
    }
    clear();
  }

  void clear() const {
    for (int r = 0; r < kRanks; ++r) {
      world_.stream(r).fill_bytes(sum_.on[static_cast<std::size_t>(r)].address(), 0, bytes());
    }
    world_.synchronize();
  }
  void launch(int rank, const cuda::Stream& stream) {
    instance_.launch({.tensors = {{.on = in_.addresses()}, {}, {.on = sum_.addresses()}}}, {}, rank,
                     stream);
  }
  GpuInstance& instance() { return instance_; }

  void expect_sums(int launches, const std::string& when) const {
    for (int r = 0; r < kRanks; ++r) {
      std::vector<float> got(bytes() / 4);
      world_.stream(r).download(got.data(), sum_.on[static_cast<std::size_t>(r)].address(),
                                bytes());
      world_.stream(r).synchronize();
      for (std::size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(got[i], static_cast<float>(launches) * value(1 - r, i))
            << when << ": rank " << r << ", element " << i;
      }
    }
  }

 private:
  std::size_t bytes() const { return static_cast<std::size_t>(sms_) * kCols * 4; }
  // Small, so that sums of some thousands are exact.
  static float value(int rank, std::size_t i) { return static_cast<float>(1 + rank + i % 61); }

  GpuWorld& world_;
  int sms_;
  SymmetricGpuMemory in_, sum_;
  GpuInstance instance_;
};

class GpuAdmission : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!cuda::has_driver() || cuda::num_devices() < kRanks) GTEST_SKIP() << "needs two GPUs";
    world_ = std::make_unique<GpuWorld>(
        GpuWorldOptions{.size = kRanks, .timeout = std::chrono::milliseconds(2000)});
    for (int r = 0; r < kRanks; ++r) second_.emplace_back(world_->device(r));
  }

  const cuda::Stream& stream(int rank, bool second) const {
    return second ? second_[static_cast<std::size_t>(rank)] : world_->stream(rank);
  }
  static int launches() { return launches_here(500); }
  void synchronize() const {
    for (const cuda::Stream& s : second_) s.synchronize();
  }

  // Launches of both in an order of coin tosses, each on a stream of its own; ranks get theirs in
  // bursts, so that now one is ahead, now the other.
  void interleave(Meeting& a, Meeting& b, std::uint64_t seed) const {
    constexpr std::size_t kAhead = 32;
    std::mt19937_64 random(seed);
    std::vector<bool> order(static_cast<std::size_t>(2 * launches()), false);
    std::fill(order.begin() + launches(), order.end(), true);
    std::shuffle(order.begin(), order.end(), random);
    std::size_t next[kRanks] = {0, 0};
    while (next[0] < order.size() || next[1] < order.size()) {
      auto r = static_cast<std::size_t>(random() % kRanks);
      for (std::uint64_t n = 1 + random() % 16; n > 0; --n, ++next[r]) {
        if (next[r] == order.size() || next[r] > next[1 - r] + kAhead) break;
        bool second = order[next[r]];
        (second ? b : a).launch(static_cast<int>(r), stream(static_cast<int>(r), second));
      }
    }
    synchronize();
    a.instance().wait();
  }

  std::unique_ptr<GpuWorld> world_;
  std::vector<cuda::Stream> second_;
};

TEST(GpuAdmissionPrograms, AreProved) { EXPECT_NO_THROW(prove(lower(meet("meet", 100)))); }

// A launch of the other stream waits for those before it, and marks where they are, each time.
TEST_F(GpuAdmission, StreamsThatTakeTurnsMakeNoEvents) {
  constexpr int kTurns = 12;
  Meeting a(*world_, "a", kSms), b(*world_, "b", kSms);
  auto turns = [&](int count) {
    for (int turn = 0; turn < count; ++turn) {
      for (int r = 0; r < kRanks; ++r) (turn % 2 == 0 ? a : b).launch(r, stream(r, turn % 2 != 0));
    }
  };
  turns(4);
  cuda::DriverCalls calls;
  turns(kTurns);
  std::map<std::string, std::int64_t> counts = calls.counts();
  EXPECT_EQ(counts["cuEventRecord"], 2 * kTurns * kRanks);
  EXPECT_EQ(counts["cuStreamWaitEvent"], kTurns * kRanks);
  EXPECT_EQ(counts["cuEventCreate"], 0);
  EXPECT_EQ(counts["cuEventDestroy_v2"], 0);
  synchronize();
  a.instance().wait();
  a.expect_sums((4 + kTurns) / 2, "in turn");
  b.expect_sums((4 + kTurns) / 2, "in turn");
}

TEST_F(GpuAdmission, TwoThatFitRunOnTwoStreams) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("STRETTO_TEST_SEED={}", seed));
  Meeting a(*world_, "a", 64), b(*world_, "b", kSms - 64);
  interleave(a, b, seed);
  a.expect_sums(launches(), "a");
  b.expect_sums(launches(), "b");
}

TEST_F(GpuAdmission, TwoTooLargeTogetherComeOneAfterTheOther) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("STRETTO_TEST_SEED={}", seed));
  Meeting a(*world_, "a", 100), b(*world_, "b", 80);
  interleave(a, b, seed);
  a.expect_sums(launches(), "a");
  b.expect_sums(launches(), "b");
}

// A graph whose streams part and meet again: within it they are ordered, too.
TEST_F(GpuAdmission, AGraphOfTwoStreamsIsChained) {
  Meeting a(*world_, "a", 100), b(*world_, "b", 80);
  a.expect_sums(0, "before");
  std::vector<cuda::GraphExec> graphs;
  for (int r = 0; r < kRanks; ++r) {
    const cuda::Stream &first = stream(r, false), &second = stream(r, true);
    cuda::Event part(world_->device(r)), meet(world_->device(r));
    first.begin_capture();
    first.record(part);
    second.wait(part);
    for (int i = 0; i < 3; ++i) {
      a.launch(r, first);
      b.launch(r, second);
    }
    second.record(meet);
    first.wait(meet);
    graphs.push_back(first.end_capture());
  }
  for (int i = 0; i < launches(); ++i) {
    for (int r = 0; r < kRanks; ++r) {
      graphs[static_cast<std::size_t>(r)].launch(world_->stream(r));
    }
  }
  a.instance().wait();
  a.expect_sums(3 * launches(), "a");
  b.expect_sums(3 * launches(), "b");
}

TEST_F(GpuAdmission, GraphsCapturedSideBySideMustFit) {
  Meeting a(*world_, "a", 100), b(*world_, "b", 80);
  stream(0, false).begin_capture();
  stream(0, true).begin_capture();
  a.launch(0, stream(0, false));
  EXPECT_THROW(b.launch(0, stream(0, true)), UserError);
  stream(0, false).end_capture();
  stream(0, true).end_capture();
}

TEST_F(GpuAdmission, AnotherOrderOnAnotherRankIsAnErrorAndCanBeMended) {
  Meeting a(*world_, "first", 16), b(*world_, "second", 16);
  a.launch(0, stream(0, false));
  b.launch(0, stream(0, true));
  try {
    b.launch(1, stream(1, true));
    ADD_FAILURE() << "no error";
  } catch (const UserError& e) {
    std::string text = e.what();
    EXPECT_NE(text.find("first (instance"), std::string::npos) << text;
    EXPECT_NE(text.find("second (instance"), std::string::npos) << text;
  }
  a.launch(1, stream(1, false));
  b.launch(1, stream(1, true));
  synchronize();
  a.instance().wait();
  a.expect_sums(1, "a");
  b.expect_sums(1, "b");
}

TEST_F(GpuAdmission, AfterAnErrorThatIsNotMendedTheWorldRecovers) {
  Meeting a(*world_, "first", 16), b(*world_, "second", 16);
  a.launch(0, stream(0, false));
  EXPECT_THROW(b.launch(1, stream(1, true)), UserError);
  EXPECT_THROW(a.instance().wait(), Fault);
  world_->clear_fault();
  for (Meeting* m : {&a, &b}) {
    m->instance().recover();
    m->clear();
  }
  for (int r : {1, 0}) {
    b.launch(r, stream(r, true));
    a.launch(r, stream(r, false));
  }
  synchronize();
  a.instance().wait();
  a.expect_sums(1, "a");
  b.expect_sums(1, "b");
}

TEST_F(GpuAdmission, ReservedSmsAreNotGivenOut) {
  GpuWorld world({.size = kRanks, .reserved_sms = 16});
  EXPECT_NO_THROW(Meeting(world, "small", kSms - 16));
  EXPECT_THROW(Meeting(world, "large", kSms - 15), UserError);
  EXPECT_THROW(GpuWorld({.size = kRanks, .reserved_sms = kSms}), UserError);
}

}  // namespace
}  // namespace stretto::gpu_admission_test
