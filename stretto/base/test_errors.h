// For tests of refusals: a bad input must give a UserError (a table that breaks its contract in a
// launch a Fault) that is one clean line and names what is wrong.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/base/printable.h"

namespace stretto {

// Runs `action` and expects an E whose message holds every one of `parts`.
template <typename E>
void expect_error(const std::function<void()>& action, const std::vector<std::string>& parts) {
  try {
    action();
    ADD_FAILURE() << "accepted; wanted an error with "
                  << (parts.empty() ? "any text" : parts.front());
  } catch (const E& e) {
    std::string what = e.what();
    for (const std::string& part : parts) {
      EXPECT_NE(what.find(part), std::string::npos) << "missing '" << part << "' in: " << what;
    }
    EXPECT_LT(what.size(), 800u) << "the message is too long to read";
    EXPECT_EQ(what, printable(what, 10000)) << "the message is not one clean line";
  }
}

inline void expect_user_error(const std::function<void()>& action,
                              const std::vector<std::string>& parts) {
  expect_error<UserError>(action, parts);
}

inline void expect_fault(const std::function<void()>& action,
                         const std::vector<std::string>& parts) {
  expect_error<Fault>(action, parts);
}

}  // namespace stretto
