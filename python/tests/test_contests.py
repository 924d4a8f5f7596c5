"""The scripts that time the package beside PyTorch on one GPU (bench/gpu/torch_turns.py), small and on the CPU: what
would be lost is a measurement of something wrong, or a run that one case ends."""

import importlib
import json
import os
import subprocess
import sys

import pytest

from stretto import testing

torch = pytest.importorskip("torch")


@pytest.fixture(name="scripts")
def _scripts(root, monkeypatch):
    """Imports a module of bench/gpu."""
    monkeypatch.syspath_prepend(str(root / "bench" / "gpu"))
    return importlib.import_module


def run(root, name, out):
    script = root / "bench" / "gpu" / f"{name}_pair.py"
    done = subprocess.run(
        [sys.executable, str(script), "--samples", "2", "-o", str(out)],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(out.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "name, rows",
    [
        ("experts", {"grouped": {"ours", "masked", "fp8", "grouped_mm"},
                     "routing": {"ours", "pytorch", "ours_tables", "pytorch_tables"}}),
        ("sequences", {"packed": {"ours"}, "paged": {"decode", "attention", "flash2"}}),
    ],
)  # fmt: skip
def test_small_cases(root, tmp_path, name, rows):
    result = run(root, name, tmp_path / f"gpu-{name}-pair-2026-01-02.json")
    for field, names in rows.items():
        assert result[field]
        for row in result[field]:
            assert set(row["graph"]) == names, row["refused"]
            for samples in row["graph"].values():
                assert len(samples) == 2 and min(samples) > 0
            assert "error" not in row
    tables = subprocess.run(  # times of a CPU are none of a GPU
        [
            sys.executable,
            str(root / "bench" / "gpu" / "tables.py"),
            "--results",
            str(tmp_path),
            "--print",
            "scoreboard",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert tables.returncode == 2 and "simulated" in tables.stderr


def test_what_is_wrong_is_not_timed(scripts):
    turns = scripts("torch_turns")
    x = torch.arange(1.0, 9.0)
    calls = {
        "right": lambda: x * 2,
        "wrong": lambda: x * 2 + (x == 8),
        "unwritten": lambda: torch.full_like(x, float("nan")),
        "broken": lambda: x @ x[1:],
    }
    row = turns.contest(
        {name: [call, call] for name, call in calls.items()},
        lambda _, got: turns.relative_error(got, 2 * x),
        {"": 0.01},
        samples=3,
        warmup_s=0.0,
    )
    assert list(row["graph"]) == ["right"] and len(row["graph"]["right"]) == 3
    assert set(row["refused"]) == {"wrong", "unwritten", "broken"}


def wrong_products(case):
    """Of each contestant: its error, and that of a result of which one row is wrong."""
    for name, calls in case.calls().items():
        if name == "scaled_grouped_mm":  # not on CPUs
            continue
        got = calls[0]().clone()
        right, rows = case.error(name, got), got.flatten(0, -2)
        rows[rows.isfinite().all(1).nonzero()[3]] *= 1.05
        yield right, case.error(name, got)


def wrong_routing(case):
    """Of experts of which one is another, and of tables of which one has an entry that is another's."""
    weights, experts = case.ours(*case.sets[0])
    other = (experts + (torch.arange(case.m) == 5)[:, None]) % case.experts
    yield case.error("ours", (weights, experts)), case.error("ours", (weights, other))
    tables = tuple(case.ours_tables(*case.sets[0]))
    right = case.error("ours_tables", tables)
    for at in range(1, 4):
        wrong = [x.clone() for x in tables]
        entries = wrong[at].view(-1)
        entries[1] = entries[2] + (at == 2)
        yield right, case.error("ours_tables", tuple(wrong))


def wrong_attention(case, name):
    got = case.calls()[name][0]().clone()
    right = case.error(name, got)
    got[1] = got[0]
    yield right, case.error(name, got)


def test_errors_of_cases(scripts):
    """One row, expert or sequence that is wrong shows."""
    experts, sequences = scripts("experts_pair"), scripts("sequences_pair")

    def both():
        packed, paged = sequences.Packed([5, 1, 40], 4, 2), sequences.Decoded(2, 128, 4, 2)
        return [
            *wrong_products(experts.Grouped(4, 2, 33, 64, 192)),
            *wrong_routing(experts.Routed(8, 2, 33, 64)),
            *wrong_attention(packed, "ours"),
            *wrong_attention(paged, "decode"),
            *wrong_attention(paged, "attention"),
        ]

    (errors,) = testing.run(1, both)
    assert len(errors) == 11
    for right, wrong in errors:
        assert right < 0.02 < wrong, errors


def test_a_case_that_fails_ends_no_other(scripts, tmp_path):
    contests = scripts("contests")
    options = contests.parser_of_contest("", samples=2).parse_args(
        ["-o", str(tmp_path / "rows.json")]
    )
    writer = contests.RowWriter(options, {})

    class Case:
        """Doubles."""

        def calls(self):
            return {"ours": [lambda: 3], "cudnn": [lambda: 2]}

        def error(self, _, got):
            return abs(got - 2) / 2

    def no_memory():
        raise MemoryError("no memory")

    for make in (no_memory, Case):
        writer.add("rows", "made", {"m": 1}, make, {"": 0.01}, 0.0, str)
    rows = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))["rows"]
    assert rows[0] == {"m": 1, "error": "MemoryError: no memory"}
    assert "ours: off by 0.5" in rows[1]["error"] and list(rows[1]["graph"]) == ["cudnn"]
    assert writer.status() == 1


def on_two_ranks(root, script, *arguments):
    """A script of bench/gpu on CPU ranks of torchrun."""
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         str(root / "bench" / "gpu" / script), *arguments],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip


