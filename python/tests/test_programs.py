"""Own programs from Python: C++ files and texts, proved before their first launch."""

import json
import os
import pathlib
import runpy
import subprocess
import sys

import numpy as np
import pytest

import stretto
from stretto import _core, testing


def test_programs_of_gpus_take_no_more_sms_than_are_said():
    shape = {"ranks": 2, "m": 4096, "n": 4096, "k": 512, "dtype": "bfloat16"}
    for sms in (114, 132):
        program = stretto.operator("ag_gemm", num_sms=sms, **shape)
        assert f"sms {sms}" in program.explain(), sms
        program._core.compile(bounds_only=True, num_sms=sms)
        assert program.explain() == stretto.explain("ag_gemm", num_sms=sms, **shape)
    with pytest.raises(stretto.Rejected):
        program._core.compile(bounds_only=True, num_sms=114)
    with pytest.raises(stretto.UserError, match="num_sms is 0, need 1 to 1024"):
        stretto.operator("gemm", num_sms=0)


def test_a_file_runs_on_ranks(root, rng):
    ring = stretto.load(root / "examples" / "03_ring_pass.cc")
    x = [rng.uniform(-1, 1, (16, 32)).astype(np.float32) for _ in range(3)]
    for got in testing.run(3, lambda: ring(x[stretto.rank()])):
        np.testing.assert_allclose(got, sum(x), rtol=1e-5, atol=1e-5)
    assert "proved" in ring.program(3).prove()


def test_a_file_is_told_its_sizes(root, rng):
    """One file serves every size; what it does with them is NumPy's product, bias and GELU."""
    scatter = stretto.load(root / "examples" / "05_gemm_scatter.cc")
    m, n, k = 70, 50, 33
    a = [rng.standard_normal((35, k)).astype(np.float32) for _ in range(2)]
    b, bias = (rng.standard_normal(s).astype(np.float32) for s in ((n, k), (1, n)))
    outs = testing.run(2, lambda: scatter.program(m=m, n=n, k=k)(a[stretto.rank()], b, bias))
    x = np.concatenate(a).astype(np.float64) @ b.T + bias
    want = x / (1 + np.exp(-1.5957691 * (x + 0.044715 * x**3)))
    np.testing.assert_allclose(np.concatenate(outs, axis=1), want, rtol=1e-4, atol=1e-4)
    assert scatter.program(4, m=64, target="cuda", dtype="bfloat16").world_size == 4
    with pytest.raises(stretto.UserError, match="has sizes of its own"):
        stretto.load(root / "examples" / "03_ring_pass.cc").program(2, m=8)


def test_outputs_of_some_ranks_are_none_elsewhere(rng):
    """Others give no memory and get no array, however the program is called."""
    reduce = stretto.operator("reduce", ranks=2, m=24, n=32, dtype="float32")
    x = [rng.standard_normal((24, 32)).astype(np.float32) for _ in range(2)]
    out = np.full((24, 32), np.nan, np.float32)

    def run():
        rank = stretto.rank()
        made = reduce(x[rank])
        given = reduce(x[rank], out if made is not None else None)
        with pytest.raises(stretto.UserError, match="is not one of rank|overlap|float32"):
            reduce(x[rank], x[rank] if made is None else x[rank][:1])
        return made, given

    results = testing.run(2, run)
    roots = [rank for rank, (made, _) in enumerate(results) if made is not None]
    assert len(roots) == 1 and results[1 - roots[0]] == (None, None)
    for got in (*results[roots[0]], out):
        np.testing.assert_array_equal(got, x[0] + x[1])


def test_the_example_that_compares_with_numpy(root):
    runpy.run_path(str(root / "examples" / "compare.py"), run_name="__main__")


def test_a_text_runs_and_round_trips(root):
    ring = stretto.load(root / "examples" / "03_ring_pass.cc").program(1)
    again = stretto.Program.parse(str(ring))
    assert str(again) == str(ring) and again.world_size == 1
    x = np.ones((16, 32), np.float32)
    out = np.empty_like(x)
    (got,) = testing.run(1, lambda: again(x, out))
    assert got is out
    np.testing.assert_array_equal(out, x)


