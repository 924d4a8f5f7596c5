// Which rows past a load's end nobody sees. If these fail, a sum has rows of another expert in it,
// or every product waits at a barrier until rows are zero that are thrown away.
#include "stretto/passes/unseen_rows.h"

#include <gtest/gtest.h>

#include <functional>

#include "stretto/lang/program_builder.h"

namespace stretto::unseen_rows_test {
namespace {

constexpr std::int64_t kRows = 16, kCols = 8;

// What is done with rows [row, row + kRows) of `a` in a loop over them, of which those from the
// table's entry on do not exist; `outside` is a value that outlives the loop's steps.
struct Parts {
  ProgramBuilder& p;
  TensorRef a, c;
  Index row, end;
  Value& outside;
  Value load() const { return p.load(a.tile({row, 0}, kRows, kCols).until_row(end)); }
  void store(const Value& v) const { p.store(c.tile({row, 0}, kRows, v.cols()).until_row(end), v); }
};

std::size_t num_unseen(const std::function<void(const Parts&)>& body) {
  ProgramBuilder p("sample", 1);
  auto ends = p.table("ends", {4}, {ContractKind::kRange, 0, 64});
  auto a = p.input("a", DType::kF32, {64, kCols});
  auto c = p.state("c", DType::kF32, {64, 64});
  p.role("work", Resource::sms(1), p.range(4), [&](const Tile& t) {
    Index end = p.read(ends, {t.index});
    Value outside = p.zeros(DType::kF32, kRows, kCols);
    p.loop(4, [&](const Index& i) {
      Index row = p.let("row", i * kRows);
      p.when(row < end, [&] { body({p, a, c, row, end, outside}); });
    });
  });
  Program program = p.finish();
  return loads_of_unseen_rows(program, program.roles[0].agents[0]).size();
}

Value square(const Parts& s) { return s.p.full(DType::kF32, kCols, kCols, 2); }

TEST(UnseenRows, AreThoseOfProductsThatAreStoredUpToTheSameEnd) {
  EXPECT_EQ(num_unseen([](const Parts& s) {
              Value sum = s.p.zeros(DType::kF32, kRows, kCols);
              s.p.loop(3, [&](const Index&) { sum = dot(sum, s.load(), square(s)); });
              s.store(exp(sum) * row_max(sum));
            }),
            1u);
}

TEST(UnseenRows, AreNotStoredFurther) {
  EXPECT_EQ(num_unseen([](const Parts& s) {
              s.p.store(s.c.tile({s.row, 0}, kRows, kCols), s.load());
            }),
            0u);
  EXPECT_EQ(num_unseen([](const Parts& s) {
              s.p.store(s.c.tile({s.row, 0}, kRows, kCols).until_row(s.end + 1), s.load());
            }),
            0u);
  EXPECT_EQ(num_unseen([](const Parts& s) {
              s.p.store(s.c.tile({s.row + 1, 0}, kRows, kCols).until_row(s.end), s.load());
            }),
            0u);
}

// As rows of a shard that are stored where the shard lies in the whole: the same number of them.
TEST(UnseenRows, MayBeStoredElsewhereUpToTheSameNumber) {
  auto moved = [](const Index& by, const Index& more) {
    return num_unseen([&](const Parts& s) {
      Index first = s.p.let("first", by.has_value() ? by : s.end * 3);
      s.p.store(s.c.tile({s.row + first, 0}, kRows, kCols).until_row(first + s.end + more),
                s.load());
    });
  };
  EXPECT_EQ(moved({}, 0), 1u);
  EXPECT_EQ(moved(7, 0), 1u);
  EXPECT_EQ(moved({}, 1), 0u);
  EXPECT_EQ(moved(7, -1), 0u);
  EXPECT_EQ(
      num_unseen([](const Parts& s) {  // twice as many
        s.p.store(s.c.tile({s.row, 0}, kRows, kCols).until_row(s.end + s.end - s.row), s.load());
      }),
      0u);
}

// Sums of the products of all ranks' columns, whose shards lie one after the other, are stored into
// a tensor that has as many rows as each shard.
TEST(UnseenRows, MayEndWithTheTensor) {
  auto gathered = [](const Index& more, const Index& rows_of_c, bool own_sums) {
    ProgramBuilder p("sample", 2);
    Index m = p.extent("m", 64);
    auto a = p.input("a", DType::kF32, {m * 2, kCols});
    auto c = p.output("c", DType::kF32, {rows_of_c.has_value() ? rows_of_c : m, kCols});
    p.role("work", Resource::sms(1), p.range(4), [&](const Tile& t) {
      Index row = p.let("row", t.index * kRows);
      Value right = p.full(DType::kF32, kCols, kCols, 2);
      Value sum = p.zeros(DType::kF32, kRows, kCols);
      auto store = [&] { p.store(c.tile({row, 0}, kRows, kCols), sum); };
      p.loop(2, [&](const Index& i) {
        Index shard = p.let("shard", (p.rank() + i) % 2);
        Slice rows = a.tile({shard * m + row, 0}, kRows, kCols).until_row(shard * m + m + more);
        sum = dot(sum, p.load(rows), right);
        if (own_sums) store();
      });
      if (!own_sums) store();
    });
    Program program = p.finish();
    return loads_of_unseen_rows(program, program.roles[0].agents[0]).size();
  };
  EXPECT_EQ(gathered(0, {}, false), 1u);
  EXPECT_EQ(gathered(0, {}, true), 1u);
  EXPECT_EQ(gathered(1, {}, false), 0u);
  EXPECT_EQ(gathered(-1, {}, false), 0u);
  EXPECT_EQ(gathered(0, 64, false), 0u);
}

TEST(UnseenRows, AreNotMixedWithOthers) {
  EXPECT_EQ(num_unseen([](const Parts& s) {  // keys of a product
              Value left = s.p.full(DType::kF32, kRows, kCols, 1);
              s.store(dot(s.p.zeros(DType::kF32, kRows, kRows), left, s.load().T()));
            }),
            0u);
  EXPECT_EQ(num_unseen([](const Parts& s) { s.store(s.load() * col_sum(s.load())); }), 1u);
}

// Where the rows are a product's columns.
TEST(UnseenRows, MayStandOnTheRightOfAProduct) {
  auto products = [](const Parts& s, bool turned) {
    Value left = s.p.full(DType::kF32, kCols, kCols, 2);
    Value sum = s.p.zeros(DType::kF32, kCols, kRows);
    s.p.loop(3, [&](const Index&) { sum = dot(sum, left, s.load().T()); });
    Value out = exp(sum) * col_max(sum);
    if (turned) s.store(out.T());
    if (!turned) s.p.store(s.c.tile({s.row, 0}, kCols, kRows).until_row(s.end), out);
  };
  EXPECT_EQ(num_unseen([&](const Parts& s) { products(s, true); }), 1u);
  EXPECT_EQ(num_unseen([&](const Parts& s) { products(s, false); }), 0u);
  EXPECT_EQ(num_unseen([&](const Parts& s) {  // a sum over them
              Value sum = dot(s.p.zeros(DType::kF32, kCols, kCols), s.load().T(), s.load());
              s.p.store(s.c.tile({0, 0}, kCols, kCols), sum);
            }),
            0u);
  EXPECT_EQ(num_unseen([&](const Parts& s) {  // of two loads one
              s.store((s.load().T() * row_sum(s.load().T())).T());
            }),
            1u);
}

// Rows past one step's end may exist in the next.
TEST(UnseenRows, DoNotOutliveTheStepWhoseEndItIs) {
  EXPECT_EQ(num_unseen([](const Parts& s) {
              s.outside = s.outside + s.load();
              s.store(s.outside);
            }),
            0u);
  EXPECT_EQ(num_unseen([](const Parts& s) {
              s.store(s.outside);
              s.outside = s.load() + s.load();
            }),
            0u);
}

}  // namespace
}  // namespace stretto::unseen_rows_test
