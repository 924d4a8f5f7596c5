// What a user would lose: times that follow from the machine's figures. Small programs on a machine
// of round figures, where every time can be computed by hand.
#include "stretto/predict/event_loop.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>

#include "stretto/base/errors.h"
#include "stretto/base/test_seed.h"
#include "stretto/ir/parser.h"
#include "stretto/predict/prediction.h"
#include "stretto/predict/test_machine.h"

namespace stretto::predict {
namespace {

Lowered read(const std::string& text) { return lower(parse(text, "test", MissingLocs::kFill)); }

// Rank 0 sends 1 MB (f32[512, 512]) to rank 1, which waits for it and copies it on.
std::string send(const std::string& waits_for = "1") {
  return R"(program "send" world 2 level schedule {
  rank %rank
  tile %t
  tile %u
  input @in : f32[512, 512]
  buffer @inbox : f32[512, 512] symmetric
  output @out : f32[512, 512]
  signal sent channels 1
  on_start on_start body {
  }
  role send copy_engine 1 tiles %t < 1 {
    agent body body {
      when %rank == 0 {
        copy @in[0, 0] tile [512, 512] to @inbox[0, 0] on 1 tile [512, 512]
        notify sent[0] on 1 by 1
      }
    }
  }
  role use sms 1 tiles %u < 1 {
    agent body body {
      when %rank == 1 {
        wait sent[0] >= )" +
         waits_for + R"(
        copy @inbox[0, 0] tile [512, 512] to @out[0, 0] tile [512, 512]
      }
    }
  }
  on_end on_end body {
  }
}
)";
}

constexpr double kMegabyte = 512 * 512 * 4;

TEST(EventLoop, ACopyANotifyAndAWaitAddUp) {
  Lowered program = read(send());
  Machine m = round_machine(2);
  m.graph_launch = 3e-6;
  m.eager_launch = 7e-6;
  m.copy_latency = 11e-6;
  m.copy_rate = 0.5e9;
  m.notify_cost = 13e-6;
  m.link_latency = 17e-6;
  m.load_latency = 19e-6;
  m.sm_rate = m.sm_copy_rate = 2e9;
  double copied = 3e-6 + 11e-6 + kMegabyte / 0.5e9;
  double seen = copied + 13e-6 + 17e-6;
  double used = seen + 19e-6 + kMegabyte / 2e9;
  Prediction p = predict(program, m, {.record = true});
  EXPECT_NEAR(p.time_ms, used * 1e3, 1e-9);
  // Free communication leaves the launch, the notify and the local copy.
  EXPECT_NEAR(p.time_ms - p.exposed_comm_ms, (3e-6 + 13e-6 + 19e-6 + kMegabyte / 2e9) * 1e3, 1e-5);
  bool waited = false;
  for (const TimedSpan& span : p.run.spans) {
    if (span.wait == nullptr) continue;
    waited = true;
    EXPECT_NEAR(span.begin, 3e-6, 1e-15);
    EXPECT_NEAR(span.end, seen, 1e-12);
  }
  EXPECT_TRUE(waited);
  EXPECT_NEAR(predict(program, m, {.timetable = {.eager = true}}).time_ms, (used + 4e-6) * 1e3,
              1e-9);
}

// Rank 0 sends two rows through as many queues as there are.
TEST(EventLoop, QueuesWaitForEachOthersSetUp) {
  auto two_rows = [](int queues) {
    return read(R"(program "rows" world 2 level schedule {
  rank %rank
  tile %t
  input @in : f32[2, 512]
  buffer @inbox : f32[2, 512] symmetric
  on_start on_start body {
  }
  role send copy_engine )" +
                std::to_string(queues) + R"( tiles %t < 2 {
    agent body body {
      copy @in[%t, 0] tile [1, 512] to @inbox[%t, 0] on 1 tile [1, 512]
    }
  }
  on_end on_end body {
  }
}
)");
  };
  Machine m = round_machine(2);
  m.link_rate = 1e15;
  m.copy_rate = 1e15;
  m.copy_latency = 12e-6;
  m.copy_setup = 7e-6;
  EXPECT_NEAR(predict(two_rows(1), m).time_ms, 2 * 12 * 1e-3, 1e-6);
  EXPECT_NEAR(predict(two_rows(2), m).time_ms, (5 + 2 * 7) * 1e-3, 1e-6);
}

