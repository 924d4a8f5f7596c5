"""Which cases of a matrix ./check runs for its commit, as stretto/base/test_seed.h says it for tests in C++."""

import os
import random


def drawn_of(suite, cases, one_of):
    """One of so many exactly, rounded up, in their order; all without STRETTO_TEST_SEED, and with STRETTO_SOAK."""
    cases, seed = list(cases), os.environ.get("STRETTO_TEST_SEED")
    if seed is None or "STRETTO_SOAK" in os.environ:
        return cases
    count = -(-len(cases) // one_of)
    return [cases[i] for i in sorted(random.Random(f"{seed} {suite}").sample(range(len(cases)), count))]
