// A kernel that computes an index in 32 bits where it needs more reads and writes elsewhere,
// without a word, while CPU ranks and the proof have it right.
#include "stretto/codegen/index_width.h"

#include <gtest/gtest.h>

#include "stretto/base/errors.h"
#include "stretto/lang/program_builder.h"
#include "stretto/passes/pipeline.h"

namespace stretto::index_width_test {
namespace {

// y[t] = x[row(t)], tables and all.
Program picks(std::int64_t rows, std::int64_t tiles, std::int64_t entries,
              const std::function<Index(const Index& tile, const Index& entry)>& row) {
  ProgramBuilder p("picks", 2);
  auto x = p.input("x", DType::kI32, {rows, 1});
  auto table = p.table("t", {4}, {ContractKind::kRange, 0, entries});
  auto y = p.output("y", DType::kI32, {tiles, 1});
  p.role("pick", Resource::sms(1), p.range(tiles), [&](const Tile& t) {
    Index entry = p.let("entry", p.read(table, {t.index % 4}));
    p.store(y.tile({t.index, 0}, 1, 1), p.load(x.tile({row(t.index, entry), 0}, 1, 1)));
  });
  return run_pipeline(p.finish());
}

TEST(IndexWidth, WhatFits32BitsIsTaken) {
  constexpr std::int64_t kMost = (std::int64_t{1} << 31) - 1;
  refuse_wide_indices(picks(kMost, 8, 9, [](const Index& t, const Index& e) { return t + e; }));
  refuse_wide_indices(picks(8, 8, 9, [](const Index& t, const Index&) { return kMost / 7 * t; }));
}

TEST(IndexWidth, MoreIsRefusedWithItsLine) {
  constexpr std::int64_t kBig = std::int64_t{1} << 31;
  auto refused = [](const Program& program) {
    try {
      refuse_wide_indices(program);
    } catch (const UserError& e) {
      return std::string(e.what()).find("index_width_test.cc:") != std::string::npos;
    }
    return false;
  };
  EXPECT_TRUE(refused(picks(kBig, 8, 9, [](const Index& t, const Index&) { return t; })));
  EXPECT_TRUE(refused(picks(8, 8, 9, [](const Index& t, const Index&) { return t * kBig; })));
  EXPECT_TRUE(refused(picks(8, 8, 9, [](const Index& t, const Index&) { return t * kBig / kBig; })))
      << "a part of it";
  EXPECT_TRUE(refused(picks(8, 8, kBig, [](const Index&, const Index& e) { return e * 2; })))
      << "an entry of a table";
}

}  // namespace
}  // namespace stretto::index_width_test