TEST(EventLoop, ADeadlockIsReportedNotWaitedFor) {
  Lowered program = read(send("2"));
  try {
    predict(program, round_machine(2));
    FAIL() << "a wait for 2 that gets 1 ends";
  } catch (const Rejected& e) {
    std::string what = e.what();
    EXPECT_NE(what.find("'use' (rank 1"), std::string::npos) << what;
    EXPECT_NE(what.find("'sent'[0] of rank 1 >= 2, which stays at 1"), std::string::npos) << what;
  }
}

TEST(EventLoop, MachinesThatAreTooSmallAreRefused) {
  Lowered program = read(send());
  EXPECT_THROW(predict(program, round_machine(1)), UserError);
  Machine m = round_machine(2);
  m.num_sms = 1;
  m.copies_on_sms = true;  // then two are needed
  EXPECT_THROW(predict(program, m), UserError);
}

// `workers` SMs of rank 0 each push 1 MB to rank 1.
Lowered push(int workers) {
  return read(R"(program "push" world 2 level schedule {
  rank %rank
  tile %t
  input @in : f32[512, 512]
  buffer @inbox : f32[4, 512, 512] symmetric
  on_start on_start body {
  }
  role push sms )" +
              std::to_string(workers) +
              R"( tiles %t < 4 {
    agent body body {
      when %rank == 0 {
        copy @in[0, 0] tile [512, 512] to @inbox[%t, 0, 0] on 1 tile [512, 512]
      }
    }
  }
  on_end on_end body {
  }
}
)");
}

TEST(EventLoop, WorkersShareALink) {
  Machine m = round_machine(2);
  m.push.points = {{1, 1e9}, {4, 4e9}};
  m.link_rate = 2e9;  // half of what four of them want
  EXPECT_NEAR(predict(push(1), m).time_ms, 4 * kMegabyte / 1e9 * 1e3, 1e-6);
  EXPECT_NEAR(predict(push(2), m).time_ms, 4 * kMegabyte / 2e9 * 1e3, 1e-6);
  EXPECT_NEAR(predict(push(4), m).time_ms, 4 * kMegabyte / 2e9 * 1e3, 1e-6);
  EXPECT_EQ(predict(push(4), m).bound_by, "nvlink");
}

// Rank 0's only worker, of 128 threads, sums a row of its own tensor and one of rank 1's in each of
// 8 iterations, and stores the sum at home or at rank 1.
Lowered sum_rows(int cols, const std::string& to) {
  std::string n = std::to_string(cols);
  return read(R"(program "sum_rows" world 2 level schedule {
  rank %rank
  tile %t
  loop %i
  input @in : f32[8, )" +
              n + R"(] symmetric
  output @out : f32[8, )" +
              n + R"(] symmetric
  on_start on_start body {
  }
  role sum sms 1 tiles %t < 1 {
    agent body body threads 128 {
      values $0: f32[1, )" +
              n + R"(], $1: f32[1, )" + n + R"(], $2: f32[1, )" + n + R"(]
      when %rank == 0 {
        loop %i from 0 to 8 {
          $0 = load @in[%i, 0] tile [1, )" +
              n + R"(]
          $1 = load @in[%i, 0] on 1 tile [1, )" +
              n + R"(]
          $2 = binary add $0, $1
          store $2 to @out[%i, 0])" +
              to + " tile [1, " + n + R"(]
        }
      }
    }
  }
  on_end on_end body {
  }
}
)");
}

