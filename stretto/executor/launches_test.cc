// What may be launched, and what a launch costs beside its work. A user who loses this runs what
// nobody proved, or pays for every launch what was paid for once.
#include <gtest/gtest.h>

#include <string>
#include <type_traits>

#include "stretto/base/allocations_testing.h"
#include "stretto/executor/program_runner.h"
#include "stretto/lang/program_builder.h"

namespace stretto {
namespace {

static_assert(!std::is_constructible_v<Instance, Rank&, Program>);
static_assert(!std::is_constructible_v<Instance, Rank&, std::shared_ptr<const Program>>);
static_assert(!std::is_constructible_v<Instance, Rank&, Lowered>);
static_assert(!std::is_constructible_v<Proved, Lowered>);
static_assert(!std::is_default_constructible_v<Proved>);

// Two workers double `rows` of at most 8; `orderly`: a reader waits for who writes.
Program doubled(bool orderly) {
  ProgramBuilder p("doubled", 1);
  Index rows = p.extent("rows", 8);
  auto x = p.input("x", DType::kF32, {rows, 16});
  auto between = p.buffer("between", DType::kF32, {rows, 16});
  auto y = p.output("y", DType::kF32, {rows, 16});
  auto here = p.signal("here", 8);
  p.role("add", Resource::sms(1), p.range(8), [&](const Tile& t) {
    p.store(between.tile({t.index, 0}, 1, 16), p.load(x.tile({t.index, 0}, 1, 16)) * 2.0);
    p.notify(here[t.index], p.rank());
  });
  p.role("copy", Resource::sms(1), p.range(8), [&](const Tile& t) {
    if (orderly) p.wait(here[t.index]);
    p.store(y.tile({t.index, 0}, 1, 16), p.load(between.tile({t.index, 0}, 1, 16)));
  });
  if (!orderly) p.on_end([&] { p.wait(here[Index(0)]); });
  return p.finish();
}

void launch_with(const Proved& ready, std::int64_t rows) {
  World({.size = 1}).run([&](Rank& rank) {
    RankArguments arguments(rank, ready.program());
    arguments.set("x", Doubles(128, 3));
    arguments.extents = {rows};
    Instance instance(rank, ready, {.poison = true});
    instance.launch(arguments.args, arguments.extents);
    Doubles got = arguments.get("y");
    for (std::int64_t i = 0; i < rows * 16; ++i) EXPECT_EQ(got[static_cast<std::size_t>(i)], 6);
  });
}

TEST(Launches, AreOfWhatWasProved) {
  EXPECT_THROW(prove(lower(doubled(false))), Rejected);
  Proved anything = prove(lower(doubled(true)));
  EXPECT_FALSE(anything.bounds_only());
  for (std::int64_t rows : {0, 5, 8}) launch_with(anything, rows);
}

TEST(Launches, OfOtherSizesThanWereProvedAreRefused) {
  Lowered program = lower(doubled(true));
  EXPECT_TRUE(for_launches_of(program, {8}).bounds_only);
  EXPECT_FALSE(for_launches_of(program, {5}).bounds_only);
  Proved fixed = prove(program, {.bounds_only = true});
  launch_with(fixed, 8);
  try {
    launch_with(fixed, 5);
    FAIL() << "was launched";
  } catch (const UserError& e) {
    EXPECT_STREQ(e.what(), "doubled: rows is 5, and the program is proved for 8 alone");
  }
}

std::string refusal(const Proved& program, std::vector<std::int64_t> extents) {
  try {
    program.require_covers(extents);
  } catch (const UserError& e) {
    return e.what();
  }
  return "";
}

// Sizes below, at and past every edge of what was proved, of extents and of scalars, and too few.
TEST(Launches, KnowWhichSizesWereProved) {
  ProgramBuilder p("sized", 1);
  Index rows = p.extent("rows", 8);
  p.scalar("past", 100);
  auto x = p.input("x", DType::kF32, {rows, 16});
  auto y = p.output("y", DType::kF32, {rows, 16});
  p.role("copy", Resource::sms(1), p.range(8), [&](const Tile& t) {
    p.store(y.tile({t.index, 0}, 1, 16), p.load(x.tile({t.index, 0}, 1, 16)));
  });
  Lowered program = lower(p.finish());
  Proved any = prove(program), fixed = prove(program, {.bounds_only = true});
  Proved waived = waive_proof(program, "its sizes are looked at");
  ASSERT_EQ(any.scope().sizes.size(), 2u);
  EXPECT_EQ(any.scope().sizes[0].name, "rows");
  for (const Proved* one : {&any, &waived}) {
    for (std::int64_t rows_now : {0, 5, 8}) EXPECT_EQ(refusal(*one, {rows_now, 100}), "");
    EXPECT_EQ(refusal(*one, {9, 0}),
              "sized: extent 'rows' is 9, and the program is proved for 0 to 8");
    EXPECT_EQ(refusal(*one, {-1, 0}),
              "sized: extent 'rows' is -1, and the program is proved for 0 to 8");
    EXPECT_EQ(refusal(*one, {8, 101}),
              "sized: scalar 'past' is 101, and the program is proved for 0 to 100");
    EXPECT_EQ(refusal(*one, {8}), "sized: 1 extents given, 2 declared");
  }
  Proved some = prove(program, {.bounds_only = true, .also_at = {{3, 100}, {5, 100}}});
  for (std::int64_t rows_now : {3, 5, 8}) {
    for (std::int64_t past : {0, 100}) EXPECT_EQ(refusal(some, {rows_now, past}), "");
    EXPECT_NE(refusal(some, {rows_now, 101}), "");
  }
  for (std::int64_t rows_now : {0, 4, 9}) {
    EXPECT_NE(refusal(some, {rows_now, 0}).find("proved for 8 and 2 others"), std::string::npos);
  }
  for (std::int64_t past : {0, 100}) EXPECT_EQ(refusal(fixed, {8, past}), "");
  for (std::int64_t rows_now : {0, 7, 9}) {
    EXPECT_NE(refusal(fixed, {rows_now, 0}).find("proved for 8 alone"), std::string::npos);
  }
}

// GPUs differ in it, and a rank's workers wait for each other: all are on SMs at a time.
TEST(Launches, KnowOnWhichGpusTheyWereProved) {
  Lowered program = lower(doubled(true));
  EXPECT_THROW(prove(program, {.gpu = {.sms = 1}}), Rejected) << "two workers on one SM";
  Proved proved = prove(program, {.gpu = {.sms = 114}});
  EXPECT_EQ(proved.scope().sms, 114);
  EXPECT_NO_THROW(proved.require_covers_gpu(114, "GPU 0"));
  for (int sms : {113, 132}) EXPECT_THROW(proved.require_covers_gpu(sms, "GPU 0"), UserError);
  try {
    proved.require_covers_gpu(78, "GPU 1 (some)");
    FAIL() << "is taken";
  } catch (const UserError& e) {
    EXPECT_STREQ(e.what(), "doubled: proved for GPUs of 114 SMs, and GPU 1 (some) has 78");
  }
  EXPECT_EQ(waive_proof(program, "its GPU is looked at", {.sms = 7}).scope().sms, 7);
  launch_with(proved, 8);  // CPU ranks have no SMs
}

// A table decides which row is written: it is always row 0, which the proof does not see.
Program written_by_table(std::int64_t last) {
  ProgramBuilder p("written", 1);
  auto which = p.table("which", {1}, {ContractKind::kRange, 0, 2});
  auto out = p.output("out", DType::kF32, {1, 8});
  p.role("write", Resource::sms(1), p.range(1), [&](const Tile&) {
    Index entry = p.read(which, {0});
    p.store(out.tile({entry * (last - entry), 0}, 1, 8), p.full(DType::kF32, 1, 8, 3));
  });
  return p.finish();
}

// Otherwise what nobody has looked at runs as if it had been proved.
TEST(Launches, OfWhatIsNotCompleteAreRefused) {
  for (bool bounds_only : {false, true}) {
    try {
      prove(lower(written_by_table(1)), {.bounds_only = bounds_only});
      FAIL() << "may be launched";
    } catch (const NotComplete& e) {
      const std::string said = e.what();
      ASSERT_FALSE(e.missing().empty());
      EXPECT_EQ(e.missing()[0].what, kMissingTables);
      for (const char* word : {"written on 1 rank is not launched", "not shown: tables",
                               "launches_test.cc:", "ProveOptions::waiver", "waive_proof"}) {
        EXPECT_NE(said.find(word), std::string::npos) << word << " in: " << said;
      }
    }
  }
}

TEST(Launches, OfWhatIsNotCompleteAreMadeForAReason) {
  const std::string why = "entries are 0 or 1";
  Proved waived = prove(lower(written_by_table(1)), {.waiver = why});
  EXPECT_EQ(waived.waiver(), why);
  World({.size = 1}).run([&](Rank& rank) {
    for (double entry : {0.0, 1.0}) {
      RankArguments arguments(rank, waived.program());
      arguments.set("which", {entry});
      Instance instance(rank, waived, {.poison = true});
      instance.launch(arguments.args, arguments.extents);
      EXPECT_EQ(arguments.get("out"), Doubles(8, 3));
    }
  });
  EXPECT_THROW(prove(lower(written_by_table(2)), {.waiver = why}), Rejected)
      << "a reason does not make right what is wrong";
  EXPECT_EQ(prove(lower(doubled(true)), {.waiver = why}).waiver(), "") << "it is not needed";
}

TEST(Launches, WithoutAProofSayWhy) {
  EXPECT_THROW(waive_proof(lower(doubled(true)), ""), InternalError);
  EXPECT_EQ(waive_proof(lower(doubled(true)), "it is looked at by hand").waiver(),
            "it is looked at by hand");
  EXPECT_EQ(prove(lower(doubled(true))).waiver(), "");
}

TEST(Launches, AllocateNothingOnceTheyWereMade) {
  Proved ready = prove(lower(doubled(true)));
  World({.size = 1}).run([&](Rank& rank) {
    RankArguments arguments(rank, ready.program());
    Instance instance(rank, ready);
    instance.launch(arguments.args, arguments.extents);
    EXPECT_EQ(count_allocations([&] { instance.launch(arguments.args, arguments.extents); }), 0u);
    EXPECT_EQ(count_allocations([] { Doubles counted(8); }), 1u) << "nothing is counted";
  });
}

}  // namespace
}  // namespace stretto