def test_what_is_not_complete_is_launched_for_a_reason_only(root):
    program = stretto.load(root / "tests" / "data" / "not_complete.cc").program(2)
    assert program.prove().startswith("not complete: ") and "not shown: tables" in program.prove()
    which = np.ones(1, np.int32)

    def body():
        for _ in range(2):
            with pytest.raises(stretto.NotComplete, match="not shown: tables.*not_complete.cc:11") as refused:
                program(which)
        assert "waive_proof" in str(refused.value)
        for given in ("entries are 0 or 1", "and I have looked"):
            np.testing.assert_array_equal(program.waive_proof(given)(which), np.full((1, 8), 3))
        with pytest.raises(stretto.NotComplete):
            program(which)  # the waiver is the other's

    testing.run(2, body)
    for why in ("", "  ", None, 3):
        with pytest.raises(stretto.UserError, match="waive_proof"):
            program.waive_proof(why)


def test_a_waiver_does_not_make_right_what_is_wrong(root):
    text = str(stretto.load(root / "examples" / "03_ring_pass.cc").program(2))
    lines = [line for line in text.splitlines() if "wait" not in line or "arrived" not in line]
    broken = stretto.Program.parse("\n".join(lines) + "\n").waive_proof("it looks right")

    def body():
        with pytest.raises(stretto.Rejected, match="hop"):
            broken(np.ones((16, 32), np.float32))

    testing.run(2, body)


def test_a_racy_program_is_rejected_with_the_report(root):
    text = str(stretto.load(root / "examples" / "03_ring_pass.cc").program(2))
    lines = [line for line in text.splitlines() if "wait" not in line or "arrived" not in line]
    broken = stretto.Program.parse("\n".join(lines) + "\n")
    with pytest.raises(stretto.Rejected, match="hop"):
        broken.prove()
    x = np.ones((16, 32), np.float32)

    def body():
        with pytest.raises(stretto.Rejected, match="hop"):
            broken(x)
        return stretto.all_reduce(x)

    for got in testing.run(2, body):
        np.testing.assert_array_equal(got, 2 * x)


@pytest.mark.parametrize(
    "given, said",
    [
        ({"m": 4}, "all_reduce: 'n' is missing"),
        ({"m": 4, "n": 8, "columns": 8}, "all_reduce: there is no 'columns'"),
        ({"m": 4, "n": 0.5}, r"all_reduce: 'n' cannot be 0\.5"),
    ],
)
def test_the_fields_of_a_program_are_named_where_they_do_not_fit(given, said):
    with pytest.raises(stretto.InternalError, match=said):
        _core.all_reduce(0, world_size=1, dtype="float32", reduction="sum", **given)


def test_what_is_proved_for_one_size_has_no_other():
    stretto.init()
    try:
        group = stretto._world.group_of()
        program = _core.all_reduce(
            False, world_size=1, dtype="float32", reduction="sum", m=4, n=8
        )
        for bounds_only in (False, True):
            compiled = program.compile(bounds_only=bounds_only)
            staged = [False] * len(program.tensors)
            executable = _core.Executable.make(
                group.session, 0, compiled, staged, False, records=False, said=""
            )
            x, out = np.ones((4, 8), np.float32), np.zeros((4, 8), np.float32)
            addresses = [{"in": x, "out": out}[t[0]].ctypes.data for t in program.tensors]
            executable.launch(*addresses, extents=[4])
            np.testing.assert_array_equal(out, x)
            if bounds_only:
                with pytest.raises(stretto.UserError, match="proved for"):
                    executable.launch(*addresses, extents=[3])
            else:
                executable.launch(*addresses, extents=[3])
    finally:
        stretto.finalize()


@pytest.mark.parametrize(
    "shape, message",
    [
        ({"ranks": 0}, "ranks is 0, need 1 to 64"),
        ({"ranks": 65}, "ranks is 65, need 1 to 64"),
        ({"m": -1}, "m is -1"),
        ({"m": 64, "n": 64, "k": -3}, "k is -3"),
        ({"target": "gpu"}, "target 'gpu'"),
    ],
)
def test_shapes_that_no_operator_has(shape, message):
    for name in ("ag_gemm", "all_reduce_one_shot", "moe_layer"):
        with pytest.raises(stretto.UserError, match=message):
            stretto.explain(name, **shape)