TEST(EventLoop, LoadsThatFollowEachOtherAreWaitedForTogether) {
  Machine m = round_machine(2);
  m.link_rate = 1e15;
  m.push.points = m.pull.points = m.load.points = {{1, 1e15}};
  m.packet_rate = 1e15;
  m.load_latency = 1e-6;
  m.remote_load_latency = 3e-6;
  m.thread_bytes = 64;  // 128 threads hold 1024 columns of both
  EXPECT_NEAR(predict(sum_rows(1024, ""), m).time_ms, 8 * 3e-6 * 1e3, 1e-5);
  // Twice as much as they hold, of each.
  EXPECT_NEAR(predict(sum_rows(4096, ""), m).time_ms, 8 * 2 * (3e-6 + 1e-6) * 1e3, 1e-5);
  m.thread_bytes = 96;  // a third less than 2048 columns of both: as much of the shorter wait
  EXPECT_NEAR(predict(sum_rows(2048, ""), m).time_ms, 8 * (3e-6 + 1e-6 / 3) * 1e3, 1e-5);
  m.thread_bytes = 64;
  // Of 2304 columns in runs of 8 some of 128 threads have more than others: as if all had.
  EXPECT_NEAR(predict(sum_rows(2304, ""), m).time_ms, predict(sum_rows(2560, ""), m).time_ms, 1e-5);
  // Where a tensor ends amid a run, loads are guarded, of 16 bytes, two for who has any in the
  // second round, of which the own ones are found in L2.
  EXPECT_NEAR(predict(sum_rows(642, ""), m).time_ms, 8 * 2 * (3e-6 + 0.5 * 1e-6) * 1e3, 1e-5);
}

TEST(EventLoop, LoadsAndStoresOfRegistersFillLinksInTheirOwnWay) {
  Machine m = round_machine(2);
  m.pull.points = {{1, 1e15}};  // of copies
  m.load.points = {{1, 0.25e9}};
  double row = 4096 * 4;
  EXPECT_NEAR(predict(sum_rows(4096, ""), m).time_ms, 8 * row / 0.25e9 * 1e3, 1e-3);
  m.load.points = {{1, 1e15}};
  m.push.points = {{1, 0.5e9}};
  EXPECT_NEAR(predict(sum_rows(4096, " on 1"), m).time_ms, 8 * row / 0.5e9 * 1e3, 1e-3);
}

// One worker, `tiles` tiles, each a loop of 16 products [64, 64] * [64, 64] and a store, which an
// agent of its own may make; all that is computed may stand under a condition.
Lowered product(int tiles, bool apart = false, bool conditional = false) {
  std::string pipe = R"(
    pipe stores : f32[64, 64] slots 2 swizzle b128 producer consumer consumer epilogue)";
  std::string store = R"(
      store $0 to @c[%t * 64, 0] tile [64, 64])";
  std::string epilogue = R"(
    agent epilogue epilogue {
      values $0: f32[64, 64]
      $0 = pipe_get stores)" +
                         store +
                         R"(
      pipe_release stores
    })";
  return read(R"(program "product" world 1 level schedule {
  rank %rank
  tile %t
  loop %i
  input @a : bf16[64, 1024]
  input @b : bf16[64, 1024]
  output @c : f32[)" +
              std::to_string(64 * tiles) +
              R"(, 64]
  on_start on_start body {
  }
  role gemm sms 1 stages 4 tiles %t < )" +
              std::to_string(tiles) + R"( {
    pipe a : bf16[64, 64] slots 4 swizzle b128 producer producer consumer consumer
    pipe b : bf16[64, 64] slots 4 swizzle b128 producer producer consumer consumer)" +
              (apart ? pipe : "") + R"(
    agent producer producer {
      loop %i from 0 to 16 {
        pipe_put a = @a[0, %i * 64] tile [64, 64]
        pipe_put b = @b[0, %i * 64] tile [64, 64]
      }
    }
    agent consumer consumer {
      values $0: f32[64, 64], $1: bf16[64, 64], $2: bf16[64, 64], $3: bf16[64, 64]
      $0 = fill 0
      )" + (conditional ? "when %t < 3 {\n" : "") +
              R"(loop %i from 0 to 16 {
        $1 = pipe_get a
        $2 = pipe_get b
        $3 = transpose $2
        $0 = dot $0, $1, $3
        pipe_release a
        pipe_release b
      })" + (apart ? "\n      pipe_fill stores = $0 col 0" : store) +
              (conditional ? "\n      }" : "") +
              R"(
    })" + (apart ? epilogue : "") +
              R"(
  }
  on_end on_end body {
  }
}
)");
}

