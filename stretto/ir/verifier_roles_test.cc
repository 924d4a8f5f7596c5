// Roles that share blocks, loads ahead, columns of values. A user who loses this has a program
// accepted that no kernel can run: two roles that want the same threads, a worker without a block,
// a loader where nobody loads, columns that are not there.
#include <gtest/gtest.h>

#include <string>

#include "stretto/ir/printer.h"
#include "stretto/ir/verifier_testing.h"

namespace stretto::verifier_roles_test {
namespace {

// `text` with `to` in the place of `from`.
void expect_refused(const std::string& text, const std::string& from, const std::string& to,
                    const char* reason) {
  std::string changed = text;
  changed.replace(changed.find(from), from.size(), to);
  EXPECT_NE(verdict(changed).find(reason), std::string::npos) << to << "\n" << verdict(changed);
}

// Two roles share blocks: each worker of one has a worker of the other beside it.
TEST(VerifierRoles, OneBesideAnotherHasItsWorkers) {
  const std::string text = R"(program "beside" world 1 level tile {
rank %rank
tile %t
tile %u
input @in : i32[4, 8]
output @one : i32[4, 8]
output @other : i32[4, 8]
role host sms 2 tiles %t < 4 {
agent main body {
values $0: i32[1, 8]
$0 = load @in[%t, 0] tile [1, 8]
store $0 to @one[%t, 0] tile [1, 8]
}
}
role guest sms 2 beside host tiles %u < 4 {
agent main body {
values $0: i32[1, 8]
$0 = load @in[%u, 0] tile [1, 8]
store $0 to @other[%u, 0] tile [1, 8]
}
}
}
)";
  Program program = parse(text, "good.txt", MissingLocs::kFill);
  EXPECT_EQ(verdict(text), "accepted");
  EXPECT_EQ(program.roles[1].resource.beside, 0);
  EXPECT_EQ(parse(stretto::print(program), "again.txt").roles[1].resource.beside, 0);
  EXPECT_NE(stretto::print(program).find("role guest sms 2 beside host tiles"), std::string::npos);
  expect_refused(text, "sms 2 beside host", "sms 3 beside host", "has 3 workers and 'host'");
  expect_refused(text, "sms 2 beside host", "sms 2 stages 2 beside host", "neither stages");
  expect_refused(text, "sms 2 beside host", "sms 2 tickets beside host", "neither stages");
  expect_refused(text, "role host sms 2", "role host sms 2 cluster 2", "neither has clusters");
  expect_refused(text, "role host sms 2", "role host host 2", "need SMs");
  expect_refused(text, "sms 2 beside host", "copy_engine 2 beside host", "need SMs");
  expect_refused(text, "sms 2 beside host", "sms 2 beside guest", "not declared before it");
  std::size_t guest = text.find("role guest");
  std::string two = text.substr(0, text.size() - 2) + text.substr(guest);
  two.replace(two.rfind("role guest"), 10, "role third");
  EXPECT_NE(verdict(two).find("not the only one beside"), std::string::npos);
}

TEST(VerifierRoles, LoadsAheadNeedStagesAndColumnsLieInTheirValue) {
  const std::string text = R"(program "ahead" world 1 level tile {
rank %rank
tile %t
input @in : bf16[4, 8]
output @out : bf16[4, 4]
role r sms 2 stages 3 load_slots 2 tiles %t < 1 {
agent main body {
values $0: bf16[4, 8], $1: bf16[4, 4], $2: f32[4, 4]
$0 = load @in[0, 0] tile [4, 8]
$1 = columns $0 col 3
store $1 to @out[0, 0] tile [4, 4]
}
}
}
)";
  EXPECT_EQ(verdict(text), "accepted");
  Program program = parse(text, "good.txt", MissingLocs::kFill);
  EXPECT_EQ(program.roles[0].resource.load_slots, 2);
  EXPECT_EQ(stretto::print(parse(stretto::print(program), "again.txt")), stretto::print(program));
  expect_refused(text, "stages 3 load_slots 2", "load_slots 2", "only pipelined roles have them");
  expect_refused(text, "load_slots 2", "load_slots -1", "need 0 to");
  expect_refused(text, "$0 col 3", "$0 col 5", "columns asked for are none");
  expect_refused(text, "$0 col 3", "$0 col -1", "columns asked for are none");
  expect_refused(text, "$0 col 3", "$0 col %t", "columns asked for are none");
  expect_refused(text, "$0 col 3", "$1 col 0", "need not have been written");
  expect_refused(text, "$1 = columns", "$2 = columns", "the result is bf16[4, 4]");
}

}  // namespace
}  // namespace stretto::verifier_roles_test
