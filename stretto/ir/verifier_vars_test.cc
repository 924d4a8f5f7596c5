// Variables of index expressions.
#include <gtest/gtest.h>

#include <string>

#include "stretto/ir/verifier_testing.h"

namespace stretto::verifier_vars_test {
namespace {

// Of a second value some readers of the program would know: the executor, the proof and generated
// code do not meet it at the same time.
TEST(VerifierVars, AVariableHasOneLet) {
  constexpr const char* kProgram = R"(program "lets" world 1 level tile {
rank %rank
tile %t
loop %i
let %x
input @a : f32[1, 64]
output @out : f32[1, 16]
on_start on_start body {
}
role work sms 1 tiles %t < 1 {
agent body body {
values $0: f32[1, 16]
let %x = 1
)";
  constexpr const char* kRest = R"($0 = load @a[0, 0] tile [1, 16]
store $0 to @out[0, 0] tile [1, 16]
}
}
on_end on_end body {
}
}
)";
  auto with = [&](const std::string& ops) {
    return verdict(kProgram + ops + kRest);
  };
  EXPECT_EQ(with("loop %i from %x to 2 { }\n"), "accepted");
  for (const char* again : {"let %x = 2", "loop %i from 0 to 40 { let %x = %i }",
                            "when %rank == 0 { let %x = 7 }"}) {
    EXPECT_NE(with(again).find("'x' has its let already"), std::string::npos) << again;
  }
}

// Its bits are no number that an index could be made of.
TEST(VerifierVars, ASplatAloneReadsAFloat) {
  auto with = [](const std::string& declared, const std::string& ops) {
    return verdict("program \"floats\" world 1 level tile {\nrank %rank\n" + declared + R"(
tile %t
output @out : f32[1, 16]
on_start on_start body {
}
role work sms 1 tiles %t < 1 {
agent body body {
values $0: f32[1, 1], $1: f32[1, 16], $2: i32[1, 1]
)" + ops + R"(
$1 = broadcast $0
store $1 to @out[0, 0] tile [1, 16]
}
}
on_end on_end body {
}
}
)");
  };
  EXPECT_EQ(with("scalar %a f32", "$0 = splat %a"), "accepted");
  for (const char* wrong : {"$0 = splat %a + 1", "$0 = splat %a\nwhen %a == 0 { $0 = splat %a }",
                            "$0 = fill 0\nstore $0 to @out[0, %a] tile [1, 1]"}) {
    std::string says = with("scalar %a f32", wrong);
    EXPECT_NE(says.find("'a' is a float, which a splat alone reads"), std::string::npos) << says;
  }
  EXPECT_NE(with("scalar %a f32", "$0 = splat %a\n$2 = splat %a"), "accepted");
  EXPECT_NE(with("extent %a f32", "$0 = fill 0"), "accepted");
  EXPECT_NE(with("scalar %a f32 bound 9", "$0 = splat %a"), "accepted");
}

}  // namespace
}  // namespace stretto::verifier_vars_test