constexpr double kStepFlops = 2.0 * 64 * 64 * 64, kSlotBytes = 64 * 64 * 2;

TEST(EventLoop, ProductsHideLoadsButTheFirst) {
  Machine m = round_machine(1);
  m.load_latency = 1e-6;
  m.tile_cost = 8e-6;                   // an eighth of a whole tile is stored
  double rate = 6 * kSlotBytes / 1e-6;  // all slots but the two being read, in one latency
  double first_slot = 1e-6 + kSlotBytes / rate;
  double loop = 16 * kStepFlops / 1e12, store = 1e-6;
  EXPECT_NEAR(predict(product(1), m).time_ms, (first_slot + loop + store) * 1e3, 2e-6);
  // Later tiles find their slots filled while the one before was stored.
  EXPECT_NEAR(predict(product(3), m).time_ms, (first_slot + 3 * (loop + store)) * 1e3, 6e-6);
  EXPECT_EQ(predict(product(3), m).exposed_comm_ms, 0);
}

// What comes after the products does not hide behind them because a condition holds both.
TEST(EventLoop, StoresUnderAConditionComeAfterTheProducts) {
  Machine m = round_machine(1);
  m.sm_rate = 64 * 64 * 4 / 2e-6;  // a store takes 2 us
  m.tensor_flops[DType::kBF16] = 1e11;
  for (int tiles : {1, 3}) {
    EXPECT_NEAR(predict(product(tiles, false, true), m).time_ms, predict(product(tiles), m).time_ms,
                1e-9);
  }
}

// Who computes pays for the way to the slot; what memory takes is the epilogue warp's.
TEST(EventLoop, EpilogueWarpsStoreBesideTheNextTile) {
  Machine m = round_machine(1);
  m.tile_cost = 8e-6;
  EXPECT_NEAR(predict(product(3, true), m).time_ms, predict(product(3), m).time_ms, 1e-6);
  m.hbm_rate = 64 * 64 * 4 / 2e-6;  // a store takes 2 us, and the loads of the first tile 32
  double plain = predict(product(3), m).time_ms, apart = predict(product(3, true), m).time_ms;
  // What a store takes beyond the way to the slot, 1 us, is hidden for all tiles but the last.
  EXPECT_GT(plain - apart, 0.9e-3);
  EXPECT_LT(plain - apart, 2.1e-3);
}

TEST(EventLoop, PowerBoundsWhatTheClockWouldAllow) {
  Machine m = round_machine(1);
  m.burst = 1.25;  // with one SM of ten at work there is power for it
  double loop = 16 * kStepFlops / 1.25e12;
  EXPECT_NEAR(predict(product(1), m).time_ms, loop * 1e3, 2e-6);
  double bytes = 32 * kSlotBytes;
  m.power.l2 = 2 * loop / (bytes + 64 * 64 * 4);
  double asked = 2 * loop + 16 * kStepFlops / 1e13;
  Prediction p = predict(product(1), m, {.record = true});
  EXPECT_NEAR(p.time_ms, asked * 1e3, 1e-9);
  EXPECT_NEAR(p.run.spans.back().end, asked, 1e-12);  // the picture is of the same launch
}