def test_wrong_arguments(root):
    ring = stretto.load(root / "examples" / "03_ring_pass.cc")

    def body():
        for arrays, message in (
            ((), "0 arrays given"),
            ((np.ones((16, 32)),), "float64"),
            ((np.ones((16, 31), np.float32),), "\\(16, 31\\)"),
            ((np.ones((16, 64), np.float32)[:, ::2],), "dense"),
        ):
            with pytest.raises(stretto.UserError, match=message):
                ring(*arrays)
        with pytest.raises(stretto.UserError, match="written for 2 ranks"):
            ring.program(2)(np.ones((16, 32), np.float32))

    testing.run(1, body)


@pytest.mark.parametrize("text", [5, None, b"program p", pathlib.Path("p.ir")])
def test_what_is_no_text_is_no_program(text):
    with pytest.raises(stretto.UserError, match="need a program's text"):
        stretto.Program.parse(text)


def test_compiler_messages_reach_the_user(tmp_path):
    file = tmp_path / "bad.cc"
    file.write_text("int x = ;\n")
    with pytest.raises(stretto.UserError, match="does not compile"):
        stretto.load(file)


def test_explain_prove_predict():
    assert "ag_gemm" in stretto.explain("ag_gemm", ranks=2, m=64, n=64, k=64)
    assert "agent" in stretto.explain(
        "ag_gemm", ranks=2, m=256, n=256, k=256, dtype="bfloat16", emit="schedule-ir"
    )
    assert "proved" in stretto.prove("all_gather", ranks=2, m=64, n=64, target="cpu")
    p = stretto.predict("ag_gemm", "h200x2", ranks=2, m=4096, n=4096, k=4096, dtype="bfloat16")
    assert 0 < p["exposed_comm_ms"] < p["time_ms"]
    assert p["floors_ms"]["tensor"] < p["time_ms"]


def test_trace(tmp_path):
    x = np.ones((4, 4), np.float32)
    path = tmp_path / "trace.json"

    def body():
        with stretto.trace(path):
            stretto.all_reduce(x)

    testing.run(1, body)
    events = json.loads(path.read_text())["traceEvents"]
    assert any(e.get("ph") == "X" for e in events)


def test_few_rows_are_gathered_first():
    shape = {"ranks": 2, "m": 64, "n": 28672, "k": 4096, "dtype": "bfloat16"}
    choice = stretto.choose("ag_gemm", "h200x2", **shape)
    assert choice.config == "sequence of all_gather and gemm"
    assert [p.name for p in choice.programs] == ["all_gather", "gemm"]
    p = stretto.predict("ag_gemm", "h200x2", chosen=True, **shape)
    assert p["config"] == choice.config
    assert 0 < p["time_ms"] < stretto.predict("ag_gemm", "h200x2", **shape)["time_ms"]
    text = stretto.explain("ag_gemm", chosen=True, **shape)
    assert text.startswith("# sequence of all_gather and gemm, predicted")
    with pytest.raises(stretto.UserError, match="by name"):
        stretto.explain(choice.programs[0], chosen=True)


def test_what_a_program_does_not_have_is_refused():
    program = stretto.operator("all_gather", ranks=1, m=4096, n=1024)
    few = stretto.predict(program, "h200x1", m=1)["time_ms"]
    assert few == program.predict("h200x1", m=1)["time_ms"]
    assert few < stretto.predict(program, "h200x1")["time_ms"]
    for call, named in (
        (lambda: stretto.predict(program, "h200x1", rows=1), "'rows'"),
        (lambda: stretto.explain(program, bogus=4), "'bogus'"),
        (lambda: stretto.prove(program, ranks=2), "'ranks'"),
        (lambda: stretto.explain("gemm", bogus=4), "'bogus'"),
        (lambda: stretto.explain("ag_gemm", chosen=True, bogus=4), "'bogus'"),
    ):
        with pytest.raises(stretto.UserError, match=named):
            call()


def test_sizes_of_a_file_with_a_shape_of_its_own(root):
    file = stretto.load(root / "examples/02_ag_gemm.cc")
    with pytest.raises(stretto.UserError):
        stretto.predict(file, "h200x2", m=128, n=64, k=64)
    with pytest.raises(stretto.UserError, match="has sizes of its own"):
        stretto.explain(file, rows=3)


