// Ranks that do the same and touch nothing of each other are proved by one of them. Were a program
// taken for such that is not, what goes wrong on another rank would be called proved.
#include "stretto/proof/alike_ranks.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "stretto/lang/program_builder.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/prove.h"

namespace stretto::alike_ranks_test {
namespace {

constexpr int kWorld = 4, kTiles = 4, kRows = 32, kBound = kTiles * kRows;

// Where the rank goes in, all in a program that is right without it.
enum class Place {
  kNowhere,
  kRow,        // of what is read
  kColumn,     //
  kRowEnd,     // of what is stored
  kColumnEnd,  //
  kLet,
  kCondition,  // around a wait
  kLoop,
  kThreshold,
  kChannel,
  kAmount,
  kTiles,
  kContract,
  kEntry,  // which is read of a table
  kFirstRow,
  kStart,
  kEnd,
};
constexpr int kNumPlaces = static_cast<int>(Place::kEnd) + 1;

// Who has to do with whom, where all else is alike.
enum class Contact {
  kNone,
  kStoreBack,  // to (rank + 0) % ranks
  kStoreNext,
  kStoreNumber,
  kLoadNext,
  kNotifyNext,
  kNotifyNumber,
  kNotifyAll,
  kWaitNamed,  // which says whom it waits for
  kPacket,
  kSymmetric,  // memory that others could reach
  kGiven,      // an output on some ranks
};
constexpr int kNumContacts = static_cast<int>(Contact::kGiven) + 1;

// What a rank puts in that place.
using Term = std::function<Index(const Index& rank)>;
Index the_rank(const Index& rank) { return rank; }
Index folds_to_zero(const Index& rank) { return min(rank / kWorld * 8, 8); }

// Rows go through a buffer. `waits`: the reader does for the writer.
Program through_a_buffer(Place place, const Term& term, Contact contact, bool waits = true) {
  ProgramBuilder p("alike", kWorld);
  Index m = p.extent("m", kBound), rank = p.rank();
  auto by = [&](Place here) { return here == place ? term(rank) : Index(0); };
  auto in = p.input("in", DType::kF32, {m, 8});
  auto picks = p.table("picks", {kWorld}, {ContractKind::kRange, 0, 2 + by(Place::kContract)});
  bool far = contact == Contact::kStoreBack || contact == Contact::kStoreNext ||
             contact == Contact::kStoreNumber || contact == Contact::kLoadNext;
  Space space = far || contact == Contact::kSymmetric ? Space::kSymmetric : Space::kLocal;
  auto buf = p.buffer("buf", DType::kF32, {kBound, 8}, {.space = space});
  auto out = contact == Contact::kGiven
                 ? p.output("out", DType::kF32, {m, 8}, {.given_on = Index(0) <= rank})
                 : p.output("out", DType::kF32, {m, 8});
  auto done = p.signal("done", kWorld), more = p.signal("more", kWorld);
  bool of_all = contact == Contact::kNotifyAll || contact == Contact::kWaitNamed;
  std::optional<SignalRef> all;
  if (of_all) all = p.signal("all");
  p.on_start([&] { p.notify(more[by(Place::kStart)], rank); });
  p.role("write", Resource::sms(2), p.range(kTiles - by(Place::kTiles)), [&](const Tile& t) {
    Index row = p.let("row", t.index * kRows + by(Place::kLet));
    auto to = buf.tile({row, 0}, kRows, 8);
    if (contact == Contact::kStoreBack) to = to.on((rank + 0) % kWorld);
    if (contact == Contact::kStoreNext) to = to.on((rank + 1) % kWorld);
    if (contact == Contact::kStoreNumber) to = to.on(1);
    p.store(to, p.load(in.tile({t.index * kRows + by(Place::kFirstRow), 0}, kRows, 8)));
    Index whom = contact == Contact::kNotifyNext     ? (rank + 1) % kWorld
                 : contact == Contact::kNotifyNumber ? Index(2)
                                                     : rank;
    p.loop(1 + by(Place::kLoop), [&](const Index&) {
      p.notify(done[by(Place::kChannel)], whom, 1 + by(Place::kAmount));
    });
    if (of_all) p.notify_all(*all);
  });
  p.role("read", Resource::sms(1), p.range(kTiles), [&](const Tile& t) {
    Index pick = p.read(picks, {by(Place::kEntry)});
    p.when(by(Place::kCondition) == 0, [&] {
      if (waits) p.wait(done[0], kTiles - by(Place::kThreshold));
    });
    if (contact == Contact::kWaitNamed) p.wait(*all, rank);
    auto from = buf.tile({t.index * kRows + by(Place::kRow), by(Place::kColumn)}, kRows, 8);
    if (contact == Contact::kLoadNext) from = from.on((rank + 1) % kWorld);
    auto to = out.tile({t.index * kRows, 0}, kRows, 8);
    if (place == Place::kRowEnd) to = to.until_row(m - by(place));
    if (place == Place::kColumnEnd) to = to.until_col(8 - by(place));
    p.store(to, p.load(from) + p.load(in.tile({pick, 0}, 1, 8)));
  });
  p.on_end([&] { p.wait(more[by(Place::kEnd)], 0); });
  return p.finish();
}

Program with_packets() {
  ProgramBuilder p("packets", kWorld);
  auto in = p.input("in", DType::kF32, {8, 8});
  auto box = p.buffer("box", DType::kF32, {8, 8},
                      {.space = Space::kSymmetric, .num_slots = 2, .packet = true});
  auto out = p.output("out", DType::kF32, {8, 8});
  p.role("write", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.store_packet(box.tile({0, 0}, 8, 8), p.load(in.tile({0, 0}, 8, 8)));
  });
  p.role("read", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.store(out.tile({0, 0}, 8, 8), p.load_packet(box.tile({0, 0}, 8, 8)));
  });
  return p.finish();
}