// At a higher clock products take more power: the time in which SMs wait is made up for in part.
TEST(EventLoop, WaitingIsMadeUpForByTheClockInPart) {
  Machine m = round_machine(1);
  m.burst = 1.25;
  m.power.clock = 2;
  double computed = 16 * kStepFlops / 1e12;  // at the sustained clock
  m.graph_launch = 0.25 * computed;
  double bytes = 32 * kSlotBytes + 64 * 64 * 4, others = 1.1 * computed;
  m.power.l2 = others / bytes;
  double products = 16 * kStepFlops / 1e13;
  double seconds = predict(product(1), m).time_ms / 1e3;
  EXPECT_LT(seconds, m.graph_launch + computed);
  EXPECT_GT(seconds, others + products);
  double clock = computed / (seconds - m.graph_launch);
  EXPECT_NEAR(seconds, others + products * clock * clock, 1e-3 * seconds);
}

TEST(EventLoop, LoadsBoundALoopOfCheapProducts) {
  Machine m = round_machine(1);
  m.sm_rate = 1e9;
  m.tensor_flops[DType::kBF16] = 1e20;
  double load = 32 * kSlotBytes / 1e9, store = 64 * 64 * 4 / 1e9;
  EXPECT_NEAR(predict(product(1), m).time_ms, (load + store) * 1e3, 1e-5);
  EXPECT_GE(predict(product(3), m).time_ms, 3 * load * 1e3);
  EXPECT_LE(predict(product(3), m).time_ms, 3 * (load + store) * 1e3);
  m.sm_rate = 1e14;
  m.hbm_rate = 1e9;  // the boxes of a and b are read once, whatever the number of tiles
  EXPECT_NEAR(predict(product(3), m).floors.hbm_ms, (32 * kSlotBytes + 3 * 64 * 64 * 4) / 1e9 * 1e3,
              1e-9);
}

TEST(EventLoop, TheSameAgainAndAgain) {
  Machine m = find_machine("h200x2");
  Lowered program = push(4);
  EXPECT_EQ(predict(program, m).time_ms, predict(program, m).time_ms);
}

TEST(EventLoop, FasterPartsNeverMakeItSlower) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE("STRETTO_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> log_rate(8, 12), log_time(-7, -5), more(1, 4);
  const Lowered programs[] = {read(send()), push(1), push(3), product(1), product(5)};
  for (int i = 0; i < 200; ++i) {
    Machine m = round_machine(2);
    double* rates[] = {&m.hbm_rate,
                       &m.l2_rate,
                       &m.sm_rate,
                       &m.sm_copy_rate,
                       &m.link_rate,
                       &m.copy_rate,
                       &m.push.points[0].rate,
                       &m.tensor_flops[DType::kBF16]};
    for (double* rate : rates) *rate = std::pow(10, log_rate(random));
    double* times[] = {&m.load_latency, &m.link_latency, &m.copy_latency, &m.notify_cost,
                       &m.tile_cost};
    for (double* time : times) *time = std::pow(10, log_time(random));
    for (const Lowered& program : programs) {
      Prediction p = predict(program, m);
      EXPECT_LE(p.exposed_comm_ms, p.time_ms);
      for (double floor : {p.floors.tensor_ms, p.floors.hbm_ms, p.floors.l2_ms, p.floors.link_ms,
                           p.floors.copy_ms}) {
        EXPECT_GE(p.time_ms, floor * (1 - 1e-9)) << program.program().name;
      }
      double* rate = rates[random() % std::size(rates)];
      double kept = *rate;
      *rate *= more(random);
      // Sharing in proportion lets what one load gains delay another a little
      // (docs/concepts/prediction.md).
      EXPECT_LE(predict(program, m).time_ms, p.time_ms * 1.02) << program.program().name;
      *rate = kept;
    }
  }
}

TEST(LanePicture, ShowsWhenWorkersAreBusy) {
  Lowered program = read(send());
  Machine m = round_machine(2);
  Prediction p = predict(program, m, {.record = true});
  std::string picture = lane_picture(p, 10);
  // The copy of 1 ms fills nearly all of the time, and rank 1 only waits for it.
  EXPECT_NE(picture.find("rank 1"), std::string::npos) << picture;
  EXPECT_NE(picture.find("use  x 1   |         "), std::string::npos) << picture;
}

}  // namespace
}  // namespace stretto::predict
