// If these fail, a user's collective gives wrong numbers, or numbers that depend on the algorithm
// chosen.
#include "stretto/ops/collectives/collectives.h"

#include <gtest/gtest.h>

#include "stretto/base/errors.h"

namespace stretto {
namespace {

TEST(Collectives, BadDescNamesTheField) {
  CollectiveDesc d{.m = 4, .n = 0, .world_size = 2};
  try {
    all_gather(d, {});
    FAIL() << "accepted n = 0";
  } catch (const UserError& e) {
    EXPECT_NE(std::string(e.what()).find("n is 0"), std::string::npos) << e.what();
  }
  EXPECT_THROW(broadcast({.m = 1, .n = 1, .world_size = 2}, {}, 2), UserError);
}

TEST(Collectives, ReferenceOfAllReduceIsTheSum) {
  OpCase c =
      all_reduce_info(AllReduceKind::kOneShot).make_case({.world_size = 2, .m = 2, .n = 3}, 0);
  auto in = static_cast<std::size_t>(c.program.find_tensor("in"));
  auto out = static_cast<std::size_t>(c.program.find_tensor("out"));
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_DOUBLE_EQ(c.expected[1][out][i], c.inputs[0][in][i] + c.inputs[1][in][i]);
  }
}

}  // namespace
}  // namespace stretto
