#include "stretto/ir/quota.h"

#include <gtest/gtest.h>

#include "stretto/base/errors.h"
#include "stretto/ir/parser.h"

namespace stretto::quota_test {
namespace {

constexpr const char* kHeader = R"(program "p" world 3 level schedule {
  rank %rank extent %m bound 16 tile %t loop %i let %x
  input @table : i32[4] contract range 0, 4
  signal s channels 2
)";

std::string error_of(const std::string& body) {
  try {
    count_quotas(parse(kHeader + body + "}", "q.txt", MissingLocs::kFill), {8});
  } catch (const UserError& e) {
    return e.what();
  }
  return "accepted";
}

// A wrong quota lets the second launch pass its waits early.
TEST(Quota, CountsEveryNotify) {
  std::string text = std::string(kHeader) + R"(
  on_start body { notify s[0] on (%rank + 1) % 3 by 5 }
  role r sms 2 tiles %t < 4 {
    agent main body {
      let %x = %t % 2
      loop %i from 0 to 3 {
        when %rank == 1 { notify s[%x] on %i by 1 } else { fence }
      }
    }
  }
  on_end body { when %rank == 2 { notify s[1] on 2 by %rank } }
})";
  Program program = parse(text, "q.txt");
  Quotas q = count_quotas(program, {8});
  ASSERT_EQ(q.size(), 1u);
  // Rank 1 notifies channels 0 and 1 of every rank twice each.
  EXPECT_EQ(q[0], (std::vector<std::vector<std::int64_t>>{{7, 2}, {7, 2}, {7, 4}}));
  EXPECT_EQ(only_notifier(program, 0, 0, 1), 1);
  EXPECT_EQ(only_notifier(program, 0, 0, 0), -1) << "ranks 1 and 2 do";
  EXPECT_EQ(only_notifier(program, 2, 0, 1), -1) << "ranks 1 and 2 do";
}

TEST(Quota, RefusesWhatWouldVaryOrMiss) {
  EXPECT_EQ(error_of("on_start body {\nlet %x = @table[0]\nwhen %x { notify s[0] on 0 by 1 } }"),
            "q.txt:7: a notify depends on a table, so its number per launch would vary");
  EXPECT_EQ(error_of("on_start body {\nnotify s[%rank + 1] on 0 by 1 }"),
            "q.txt:6: notify of 's': channel 2 of 2 on rank 1");
  EXPECT_EQ(error_of("on_start body {\nnotify s[0] on %rank + 1 by 1 }"),
            "q.txt:6: notify of 's': rank 3 of 3");
}

}  // namespace
}  // namespace stretto::quota_test