def test_results_over_other_arrays_are_refused(rng):
    program = stretto.operator("gemm", ranks=1, m=64, n=64, k=64, target="cpu")
    a, b = (rng.random((64, 64), np.float32) for _ in range(2))

    def body():
        got = program(a, b, np.empty((64, 64), np.float32))
        memory = np.empty(64 * 96, np.float32)
        x, out = memory[: 64 * 64].reshape(64, 64), memory[-64 * 64 :].reshape(64, 64)
        for given in ((a, b, a), (a, b, b), (x, b, out)):
            with pytest.raises(stretto.UserError, match="the arrays 'c' and '[ab]' overlap"):
                program(*given)
        return got

    np.testing.assert_allclose(testing.run(1, body)[0], a @ b.T, rtol=1e-4)


def test_a_compiled_file_that_was_cut_short_is_compiled_again(rng, root, tmp_path):
    """As a machine that stops may leave it."""
    code = f"import stretto; print(len(str(stretto.load({str(root / 'examples/03_ring_pass.cc')!r}).program(2))))"
    environment = {**os.environ, "STRETTO_CACHE_DIR": str(tmp_path)}

    def load():
        return subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=600, check=False
        )

    first = load()
    assert first.returncode == 0, first.stderr
    (kept,) = (tmp_path / "programs").glob("*.so")
    whole = kept.read_bytes()
    for size in (0, int(rng.integers(1, len(whole)))):
        kept.write_bytes(whole[:size])
        again = load()
        assert (again.returncode, again.stdout) == (0, first.stdout), (size, again.stderr)
        assert kept.read_bytes() == whole
    kept.write_bytes(whole[:-100] + bytes(100))
    assert load().returncode == 0
    made = kept.stat().st_mtime_ns
    assert load().returncode == 0 and kept.stat().st_mtime_ns == made


SCALED = """#include "stretto/lang/program_builder.h"
#include "stretto/lang/program_shape.h"
stretto::Program stretto_program(const stretto::ProgramShape& shape) {
  using namespace stretto;
  ProgramBuilder p("scaled", shape.world_size);
  const std::int64_t tokens = shape.size("tokens", 6), heads = shape.size("heads", 4);
  Index first = p.scalar("first", tokens);
  FloatScalar alpha = p.float_scalar("alpha");
  TensorRef in = p.input("in", shape.dtype, {tokens, heads});
  TensorRef out = p.output("out", shape.dtype, {tokens, heads});
  p.role("scale", Resource::sms(1), p.grid(in, 4, 4), [&](const Tile& t) {
    Value v = cast(p.load(in.tile({t.row, t.col}, 4, 4)), DType::kF32);
    Value chosen = p.iota_rows(t.row, 4) >= p.splat(DType::kI32, first);
    p.store(out.tile({t.row, t.col}, 4, 4), cast(where(chosen, v * p.splat(alpha), v), shape.dtype));
  });
  return p.finish();
}
"""


def test_floats_of_a_launch_and_sizes_by_name(tmp_path, rng):
    (tmp_path / "scaled.cc").write_text(SCALED, encoding="utf-8")
    file = stretto.load(tmp_path / "scaled.cc")
    program = file.program(2, tokens=9, heads=np.int64(5))
    again = stretto.Program.parse(str(program))
    x = rng.standard_normal((9, 5)).astype(np.float32)

    def body():
        for scaled in (program, again):
            for alpha in (0.5, -3, np.float32(0.1), 1e-40, True, float("inf")):
                got = scaled(x, alpha=alpha, first=5)
                with np.errstate(invalid="ignore"):
                    want = np.where(np.arange(9)[:, None] >= 5, x * np.float32(alpha), x)
                np.testing.assert_array_equal(got, want, err_msg=f"{alpha}")
            np.testing.assert_array_equal(scaled(x, first=9), x)  # alpha: 0
            assert (scaled(x) == 0).all()  # first, too

    testing.run(2, body)
    assert program.predict("h200x2", alpha=0.25)["time_ms"] > 0
    assert "proved" in program.prove()
    assert file.program(1).explain().count("[6, 4]") >= 2
    assert file.program(1, tokens=0, heads=7).explain().count("[6, 7]") >= 2


