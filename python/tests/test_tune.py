"""stretto.tune: which way a product runs is measured, kept and used from then on."""

import numpy as np
import pytest

import stretto
from stretto import testing
from test_simulated_gpus import test_on_simulated_gpus as run_on_simulated_gpus

# In a world of two simulated GPUs, twice in one process, then in another one with the same cache.
TUNED = """
kind.gpu_name = staticmethod(lambda x: "GPU of this test")
_group.Group._add_plan = add_plan
stretto._tune._MOST_SETS, stretto._tune._MS_OF_SAMPLES = 2, 0  # simulated launches take long
plans = stretto._world.group_of().plans
plans.take_numpy_for(device, stream(0))
rng = np.random.default_rng(11)  # the same on both ranks

def half(*shape):
    alive.append(rng.integers(-2, 3, shape).astype(np.float16))
    return alive[-1]

m, n, k = 48, 128, 64
a, b = half(2, m, k), half(2, k, n)
rows = half(2, m // 2, k)
outs = [np.zeros(shape, np.float16) for shape in ((m, n), (m // 2, n), (m, n))]
alive += outs
whole = sum(x.astype(np.float32) @ w.astype(np.float32) for x, w in zip(a, b))
gathered = np.concatenate(rows).astype(np.float32)
wants = [
    gathered @ b[r].astype(np.float32),
    np.split(whole, 2)[r],
    whole,
]

def calls():
    stretto.all_gather_matmul(rows[r], b[r], out=outs[0])
    stretto.matmul_reduce_scatter(a[r], b[r], out=outs[1])
    stretto.matmul_all_reduce(a[r], b[r], out=outs[2])

def check():
    synchronize()
    for i, (out, want) in enumerate(zip(outs, wants)):
        assert np.abs(out - want).max() <= 0.01 * np.abs(want).max(), i
        out[:] = np.nan

def launched():
    # The configs of the launches that calls come to.
    names = {}
    for (sms, key), (config, _) in _group._programs.items():
        names[key[0]] = config
    return names

for _ in range(3):
    calls()  # as predicted, and as plans
    check()
predicted = launched()
seen = []
found = stretto.tune(calls, most_fused=1, progress=seen.append)
check()
ops = ["all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce"]
assert [t.call.partition("(")[0] for t in found] == ops and seen == found, found
for t, op in zip(found, ("ag_gemm", "gemm_rs", "gemm_ar")):
    assert 2 <= len(t.measured) <= 3 and t.predicted == predicted[op] and t.predicted in t.measured, t
    assert "sequence" in t.measured, t
    assert all(ms > 0 for ms in t.measured.values()) and t.ms == t.measured[t.config], t
    assert launched()[op] == t.config
for _ in range(4):  # and as plans and graphs
    calls()
    check()
# The last that is timed wins: another one than predicted, which a later process takes.
contest = stretto._core.contest
stretto._core.contest = lambda *given: (contest(*given)[0], True)
(t,) = stretto.tune(lambda: stretto.matmul_all_reduce(a[r], b[r], out=outs[2]), most_fused=1)
assert t.config == list(t.measured)[-1] != t.predicted == predicted["gemm_ar"], t
if r == 0:
    pathlib.Path(os.environ["GATES"], "wanted").write_text(t.config)
"""

LATER = """
kind.gpu_name = staticmethod(lambda x: "GPU of this test")
a, b = np.ones((48, 64), np.float16), np.ones((64, 128), np.float16)
alive += [a, b]
y = stretto.matmul_all_reduce(a, b)
alive.append(y)
synchronize()
assert (y == 128).all()
made = [config for (_, key), (config, _) in _group._programs.items()]
assert made == [pathlib.Path(os.environ["GATES"], "wanted").read_text()], made
"""


def test_measured_once_and_kept(root, tmp_path, monkeypatch):
    monkeypatch.setenv("STRETTO_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("STRETTO_SIMULATED_SMS", "16")
    run_on_simulated_gpus(TUNED, root, tmp_path)
    run_on_simulated_gpus(LATER, root, tmp_path)


def test_nothing_is_measured_on_cpus():
    def body():
        a, b = np.ones((4, 8), np.float32), np.ones((8, 6), np.float32)
        made = []
        found = stretto.tune(lambda: made.append(stretto.matmul_all_reduce(a, b)))
        assert found == [] and (made[0] == 16).all()
        with pytest.raises(stretto.UserError, match="most_fused"):
            stretto.tune(lambda: None, most_fused="many")
        with pytest.raises(ZeroDivisionError):
            stretto.tune(lambda: 1 / 0)
        assert (stretto.matmul_all_reduce(a, b) == 16).all()

    testing.run(2, body)


def test_needs_a_world():
    with pytest.raises(stretto.UserError, match="init"):
        stretto.tune(lambda: None)
