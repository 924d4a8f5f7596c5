// Consumers that take turns at one ring of slots, as kernels have them.
#include "stretto/codegen/shared_rings.h"

#include <gtest/gtest.h>

#include "stretto/base/errors.h"
#include "stretto/codegen/kernel_testing.h"
#include "stretto/lang/program_builder.h"

namespace stretto::shared_rings_test {
namespace {

// Tiles whose rows may be none at run time have no product, and take no slots.
Program products() {
  ProgramBuilder p("products", 1);
  Index m = p.extent("m", 512);
  auto a = p.input("a", DType::kBF16, {512, 256});
  auto b = p.input("b", DType::kBF16, {256, 256});
  auto c = p.output("c", DType::kBF16, {512, 256});
  p.role("multiply", Resource::sms(3).pipelined(5).ping_pong(2), p.grid(c, 128, 64),
         [&](const Tile& t) {
           p.when(t.row < m, [&] {
             Value acc = p.zeros(DType::kF32, 128, 64);
             p.loop(4, [&](const Index& i) {
               acc = dot(acc, p.load(a.tile({t.row, i * 64}, 128, 64)),
                         p.load(b.tile({t.col, i * 64}, 64, 64)).T());
             });
             p.store(c.tile({t.row, t.col}, 128, 64), cast(acc, DType::kBF16));
           });
         });
  return p.finish();
}

Role& role_of(Program& schedule) { return schedule.roles[0]; }

TEST(SharedRings, EachConsumerBeginsWhereTheOneBeforeHasCome) {
  std::string text = generate(products()).source;
  expect_lines(text, {"auto& ring1 = ring0;  // the same slots",
                      "// consumer_0",
                      "mbarrier_wait_acquire_cta(&turn0[0], turns0 ^ 1);",
                      "freed0 = ring0 = Ring<5>::from(u32(place0[0]));",
                      "dot_async",
                      "if (team.tid == 0) place0[1] = ring0.place();",
                      "if (team.tid % 32 == 0) mbarrier_arrive_release_cta(&turn0[1]);",
                      "wgmma_wait<0>();",
                      "store_tma",
                      "} else {",  // no rows: the turn passes all the same
                      "if (team.tid == 0) place0[1] = ring0.place();",
                      "// consumer_1",
                      "mbarrier_wait_acquire_cta(&turn1[1], turns1);",
                      "if (team.tid == 0) place1[0] = ring1.place();"});
}

TEST(SharedRings, TurnsAreInTheOrderOfPuts) {
  Program schedule = run_pipeline(products());
  Role& role = role_of(schedule);
  ASSERT_EQ(role.pipes.size(), 4U);
  EXPECT_EQ(role.pipes[2].shares, 0);
  EXPECT_EQ(role.pipes[3].shares, 1);
  EXPECT_EQ(ring_turn(role, 0), (RingTurn{0, 2}));
  EXPECT_EQ(ring_turn(role, 3), (RingTurn{1, 2}));
  std::swap(role.agents[0].body[0], role.agents[0].body[1]);
  EXPECT_EQ(ring_turn(role, 0), (RingTurn{1, 2}));
}

TEST(SharedRings, FilledInNoOrderIsRefused) {
  Program schedule = run_pipeline(products());
  Role& role = role_of(schedule);
  Op& tiles = role.agents[0].body[0];
  const Block other = role.agents[0].body[1].bodies[0];
  tiles.bodies[0].insert(tiles.bodies[0].end(), other.begin(), other.end());
  EXPECT_EQ(ring_turn(role, 0), std::nullopt);
  try {
    generate_kernel(schedule);
    ADD_FAILURE() << "accepted";
  } catch (const UserError& e) {
    EXPECT_NE(std::string(e.what()).find("shares slots"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace stretto::shared_rings_test