def test_floats_and_sizes_that_do_not_fit(tmp_path):
    (tmp_path / "scaled.cc").write_text(SCALED, encoding="utf-8")
    file = stretto.load(tmp_path / "scaled.cc")
    program, x = file.program(1), np.ones((6, 4), np.float32)

    def body():
        for call, says in (
            (lambda: program(x, alpha="half"), "scaled: alpha is 'half', need a number"),
            (lambda: program(x, alpha="2"), "scaled: alpha is '2', need a number"),
            (lambda: program(x, alpha=10**400), "scaled: alpha is a whole number that no float holds"),
            (lambda: program(x, alpha=None), "scaled: alpha is None, need a number"),
            (lambda: program(x, alpha=1e39), "scaled: alpha is 1e.39, more than a float32 holds"),
            (lambda: program(x, first=0.5), "scaled: first is 0.5, need a whole number"),
            (lambda: program(x, first=7), "scaled: first is 7, need 0 to 6"),
            (lambda: program(x, beta=1), r"no run-time size or scalar 'beta'; it has \['first', 'alpha'\]"),
            (lambda: file.program(1, token=3), "no size 'token'; it has: heads, tokens"),
            (lambda: file.program(1, tokens=-3), "program: tokens is -3, need 0 or more"),
            (lambda: file.program(1, tokens=2.5), "program: tokens is 2.5, need a whole number"),
            (lambda: file.program(1, dtype=None), "program: dtype is None, need an element type"),
            (lambda: file.program(1.5), "program: world_size is 1.5, need a whole number"),
        ):
            with pytest.raises(stretto.UserError, match=says):
                call()

    testing.run(1, body)


def test_floats_that_differ_between_ranks(tmp_path):
    (tmp_path / "scaled.cc").write_text(SCALED, encoding="utf-8")
    program, x = stretto.load(tmp_path / "scaled.cc").program(2), np.ones((6, 4), np.float32)

    def body():
        program(x, alpha=2)
        with pytest.raises(stretto.UserError, match=r"alpha=0\.5\).*alpha=1\.5\)"):
            program(x, alpha=0.5 + stretto.rank())
        np.testing.assert_array_equal(program(x, alpha=2), 2 * x)

    testing.run(2, body)


def test_a_gradient_through_a_program_is_refused(root):
    torch = pytest.importorskip("torch")
    program = stretto.operator("all_gather", ranks=1, m=4, n=4, target="cpu")
    a, b = torch.ones(4, 4, requires_grad=True), torch.ones(4, 4)

    def body():
        for call, name in ((lambda: program(a), "in"), (lambda: program(b, a), "out")):
            says = f"^program all_gather: {name}: the tensor requires a gradient, and program all_gather has no"
            with pytest.raises(stretto.UserError, match=says) as caught:
                call()
            assert "operator " not in str(caught.value) and "out=" not in str(caught.value)
        with torch.no_grad():
            program(a)

    testing.run(1, body)


def _predicted_by_command(name: str, sizes: dict) -> float:
    command = pathlib.Path(__file__).parents[2] / "build" / "bin" / "stretto"
    if not command.exists():
        pytest.skip("build/bin/stretto is not there")
    named = [f"--{size}={value}" for size, value in sizes.items()]
    line = [command, "predict", name, "--machine=h200x2", *named, "--default-config", "--json"]
    ran = subprocess.run(line, check=False, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)["time_ms"]


@pytest.mark.parametrize("name", ["ag_gemm", "all_to_all_v", "ep_moe_layer", "moe_layer", "sorted_gemm_rs"])
def test_predicts_as_the_command_does(name):
    """Most of them have tables, which hold what those of a usual launch do."""
    sizes = {"ranks": 2, "m": 256, "n": 256, "dtype": "bfloat16"}
    ours = stretto.predict(name, "h200x2", **sizes)["time_ms"]
    assert ours == pytest.approx(_predicted_by_command(name, sizes), rel=1e-9)


def test_predicts_what_is_chosen_for_usual_tables():
    choice = stretto.choose("moe_layer", "h200x2", ranks=2, m=4096, n=4096, k=4096, dtype="bfloat16")
    times = [program.predict("h200x2")["time_ms"] for program in choice.programs]
    assert sum(times) == pytest.approx(choice.time_ms, rel=1e-6)
