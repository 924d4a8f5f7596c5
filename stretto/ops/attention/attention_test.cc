// What a user reads who asks attention for what it has not.
#include "stretto/ops/attention/attention.h"

#include <gtest/gtest.h>

#include "stretto/base/test_errors.h"

namespace stretto {
namespace {

TEST(Attention, RefusalsNameTheOperatorThatWasAskedFor) {
  AttentionDesc d{.head_dim = 3};
  expect_user_error([&] { rope(d, {}); }, {"rope: head_dim is 3, need an even number"});
  expect_user_error([&] { attention(d, {}); }, {"attention: head_dim is 3, need an even number"});
}

}  // namespace
}  // namespace stretto
