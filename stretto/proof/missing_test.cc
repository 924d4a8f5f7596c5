// Whoever reads "not complete" learns what was not shown, of what, and what in the program it comes
// of. One program for each kind of thing that may be missing.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "stretto/lang/program_builder.h"
#include "stretto/proof/prove.h"
#include "stretto/proof/verdict.h"

namespace stretto::missing_test {
namespace {

const Missing& only_missing(const ProofResult& r) {
  static const Missing none;
  EXPECT_EQ(r.verdict, Verdict::kNotComplete) << r.report;
  EXPECT_EQ(r.missing.size(), 1u) << r.report;
  return r.missing.empty() ? none : r.missing[0];
}

void expect_words(const std::string& text, const std::vector<std::string>& words) {
  for (const std::string& word : words) EXPECT_NE(text.find(word), std::string::npos) << text;
}

// Rank 0 waits for both others at one size only, and nobody waits for rank 0.
Program of_two_senders() {
  ProgramBuilder p("of_two_senders", 3);
  Index m = p.extent("m", 1);
  auto out = p.output("out", DType::kF32, {1, 8});
  auto counted = p.signal("counted", 1);
  p.on_start([&] { p.when(p.rank() > 0, [&] { p.notify(counted[0], 0); }); });
  p.role("fill", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.when(p.rank() == 0 && m == 1, [&] { p.wait(counted[0], 2); });
    p.store(out.tile({0, 0}, 1, 8), p.zeros(DType::kF32, 1, 8));
  });
  return p.finish();
}

// As many waits as there are rows: each size is a kind of its own.
Program of_many_kinds() {
  ProgramBuilder p("of_many_kinds", 2);
  Index m = p.extent("m", 60);
  auto in = p.input("in", DType::kF32, {1, 8});
  auto inbox = p.buffer("inbox", DType::kF32, {1, 8}, {.space = Space::kSymmetric});
  auto out = p.output("out", DType::kF32, {1, 8});
  auto ready = p.signal("ready"), sent = p.signal("sent");
  Index peer = 1 - p.rank();
  p.on_start([&] { p.notify(ready, peer); });
  p.role("send", Resource::copy_engine(), p.range(1), [&](const Tile&) {
    p.wait(ready, peer);
    p.put_signal(inbox.on(peer).tile({0, 0}, 1, 8), in.tile({0, 0}, 1, 8), sent[p.rank()], peer);
  });
  p.role("recv", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.loop(1 + m, [&](const Index&) { p.wait(sent, peer); });
    p.store(out.tile({0, 0}, 1, 8), p.load(inbox.tile({0, 0}, 1, 8)));
  });
  return p.finish();
}

// Tile i takes the first of two rows that are each other's excuse.
Program crossed_by_table() {
  ProgramBuilder p("crossed", 2);
  auto which = p.table("which", {1}, {ContractKind::kRange, 0, 2});
  auto out = p.output("out", DType::kF32, {2, 1, 8});
  auto passed = p.signal("passed", 2);
  p.role("cross", Resource::sms(2), p.range(2), [&](const Tile& t) {
    p.when(p.read(which, {0}) == t.index, [&] { p.wait(passed[1 - t.index]); });
    p.store(out.tile({t.index, 0, 0}, 1, 8), p.zeros(DType::kF32, 1, 8));
    p.notify(passed[t.index], p.rank());
  });
  return p.finish();
}

// A table decides which row of the output is written: it is always the first one.
Program written_by_table() {
  ProgramBuilder p("written", 1);
  auto which = p.table("which", {1}, {ContractKind::kRange, 0, 2});
  auto out = p.output("out", DType::kF32, {1, 8});
  p.role("write", Resource::sms(1), p.range(1), [&](const Tile&) {
    Index entry = p.read(which, {0});
    p.store(out.tile({entry * (1 - entry), 0}, 1, 8), p.zeros(DType::kF32, 1, 8));
  });
  return p.finish();
}

