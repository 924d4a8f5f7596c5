// What a role asks for it has, or is told that it cannot. If these fail, a user times a kernel with
// fewer agents than the config says, and nothing tells.
#include <gtest/gtest.h>

#include "stretto/base/test_errors.h"
#include "stretto/lang/program_builder.h"
#include "stretto/passes/pipeline.h"

namespace stretto::refuse_test {
namespace {

// c = a * b^T, + y where `adds`.
Program product(const Resource& sms, std::int64_t rows, DType dtype = DType::kBF16,
                bool adds = false, std::int64_t step = 16) {
  constexpr std::int64_t kTiles = 3, kCols = 16, kSteps = 4;
  ProgramBuilder p("product", 1);
  Index m = p.extent("m", rows * kTiles);
  auto a = p.input("a", dtype, {m, step * kSteps});
  auto b = p.input("b", dtype, {kCols, step * kSteps});
  auto y = p.input("y", DType::kF32, {m, kCols});
  auto c = p.output("c", DType::kF32, {m, kCols});
  p.role("multiply", sms, p.grid(c, rows, kCols), [&](const Tile& t) {
    Value acc = p.zeros(DType::kF32, rows, kCols);
    p.loop(kSteps, [&](const Index& i) {
      acc = dot(acc, p.load(a.tile({t.row, i * step}, rows, step)),
                p.load(b.tile({0, i * step}, kCols, step)).T());
    });
    if (adds) acc = acc + p.load(y.tile({t.row, 0}, rows, kCols));
    p.store(c.tile({t.row, 0}, rows, kCols), acc);
  });
  return p.finish();
}

Resource sms() { return Resource::sms(2).pipelined(3); }

void expect_refused(const Program& program, const std::string& asked, const std::string& reason) {
  expect_user_error([&] { run_pipeline(program); },
                    {"product: role 'multiply'", "cannot have " + asked, reason,
                     "1 rank, %m <= ", "a ", "c f32[%m, 16]"});
}

TEST(Refuse, LoadsAheadOfNothing) {
  expect_refused(product(sms().loading_ahead(2), 8), "load_slots = 2", "it loads no matrix");
  EXPECT_EQ(
      run_pipeline(product(sms().loading_ahead(2), 8, DType::kBF16, true)).roles[0].pipes.size(),
      3u);
}

TEST(Refuse, SlotsOfWhatIsLoadedOnceATile) {
  expect_refused(product(sms().holding(1), 8), "tile_slots = 1", "loads once a tile");
  expect_refused(product(Resource::sms(2).holding(1), 8), "tile_slots = 1",
                 "only roles with stages");
}

TEST(Refuse, WarpgroupsApartWhereThereIsOne) {
  expect_refused(product(sms().staggered(2), 64), "stagger = 2", "several warpgroups");
  expect_refused(product(sms().staggered(1), 128, DType::kF32), "stagger = 1", "of 16 or 8 bits");
  expect_refused(product(sms().staggered(2), 128, DType::kBF16, false, 20), "stagger = 2",
                 "by matrix instructions");
  expect_refused(product(sms().staggered(2).ping_pong(2), 128), "stagger = 2",
                 "several warpgroups");
  expect_refused(product(sms().staggered(2).clustered(2), 128), "stagger = 2", "64 rows each");
  EXPECT_EQ(run_pipeline(product(sms().staggered(2), 128)).roles[0].agents.size(), 2u);
}

TEST(Refuse, AnOrderOfProductsThatNobodyShares) {
  for (ProductOrder order : {ProductOrder::kInTurn, ProductOrder::kAheadInTurn}) {
    expect_refused(product(sms().multiplying(order), 64), "products = ", "several warpgroups");
  }
  expect_refused(product(sms().multiplying(ProductOrder::kAheadInTurn), 128),
                 "products = ahead_in_turn", "its threads take further");
  run_pipeline(product(sms().multiplying(ProductOrder::kInTurn), 128));
}

}  // namespace
}  // namespace stretto::refuse_test
