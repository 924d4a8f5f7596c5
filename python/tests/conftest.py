"""Fresh random inputs in every run; STRETTO_TEST_SEED repeats one."""

import collections
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


def pytest_collection_modifyitems(items):
    """Of a file's cases that are drawn one of so many: exactly that share, rounded up."""
    if "STRETTO_TEST_SEED" not in os.environ or "STRETTO_SOAK" in os.environ:
        return
    groups = collections.defaultdict(list)
    for item in items:
        marker = item.get_closest_marker("drawn")
        if marker is not None:
            groups[item.path, marker.args[0]].append(item)
    for (_, one_of), group in groups.items():
        group.sort(key=lambda item: random.Random(f"{SEED} {item.name}").random())
        for item in group[-(-len(group) // one_of) :]:
            item.add_marker(pytest.mark.skip(reason="deferred to --long"))


def pytest_report_header():
    return f"STRETTO_TEST_SEED={SEED}"


@pytest.fixture
def rng():
    return numpy.random.default_rng(SEED)


@pytest.fixture
def root():
    return ROOT