// An entry of one table names entries of another one, of which some are not there.
Program guarded_by_table() {
  ProgramBuilder p("guarded", 1);
  auto index = p.table("index", {4}, {ContractKind::kRange, 0, 8});
  auto values = p.table("values", {4}, {ContractKind::kRange, 0, 4});
  auto x = p.input("x", DType::kF32, {4, 8});
  auto out = p.output("out", DType::kF32, {4, 8});
  p.role("r", Resource::sms(1), p.range(4), [&](const Tile& t) {
    Index i = p.read(index, {t.index});
    Value v = p.zeros(DType::kF32, 1, 8);
    p.when(i < 4, [&] { v = v + p.load(x.tile({p.read(values, {i}), 0}, 1, 8)); });
    p.store(out.tile({t.index, 0}, 1, 8), v);
  });
  return p.finish();
}

Program with_rows(std::int64_t bound) {
  ProgramBuilder p("rows", 1);
  Index m = p.extent("m", bound);
  auto out = p.output("out", DType::kF32, {m, 4});
  p.role("fill", Resource::sms(1), p.grid(out, 4, 4), [&](const Tile& t) {
    p.store(out.tile({t.row, t.col}, 4, 4), p.zeros(DType::kF32, 4, 4));
  });
  return p.finish();
}

Program with_slots(int slots) {
  ProgramBuilder p("slots", 2);
  auto in = p.input("in", DType::kF32, {1, 8});
  auto many =
      p.buffer("many", DType::kF32, {1, 8}, {.space = Space::kSymmetric, .num_slots = slots});
  auto out = p.output("out", DType::kF32, {1, 8});
  auto sent = p.signal("sent", 1);
  Index peer = 1 - p.rank();
  p.role("send", Resource::copy_engine(1), p.range(1), [&](const Tile&) {
    p.put(many.on(peer).tile({0, 0}, 1, 8), in.tile({0, 0}, 1, 8));
    p.loop(1000, [&](const Index&) { p.notify(sent[0], peer); });
  });
  p.role("recv", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.wait(sent[0], 1000);
    p.store(out.tile({0, 0}, 1, 8), p.load(many.tile({0, 0}, 1, 8)));
  });
  return p.finish();
}

TEST(Missing, EveryKindSaysWhereAndOfWhat) {
  const std::multimap<std::string, std::function<ProofResult()>> programs = {
      {kMissingSizes,
       [] { return prove(with_rows(9'000), {.max_enumerated = 1'000, .partition = false}); }},
      {kMissingTables, [] { return prove(crossed_by_table()); }},
      {kMissingTables, [] { return prove(written_by_table()); }},
      {kMissingEntries, [] { return prove(guarded_by_table()); }},
      {kMissingOrders, [] { return prove(of_two_senders()); }},
      {kMissingOrders, [] { return prove(of_many_kinds(), {.promises = false}); }},
      {kMissingLimit, [] { return prove(with_slots(100'000)); }},
  };
  for (const char* kind : kAllMissing) {
    SCOPED_TRACE(kind);
    EXPECT_GT(programs.count(kind), 0u) << "a program for it is needed here";
    auto [first, last] = programs.equal_range(kind);
    for (auto it = first; it != last; ++it) {
      const ProofResult r = it->second();
      const Missing& m = only_missing(r);
      EXPECT_EQ(m.what, kind) << r.report;
      EXPECT_FALSE(m.where.empty()) << r.report;
      EXPECT_FALSE(m.expression.empty()) << r.report;
    }
  }
}

// A user adds a channel for each sender, or a wait before the launch ends.
TEST(Missing, OrdersNameTheSignalItsSendersAndWhoRunsAhead) {
  const ProofResult r = prove(of_two_senders());
  const Missing& m = only_missing(r);
  expect_words(m.where, {"missing_test.cc:"});
  expect_words(m.expression, {"signal 'counted'[0] of rank 0", "notified by ranks 1, 2",
                              "rank 1 may end a launch", "2 kinds of launches (m = 1; m = 0)",
                              "differ at ", "missing_test.cc:"});
}

TEST(Missing, OrdersNameHowManyKindsAreTooMany) {
  const ProofResult r = prove(of_many_kinds(), {.promises = false});
  expect_words(only_missing(r).expression, {"61 kinds of launches (m = 60; ", "the 2048 that"});
}

TEST(Missing, TablesNameTheLineThatGoesByThem) {
  const ProofResult r = prove(written_by_table());
  expect_words(only_missing(r).where, {"missing_test.cc:"});
}

TEST(Missing, SlotsNameTheirBuffer) {
  const ProofResult r = prove(with_slots(100'000));
  expect_words(only_missing(r).where, {"missing_test.cc:"});
}

}  // namespace
}  // namespace stretto::missing_test