def test_where_the_hosts_time_goes(root, tmp_path):
    """Phases of a call add up to what it takes, and name what it does."""
    out = tmp_path / "host.json"
    done = on_two_ranks(root, "host_profile_rank.py", "--over", "0", "--only", "send_recv", "--python", "-o", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(out.read_text(encoding="utf-8"))["calls"]
    assert "error" not in row and len(row["ranks"]) == 2 and len(row["python"]) > 3
    for rank in row["ranks"]:
        phases = rank["phases"]
        assert sum(us for _, us in phases.values()) == pytest.approx(rank["measured_us"])
        assert phases["plan: arguments read"][0] == phases["plan: steps"][0] == 1
        assert phases["meeting of the hosts"][0] >= 1 and min(us for _, us in phases.values()) > 0
    assert "batch_send_recv" in done.stdout and "meeting of the hosts" in done.stdout


def test_what_a_user_meets(root, tmp_path):
    """Every part of user_rank.py on two CPU ranks, and its tables."""
    shapes, out = tmp_path / "shapes.json", tmp_path / "gpu-user-x2-2026-01-02.json"
    layers = [{"op": op, "m": 8, "n": 16, "k": 32, "layer": "of none"} for op in ("ag_gemm", "gemm_rs", "gemm_ar")]
    shapes.write_text(json.dumps(layers), encoding="utf-8")
    parts = "first,host,single,eager,steps,sizes,lot"
    done = on_two_ranks(root, "user_rank.py", "--parts", parts, "--shapes", str(shapes), "-o", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(out.read_text(encoding="utf-8"))
    for field in ("calls", "steps", "sizes", "lot"):
        assert result[field] and not [row for row in result[field] if "error" in row], field
    for table in ("user-calls", "user-steps", "user-sizes", "user-lot", "user-lot-shapes"):
        made = subprocess.run(  # times of a CPU are none of a GPU
            [sys.executable, str(root / "bench" / "gpu" / "tables.py"), "--results", str(tmp_path),
             "--print", table + "-x2"],
            capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        assert made.stdout.count("\n") > 3, table


@pytest.mark.parametrize("part, field", [("warmed", "calls_warmed"), ("proofs", "proofs")])
def test_first_calls_that_begin_with_nothing(root, tmp_path, part, field):
    out, names = tmp_path / "made.json", ("all_reduce of 2 bytes", "matmul_all_gather", "moe_layer", "send and recv")
    done = on_two_ranks(root, "user_rank.py", "--parts", part, "--only", "|".join(names), "-o", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(out.read_text(encoding="utf-8"))
    rows = {row["call"]: row for row in result[field]}
    assert set(names) <= set(rows) and not [row for row in rows.values() if "error" in row]
    assert all(row["first_s"] >= 0 for row in rows.values())
    if part == "proofs":
        assert all(row["rank_s"] > 0 and row["prove_s"] > 0 for row in (rows[name] for name in names))
