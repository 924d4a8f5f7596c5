"""Fresh random inputs in every run; STRETTO_TEST_SEED repeats one."""

import os
import pathlib
import secrets

import numpy
import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SEED = int(os.environ.get("STRETTO_TEST_SEED") or secrets.randbits(32))


def pytest_report_header():
    return f"STRETTO_TEST_SEED={SEED}"


@pytest.fixture
def rng():
    return numpy.random.default_rng(SEED)


@pytest.fixture
def root():
    return ROOT
