"""Fresh random inputs in every run; STRETTO_TEST_SEED repeats one."""

import os
import pathlib
import random
import secrets

import numpy
import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SEED = int(os.environ.get("STRETTO_TEST_SEED") or secrets.randbits(32))


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "drawn(one_of): ./check runs it for one commit of so many, and always with --long"
    )


def pytest_runtest_setup(item):
    marker = item.get_closest_marker("drawn")
    if marker is None or "STRETTO_TEST_SEED" not in os.environ or "STRETTO_SOAK" in os.environ:
        return
    if random.Random(f"{SEED} {item.name}").randrange(marker.args[0]) > 0:
        pytest.skip("deferred to --long")


def pytest_report_header():
    return f"STRETTO_TEST_SEED={SEED}"


@pytest.fixture
def rng():
    return numpy.random.default_rng(SEED)


@pytest.fixture
def root():
    return ROOT
