"""The way of CuPy arrays up to the launch, where there is no GPU: a stand-in has what CupyKind asks of CuPy, over
memory of the host, and CPU ranks run the programs. CuPy itself: gpu_cupy.py."""

import sys
import types
import weakref

import numpy as np
import pytest

import stretto
from stretto import _arrays, _core, _group, testing

SIZE = 2


class Array:
    """As cupy.ndarray: no array of NumPy, and not read by its means."""

    __array_ufunc__ = None

    def __init__(self, host):
        self.host = host
        self.data = types.SimpleNamespace(ptr=host.__array_interface__["data"][0] if host.size else 0)
        self.device = types.SimpleNamespace(id=0)

    def __getattr__(self, name):
        if name in ("shape", "ndim", "size", "dtype", "strides", "flags"):
            return getattr(self.host, name)
        raise AttributeError(name)

    @property
    def T(self):  # pylint: disable=invalid-name
        return Array(self.host.T)

    def __getitem__(self, index):
        return Array(self.host[index])

    def __setitem__(self, index, value):
        self.host[index] = getattr(value, "host", value)

    def reshape(self, shape):
        return Array(self.host.reshape(shape))

    def copy(self):
        return Array(aligned(self.host))


def aligned(values):
    """A dense copy that begins where GPUs' allocators let arrays begin."""
    values = np.ascontiguousarray(values)
    raw = np.empty(values.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    made = raw[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    made[...] = values
    return made


class Context:
    def __init__(self, *_):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


@pytest.fixture
def cupy(monkeypatch):
    """The stand-in; `cupy.used`: the streams that launches were given."""
    module = types.ModuleType("cupy")
    stream = types.SimpleNamespace(ptr=7, is_capturing=lambda: False, synchronize=lambda: None)
    module.ndarray = Array
    module.empty = lambda shape, dtype: Array(aligned(np.empty(shape, dtype)))
    module.zeros = lambda shape, dtype: Array(aligned(np.zeros(shape, dtype)))
    module.array = lambda values, dtype: Array(aligned(np.array(values, dtype)))
    module.ascontiguousarray = lambda x: x if x.host.flags.c_contiguous else Array(aligned(x.host))
    module.swapaxes = lambda x, i, j: Array(x.host.swapaxes(i, j))
    module.moveaxis = lambda x, i, j: Array(np.moveaxis(x.host, i, j))
    module.cuda = types.SimpleNamespace(
        Device=Context,
        get_current_stream=lambda: stream,
        runtime=types.SimpleNamespace(getDevice=lambda: 0),
    )
    module.stream, module.used = stream, []

    class Launches:
        def __init__(self, made):
            self.made = made

        def launch(self, *arguments, extents, said, stream):
            module.used.append(stream)
            self.made.launch(*arguments, extents=extents, said=said, stream=0)

        def __getattr__(self, name):
            return getattr(self.made, name)

    def make(group, kind, entry, staged, records, said):
        assert kind is _arrays.CupyKind
        made = _core.Executable.make(
            group.session, group.rank, entry.compiled, list(staged), False, records=records, said=said
        )
        return Launches(made)

    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setattr(_arrays, "_gpu_sms", lambda device: 132)
    monkeypatch.setattr(_arrays, "_gpu_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(_group.Group, "open_gpu", lambda group, device: None)
    monkeypatch.setattr(_group.Group, "_make_executable", make)
    monkeypatch.setattr(_group.Group, "_add_plan", lambda *_: None)  # which reads no CuPy array
    return module


def test_streams_of_calls_stay(cupy, rng, monkeypatch):
    """Later calls on other streams wait for them."""
    monkeypatch.setattr(_arrays.CupyKind, "_streams", {})
    a = on_ranks(rng, 5, 24)

    class Stream:
        ptr = 11

        def is_capturing(self):
            return False

    current = [Stream()]
    monkeypatch.setattr(cupy.cuda, "get_current_stream", lambda: current[0])
    seen = weakref.ref(current[0])
    testing.run(SIZE, lambda: stretto.all_reduce(a[stretto.rank()]))
    current[0] = cupy.stream
    assert set(cupy.used) == {11} and seen() is not None


def on_ranks(rng, *shape):
    return [Array(aligned(rng.standard_normal(shape).astype(np.float32))) for _ in range(SIZE)]


def test_calls(cupy, rng):
    a, rows, w = on_ranks(rng, 5, 24), on_ranks(rng, 6, 24), on_ranks(rng, 8, 24)

    def body():
        r = stretto.rank()
        out = cupy.zeros((5, 24), np.float32)
        assert stretto.all_reduce(a[r], out=out) is out
        return (
            out,
            stretto.all_reduce(a[r], reduce_op="avg"),
            stretto.all_gather(a[r], dim=1),
            stretto.all_gather_matmul(a[r], w[r].T),
            stretto.matmul_reduce_scatter(rows[r], w[r].T),
        )

    total = sum(x.host for x in a)
    partial = sum(x.host @ y.host.T for x, y in zip(rows, w))
    for r, results in enumerate(testing.run(SIZE, body, sequence=False)):
        assert all(isinstance(x, Array) for x in results)
        want = (
            total,
            total / SIZE,
            np.concatenate([x.host for x in a], 1),
            np.concatenate([x.host for x in a]) @ w[r].host.T,
            np.split(partial, SIZE)[r],
        )
        for got, same in zip(results, want):
            np.testing.assert_allclose(got.host, same, rtol=1e-4, atol=1e-4)
    assert set(cupy.used) == {7}


def test_the_stream_is_that_of_the_call(cupy, rng):
    x = on_ranks(rng, 4, 16)

    def body():
        stretto.all_reduce(x[stretto.rank()])

    testing.run(SIZE, body)
    cupy.stream.ptr = 9
    testing.run(SIZE, body)
    assert set(cupy.used) == {7, 9} and cupy.used.count(7) == cupy.used.count(9)


def test_misaligned_arrays_are_copied(cupy, rng):
    whole = on_ranks(rng, 129)
    for got in testing.run(SIZE, lambda: stretto.all_reduce(whole[stretto.rank()][1:])):
        np.testing.assert_allclose(got.host, sum(x.host for x in whole)[1:], rtol=1e-5, atol=1e-5)


def test_no_first_call_in_a_graph(cupy, monkeypatch, rng):
    (x, _) = on_ranks(rng, 4, 64)
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(_arrays, "_gpu_sms", lambda device: 132)
    monkeypatch.setattr(_arrays, "_gpu_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(_group.Group, "open_gpu", lambda group, device: None)
    cupy.stream.is_capturing = lambda: True
    stretto.init()
    try:
        with pytest.raises(stretto.UserError, match="call it once before"):
            stretto.all_reduce(x)
    finally:
        stretto.finalize()


@pytest.mark.usefixtures("cupy")
def test_kinds_are_not_mixed(rng):
    a, w = on_ranks(rng, 4, 16)[0], rng.standard_normal((16, 8)).astype(np.float32)
    with pytest.raises(stretto.UserError, match="different kinds"):
        testing.run(1, lambda: stretto.all_gather_matmul(a, w))
    other = types.SimpleNamespace(__cuda_array_interface__={})
    with pytest.raises(stretto.UserError, match="cupy.asarray"):
        testing.run(1, lambda: stretto.all_reduce(other))