Program in_contact(Contact contact) {
  if (contact == Contact::kPacket) return run_pipeline(with_packets());
  return run_pipeline(through_a_buffer(Place::kNowhere, the_rank, contact));
}

// Of all ranks, whatever one of them says.
ProofResult of_all(const Program& program) { return prove(program, {.one_of_alike = false}); }

std::string findings_of(const ProofResult& result) {
  std::string text;
  for (const Finding& f : result.findings) text += f.text + "\n";
  return text;
}

void expect_same_verdict(const Program& program) {
  ProofResult one = prove(program), all = of_all(program);
  EXPECT_EQ(one.verdict, all.verdict) << one.report << "\n" << all.report;
  EXPECT_EQ(findings_of(one), findings_of(all));
  EXPECT_EQ(one.notes, all.notes);
  EXPECT_EQ(one.stats.events, all.stats.events);
}

TEST(AlikeRanks, OneIsLookedAt) {
  Program right = run_pipeline(through_a_buffer(Place::kNowhere, the_rank, Contact::kNone));
  EXPECT_TRUE(ranks_are_alike(right));
  EXPECT_TRUE(prove(right).proved());
  expect_same_verdict(right);
  Program wrong =
      run_pipeline(through_a_buffer(Place::kNowhere, the_rank, Contact::kNone, /*waits=*/false));
  EXPECT_TRUE(ranks_are_alike(wrong));
  EXPECT_TRUE(prove(wrong).rejected());
  expect_same_verdict(wrong);
}

// One rank has no other to be like.
TEST(AlikeRanks, ThereAreSeveral) {
  Program program = run_pipeline(through_a_buffer(Place::kNowhere, the_rank, Contact::kNone));
  EXPECT_EQ(one_of_alike(program).world_size, 1);
  EXPECT_FALSE(ranks_are_alike(one_of_alike(program)));
}

TEST(AlikeRanks, TheRankIsNowhere) {
  for (int place = 1; place < kNumPlaces; ++place) {
    SCOPED_TRACE(fmt::format("place {}", place));
    Program program =
        run_pipeline(through_a_buffer(static_cast<Place>(place), the_rank, Contact::kNone));
    EXPECT_FALSE(ranks_are_alike(program));
    expect_same_verdict(program);
  }
}

TEST(AlikeRanks, TheRankMayFoldAway) {
  for (int place = 1; place < kNumPlaces; ++place) {
    for (bool waits : {true, false}) {
      SCOPED_TRACE(fmt::format("place {}, waits {}", place, waits));
      Program program = run_pipeline(
          through_a_buffer(static_cast<Place>(place), folds_to_zero, Contact::kNone, waits));
      EXPECT_TRUE(ranks_are_alike(program));
      EXPECT_EQ(prove(program).proved(), waits);
      expect_same_verdict(program);
    }
  }
}

// Each is right on rank 0 and wrong on another.
TEST(AlikeRanks, WhatIsWrongOnOtherRanksIsFound) {
  for (Place place : {Place::kRowEnd, Place::kColumnEnd, Place::kLet, Place::kCondition,
                      Place::kThreshold, Place::kChannel, Place::kTiles}) {
    SCOPED_TRACE(fmt::format("place {}", static_cast<int>(place)));
    Program program = run_pipeline(through_a_buffer(place, the_rank, Contact::kNone));
    EXPECT_TRUE(prove(one_of_alike(program)).proved());
    EXPECT_TRUE(prove(program).rejected());
  }
}

TEST(AlikeRanks, NobodyHasToDoWithAnother) {
  for (int contact = 1; contact < kNumContacts; ++contact) {
    SCOPED_TRACE(fmt::format("contact {}", contact));
    Program program = in_contact(static_cast<Contact>(contact));
    EXPECT_FALSE(ranks_are_alike(program));
    expect_same_verdict(program);
  }
  // One rank by itself would have its own rows back.
  for (Contact contact : {Contact::kStoreNext, Contact::kStoreNumber, Contact::kLoadNext,
                          Contact::kNotifyNext, Contact::kNotifyNumber}) {
    SCOPED_TRACE(fmt::format("contact {}", static_cast<int>(contact)));
    EXPECT_TRUE(prove(in_contact(contact)).rejected());
  }
}

}  // namespace
}  // namespace stretto::alike_ranks_test
