// What the tests of the GEMM family share: a fresh printed seed, and running a case under it.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <string>

#include "stretto/base/errors.h"
#include "stretto/base/test_seed.h"
#include "stretto/testing/harness/run_case.h"

namespace stretto {

// Proves the program; three launches with delays at random synchronisation points.
inline void expect_runs(const OpCase& c, std::uint64_t seed) {
  RunOptions options{
      .launches = 3, .seed = seed, .delay_probability = 0.02, .max_delay_us = 100, .waiver = {}};
  EXPECT_EQ(run_case(c, options), "") << c.config << "\nSTRETTO_TEST_SEED=" << seed;
}

// `make` must throw a UserError whose message contains `what`.
template <typename Make>
void expect_user_error(const Make& make, const std::string& what) {
  try {
    make();
    ADD_FAILURE() << "accepted, expected an error about: " << what;
  } catch (const UserError& e) {
    EXPECT_NE(std::string(e.what()).find(what), std::string::npos) << e.what();
  }
}

}  // namespace stretto
