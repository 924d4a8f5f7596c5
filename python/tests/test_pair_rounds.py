"""Calls from Python beside C++ (bench/gpu/pytorch_pair_rank.py), small and on two CPU ranks, with a stand-in for
gpu_bench: what would be lost is a comparison of unlike things, or an interval of too few observations."""

import importlib
import json
import math
import statistics
import subprocess
import sys

import pytest

import stretto

torch = pytest.importorskip("torch")

GPU_BENCH = """#!{python}
import json, pathlib, shutil, sys
out, samples = (sys.argv[sys.argv.index(name) + 1] for name in ("-o", "--samples"))
files = [a for a in sys.argv if a.endswith(".ir")]
for file in files:
    shutil.copy(file, {folder!r})
with open({folder!r} + "/turns", "a") as turns:
    turns.write(" ".join(sys.argv[1:5]) + "\\n")
rows = [{{"file": f, "ms": [0.25] * int(samples)}} for f in files]
pathlib.Path(out).write_text(json.dumps({{"programs": rows}}))
"""


@pytest.fixture(name="scripts")
def _scripts(root, monkeypatch):
    """Imports a module of bench/gpu."""
    monkeypatch.syspath_prepend(str(root / "bench" / "gpu"))
    return importlib.import_module


def test_both_sides_in_rounds(root, tmp_path):
    gpu_bench, out = tmp_path / "gpu_bench", tmp_path / "gpu-pytorch-pair-x2-2026-01-02.json"
    gpu_bench.write_text(GPU_BENCH.format(python=sys.executable, folder=str(tmp_path)))
    gpu_bench.chmod(0o755)
    forms = "plain", "in_place", "symmetric"
    script = root / "bench" / "gpu" / "pytorch_pair_rank.py"
    options = "--divisor 64 --rounds 5 --samples 3 --forms".split() + [",".join(forms)]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    command += ["2", script, "--binary", gpu_bench, *options, "--only", " 1024", "-o", out]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(out.read_text(encoding="utf-8"))
    rows = result["pairs"]
    assert [row["op"] for row in rows] == ["ag_gemm", "gemm_rs", "gemm_ar"]
    assert len(result["rounds_s"]) == 5
    assert (tmp_path / "turns").read_text().split("\n")[:-1] == ["programs --ranks 2 --samples"] * 5
    for row in rows:
        for maker in ("cpp", *forms):
            samples = row["samples_ms"][maker]
            assert [len(ms) for ms in samples] == [3] * 5 and min(map(min, samples)) > 0
            assert row[maker + "_ms"] == [statistics.median(ms) for ms in samples]
        for form in forms:
            r = row["over_cpp"][form]
            assert r["low"] <= r["mean"] <= r["high"]
    programs = sorted(tmp_path.glob("*.ir"))
    assert len(programs) == 3
    for file in programs:
        assert "2 ranks" in repr(stretto.Program.parse(file.read_text(encoding="utf-8")))


def test_launches_of_a_round_are_one_observation(scripts):
    of_rounds = scripts("pytorch_pair_rank").of_rounds
    cpp, ours = [1.0, 1.1, 0.9, 1.05, 0.98], [1.02, 1.08, 0.95, 1.0, 1.03]
    once, often = ({"cpp": [[x] * n for x in cpp], "plain": [[x] * n for x in ours]} for n in (1, 50))
    assert of_rounds({}, once)["over_cpp"] == of_rounds({}, often)["over_cpp"]


def test_an_interval_holds_the_truth_as_often_as_it_says(scripts, rng, monkeypatch):
    rounds = scripts("torch_rounds")
    monkeypatch.setattr(rounds, "RESAMPLES", 800)
    for count in (5, 8):
        held = 0
        for _ in range(200):
            base = rng.normal(1.0, 0.2, count)
            over = base * [math.exp(x) for x in rng.normal(math.log(1.01), 0.02, count)]
            r = rounds.mean_ratio(list(over), list(base))
            held += r["low"] <= 1.01 <= r["high"]
        assert held > 200 * 0.85  # of 0.93 and 0.95; 0.85 is four standard errors off
    few = rounds.mean_ratio([2.0] * 4, [1.0] * 4)
    assert few == {"mean": pytest.approx(2.0), "low": None, "high": None}
