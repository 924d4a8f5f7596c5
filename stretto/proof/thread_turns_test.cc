// A worker is many threads. If these fail, a program is proved in which one thread overwrites what
// another has not read yet, or has written before: right on CPU ranks, garbage on a GPU.
#include <gtest/gtest.h>

#include <functional>

#include "stretto/lang/program_builder.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/prove.h"

namespace stretto::thread_turns_test {
namespace {

struct Frame {
  ProgramBuilder& p;
  TensorRef in, scratch, out;  // [128, 64], [40, 64], [128, 64]
  Index row;                   // the tile's first of `in` and `out`
};

// One worker, four tiles of 32 rows, all of which go through the same scratch.
ProofResult prove_worker(const std::function<void(const Frame&)>& body,
                         Resource resource = Resource::sms(1)) {
  ProgramBuilder p("worker", 1);
  auto in = p.input("in", DType::kF32, {128, 64});
  auto scratch = p.buffer("scratch", DType::kF32, {40, 64});
  auto out = p.output("out", DType::kF32, {128, 64});
  p.role("work", resource, p.range(4), [&](const Tile& t) {
    body({p, in, scratch, out, t.index * 32});
  });
  return prove(run_pipeline(p.finish()));
}

void expect_proved(const std::function<void(const Frame&)>& body) {
  ProofResult r = prove_worker(body);
  EXPECT_TRUE(r.proved()) << r.report;
}

void expect_race(const std::function<void(const Frame&)>& body, const std::string& words) {
  ProofResult r = prove_worker(body);
  ASSERT_TRUE(r.rejected());
  EXPECT_EQ(r.findings[0].kind, FindingKind::kRace) << r.report;
  EXPECT_NE(r.report.find(words), std::string::npos) << r.report;
  EXPECT_NE(r.report.find("worker_fence"), std::string::npos) << r.report;
}

// Stores the scratch, then reads it in two halves, which deal elements out otherwise.
void through_scratch(const Frame& f) {
  f.p.store(f.scratch.tile({0, 0}, 32, 64), f.p.load(f.in.tile({f.row, 0}, 32, 64)));
  f.p.worker_fence();
  for (int col : {0, 32}) {
    f.p.store(f.out.tile({f.row, col}, 32, 32), f.p.load(f.scratch.tile({0, col}, 32, 32)));
  }
}

TEST(ThreadTurns, AWriteAfterAReadNeedsAFence) {
  expect_race(through_scratch, "have read");
  expect_proved([](const Frame& f) {
    through_scratch(f);
    f.p.worker_fence();
  });
}

TEST(ThreadTurns, AWriteAfterAWriteNeedsAFence) {
  auto twice = [](bool fence) {
    return [fence](const Frame& f) {
      f.p.store(f.scratch.tile({0, 0}, 32, 64), f.p.zeros(DType::kF32, 32, 64));
      if (fence) f.p.worker_fence();
      for (int col : {0, 32}) {
        f.p.store(f.scratch.tile({0, col}, 32, 32), f.p.load(f.in.tile({f.row, col}, 32, 32)));
      }
      f.p.worker_fence();
      f.p.store(f.out.tile({f.row, 0}, 32, 64), f.p.load(f.scratch.tile({0, 0}, 32, 64)));
      f.p.worker_fence();
    };
  };
  expect_race(twice(false), "written again");
  expect_proved(twice(true));
}

TEST(ThreadTurns, AShiftInPlaceNeedsAFence) {
  auto shift = [](bool fence) {
    return [fence](const Frame& f) {
      f.p.store(f.scratch.tile({0, 0}, 32, 64), f.p.load(f.in.tile({f.row, 0}, 32, 64)));
      f.p.worker_fence();
      Value rows = f.p.load(f.scratch.tile({0, 0}, 32, 64));
      if (fence) f.p.worker_fence();
      f.p.store(f.scratch.tile({1, 0}, 32, 64), rows);
      f.p.worker_fence();
      f.p.store(f.out.tile({f.row, 0}, 32, 64), f.p.load(f.scratch.tile({1, 0}, 32, 64)));
      f.p.worker_fence();
    };
  };
  expect_race(shift(false), "have read");
  expect_proved(shift(true));
}

// Each thread reads and then writes what is its own; read-backs need their fence as ever.
TEST(ThreadTurns, SumsInPlaceNeedNone) {
  expect_proved([](const Frame& f) {
    auto sums = f.scratch.tile({0, 0}, 32, 64);
    f.p.store(sums, f.p.load(f.in.tile({f.row, 0}, 32, 64)));
    f.p.worker_fence();
    f.p.loop(3, [&](const Index&) {
      f.p.store(sums, f.p.load(sums) + 1.0);
      f.p.worker_fence();
    });
    f.p.store(f.out.tile({f.row, 0}, 32, 64), f.p.load(sums));
  });
}

// The same with boxes of several tiles, one after another.
TEST(ThreadTurns, PartsInPlaceNeedNoneAsLongAsTheyAreTheSame) {
  auto in_parts = [](std::int64_t rows) {
    return [rows](const Frame& f) {
      f.p.loop(2, [&](const Index& i) {
        f.p.store(f.scratch.tile({i * 16, 0}, 16, 64),
                  f.p.load(f.in.tile({f.row + i * 16, 0}, 16, 64)));
      });
      f.p.worker_fence();
      f.p.loop(32 / rows, [&](const Index& i) {
        f.p.store(f.out.tile({f.row + i * rows, 0}, rows, 64),
                  f.p.load(f.scratch.tile({i * rows, 0}, rows, 64)));
      });
    };
  };
  expect_proved(in_parts(16));
  expect_race(in_parts(8), "have read");
}

// Every warp has a copy of a row's elements, one of them stores.
TEST(ThreadTurns, ARowThatWarpsShareNeedsAFence) {
  auto row = [](bool fence) {
    return [fence](const Frame& f) {
      auto sums = f.scratch.tile({0, 0}, 1, 64);
      f.p.store(sums, f.p.load(f.in.tile({f.row, 0}, 1, 64)));
      f.p.worker_fence();
      Value more = f.p.load(sums) + 1.0;
      if (fence) f.p.worker_fence();
      f.p.store(sums, more);
      f.p.store(f.out.tile({f.row, 0}, 32, 64), f.p.zeros(DType::kF32, 32, 64) + more);
    };
  };
  expect_race(row(false), "have read");
  expect_proved(row(true));
}

// A read-back of another block's rows: who adds the fence that the report asked for must not be
// asked for it again.
TEST(ThreadTurns, AFenceEndsAtTheBlockOfACluster) {
  for (bool fence : {false, true}) {
    ProofResult r = prove_worker(
        [&](const Frame& f) {
          f.p.store(f.scratch.tile({0, 0}, 32, 64), f.p.load(f.in.tile({f.row, 0}, 32, 64)));
          if (fence) f.p.worker_fence();
          f.p.store(f.out.tile({f.row, 0}, 32, 64), f.p.load(f.scratch.tile({0, 0}, 32, 64)));
        },
        Resource::sms(1).clustered(2));
    ASSERT_TRUE(r.rejected());
    EXPECT_NE(r.report.find("ends at the block"), std::string::npos) << r.report;
  }
}

// Each block of a cluster stores a row that it has whole, one of them later than the other.
TEST(ThreadTurns, ARowOfAClusterIsStoredByAllBlocks) {
  auto stores = [](std::int64_t rows) {
    return prove_worker(
        [&](const Frame& f) {
          auto box = f.scratch.tile({0, 0}, rows, 64);
          f.p.store(box, f.p.zeros(DType::kF32, rows, 64));
          f.p.store(box, f.p.full(DType::kF32, rows, 64, 1.0));
          f.p.store(f.out.tile({f.row, 0}, 32, 64), f.p.load(f.in.tile({f.row, 0}, 32, 64)));
        },
        Resource::sms(1).clustered(2));
  };
  EXPECT_TRUE(stores(32).proved()) << stores(32).report;
  EXPECT_TRUE(stores(1).rejected());
}

// Whoever is free takes the next tile, so the last to store a row may be any tile of it.
TEST(ThreadTurns, TilesByTicketHaveNoOrder) {
  auto dealt_out = [](const Resource& resource, int rows) {
    ProgramBuilder p("tickets", 1);
    auto last = p.buffer("last", DType::kF32, {128, 64});
    auto out = p.output("out", DType::kF32, {128, 64});
    p.role("work", resource, p.range(4), [&](const Tile& t) {
      p.store(last.tile({t.index % rows * 32, 0}, 32, 64), p.zeros(DType::kF32, 32, 64));
    });
    p.on_end([&] {
      auto kept = last.tile({0, 0}, 64, 64);
      p.store(out.tile({0, 0}, 64, 64), p.load(kept));
      p.store(out.tile({64, 0}, 64, 64), p.zeros(DType::kF32, 64, 64));
    });
    return prove(run_pipeline(p.finish()));
  };
  EXPECT_TRUE(dealt_out(Resource::sms(2), 2).proved()) << dealt_out(Resource::sms(2), 2).report;
  EXPECT_TRUE(dealt_out(Resource::sms(2).by_ticket(), 4).proved());
  ProofResult result = dealt_out(Resource::sms(2).by_ticket(), 2);
  ASSERT_TRUE(result.rejected());
  EXPECT_NE(result.report.find("by ticket"), std::string::npos) << result.report;
}

// The same box, once where products leave their sums, once in rows.
TEST(ThreadTurns, TwoLayoutsOfOneBoxNeedAFence) {
  auto product = [](bool fence) {
    ProgramBuilder p("product", 1);
    auto in = p.input("in", DType::kBF16, {128, 64});
    auto scratch = p.buffer("scratch", DType::kF32, {64, 64});
    auto out = p.output("out", DType::kF32, {128, 64});
    p.role("work", Resource::sms(1), p.range(2), [&](const Tile& t) {
      Value a = p.load(in.tile({t.index * 64, 0}, 64, 64));
      p.store(scratch.tile({0, 0}, 64, 64), dot(p.zeros(DType::kF32, 64, 64), a, a));
      p.worker_fence();
      p.store(out.tile({t.index * 64, 0}, 64, 64), p.load(scratch.tile({0, 0}, 64, 64)));
      if (fence) p.worker_fence();
    });
    return prove(run_pipeline(p.finish()));
  };
  EXPECT_TRUE(product(false).rejected());
  EXPECT_TRUE(product(true).proved()) << product(true).report;
}

TEST(ThreadTurns, ACopyOntoItselfIsRefusedWhoeverMakesIt) {
  auto onto_itself = [](const Frame& f) {
    f.p.copy(f.scratch.tile({0, 0}, 32, 64), f.in.tile({f.row, 0}, 32, 64));
    f.p.worker_fence();
    f.p.copy(f.scratch.tile({3, 0}, 32, 64), f.scratch.tile({0, 0}, 32, 64));
    f.p.worker_fence();
    f.p.copy(f.out.tile({f.row, 0}, 32, 64), f.scratch.tile({3, 0}, 32, 64));
    f.p.worker_fence();
  };
  for (Resource resource : {Resource::sms(1), Resource::copy_engine(1)}) {
    ProofResult r = prove_worker(onto_itself, resource);
    ASSERT_TRUE(r.rejected());
    EXPECT_NE(r.report.find("onto itself"), std::string::npos) << r.report;
  }
}

}  // namespace
}  // namespace stretto::thread_turns_test
