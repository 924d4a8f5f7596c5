"""The way of tensors on GPUs, up to the launch: programs for GPUs, runs padded and misaligned tensors
copied as they are there. CPU ranks run the programs."""

import numpy as np
import pytest

import stretto
from repeats import of_rank, repeated
from stretto import _arrays, _core, _group, testing

torch = pytest.importorskip("torch")
SIZE = 2


class HostAsGpu(_arrays.TorchGpuKind):
    """CPU tensors, taken for a GPU's."""

    @staticmethod
    def device(x):
        return 0

    @staticmethod
    def num_sms(x):
        return 132

    @staticmethod
    def gpu_name(x):
        return ""

    @staticmethod
    def stream(device):
        return 0

    @staticmethod
    def is_capturing():
        return False

    @staticmethod
    def synchronize():
        pass


@pytest.fixture(autouse=True)
def host_as_gpu(monkeypatch, rng):
    def make(group, kind, entry, staged, records, said):
        assert kind in (HostAsGpu, _arrays.NumpyKind)  # arrays, and sizes that hosts exchange
        return _core.Executable.make(
            group.session, group.rank, entry.compiled, list(staged), False, records=records, said=said
        )

    monkeypatch.setattr(_arrays, "torch_kind", lambda device_type: HostAsGpu)
    monkeypatch.setattr(_group.Group, "open_gpu", lambda group, device: None)
    monkeypatch.setattr(_group.Group, "_make_executable", make)
    torch.manual_seed(int(rng.integers(1 << 30)))


def aligned(*shape, dtype=torch.float32):
    """As a GPU's allocator gives them."""
    x = (torch.randn(*shape) * 50).to(dtype)
    assert x.data_ptr() % _arrays.ALIGNMENT == 0
    return x


def test_what_is_kept_is_ready_for_every_stream(monkeypatch):
    """Another stream may be the next to use it, and waits for nothing."""
    waits = []
    monkeypatch.setattr(HostAsGpu, "synchronize", staticmethod(lambda: waits.append(1)))

    def body():
        kept = stretto._world.group_of().kept
        return [kept.array(HostAsGpu, "zeros", lambda: torch.zeros(4)) for _ in range(3)]

    ((first, *later),) = testing.run(1, body)
    assert all(x is first for x in later) and waits == [1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("shape", [(3, 5), (7,), (2, 64)])
def test_moved(dtype, shape):
    xs = [aligned(*shape, dtype=dtype) for _ in range(SIZE)]

    def body():
        x = xs[stretto.rank()]
        twice = x.repeat(SIZE, *[1] * (x.dim() - 1))
        return stretto.all_gather(x), stretto.broadcast(x, 1), stretto.all_to_all(twice)

    for gathered, sent, exchanged in testing.run(SIZE, body):
        assert gathered.dtype == dtype and torch.equal(gathered, torch.cat(xs))
        assert torch.equal(sent, xs[1]) and torch.equal(exchanged, torch.cat(xs))


def test_sums_and_products():
    xs = [aligned(6, 5) for _ in range(SIZE)]
    a, w = [aligned(4, 24) for _ in range(SIZE)], [aligned(8, 24) for _ in range(SIZE)]

    def body():
        r = stretto.rank()
        out = torch.zeros(6, 6)
        stretto.all_reduce(xs[r], out=out[:, 1:])
        return (
            out[:, 1:],
            stretto.reduce_scatter(xs[r]),
            stretto.all_gather_matmul(a[r], w[r].t()),
            stretto.matmul_all_reduce(a[r], w[r].t()),
            stretto.matmul_all_gather(a[r], w[r].t()),
        )

    total, product = sum(xs), sum(x @ y.t() for x, y in zip(a, w))
    columns = torch.cat([x @ y.t() for x, y in zip(a, w)], 1)
    for r, (all_sum, part, c, ar, spread) in enumerate(testing.run(SIZE, body)):
        torch.testing.assert_close(spread, columns, rtol=1e-4, atol=1e-2)
        torch.testing.assert_close(all_sum, total)
        torch.testing.assert_close(part, total.chunk(SIZE)[r])
        torch.testing.assert_close(c, torch.cat(a) @ w[r].t(), rtol=1e-4, atol=1e-2)
        torch.testing.assert_close(ar, product, rtol=1e-4, atol=1e-2)


def test_misaligned_tensors_are_copied():
    xs = [aligned(129) for _ in range(SIZE)]

    def body():
        view = xs[stretto.rank()][1:]
        assert view.data_ptr() % _arrays.ALIGNMENT != 0
        return [stretto.all_reduce(view) for _ in range(2)]

    for sums in testing.run(SIZE, body):
        for got in sums:
            torch.testing.assert_close(got, sum(xs)[1:])


def test_no_first_call_in_a_graph(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(_arrays, "torch_kind", lambda device_type: HostAsGpu)
    monkeypatch.setattr(_group.Group, "open_gpu", lambda group, device: None)
    monkeypatch.setattr(HostAsGpu, "is_capturing", staticmethod(lambda: True))
    stretto.init()
    try:
        with pytest.raises(stretto.UserError, match="call it once before"):
            stretto.all_reduce(aligned(4, 64))
    finally:
        stretto.finalize()


def test_chosen_products_are_predicted_no_slower_than_the_default():
    for rows in (8, 512):
        desc = {"world_size": 2, "m": rows, "n": 256, "k": 128}
        desc |= {name: "bfloat16" for name in ("a_dtype", "b_dtype", "result_dtype")}
        products = (
            (_core.ag_gemm, {**desc, "gathered": True}),
            (_core.gemm_rs, {**desc, "average": False}),
            (_core.gemm_rs, {**desc, "average": True}),
            (_core.gemm_ar, desc),
        )
        for make, desc in products:
            fastest, fused, default = (
                sum(p.predict("h200x2")["time_ms"] for p in make(132, "", products=how, **desc)[1])
                for how in ("fastest", "fused", "default")
            )
            assert fused <= default and 0.9 * fastest <= fused


@pytest.mark.parametrize("size", (1, 2, 3, 4))
@pytest.mark.parametrize("elements", [1, 5, 130, 1030])
def test_odd_sums_again(size, elements, monkeypatch):
    def make():
        x = aligned(elements)

        def fill(i):
            x.copy_(torch.from_numpy(of_rank(stretto.rank(), i, elements)))

        def check(result, i):
            want = sum(of_rank(r, i, elements) for r in range(size))
            assert torch.equal(result, torch.from_numpy(want))

        return fill, lambda: stretto.all_reduce(x), check

    repeated(size, make, monkeypatch)


@pytest.mark.parametrize("size", (1, 2, 3, 4))
@pytest.mark.parametrize("shape", [(3, 7), (3, 347)])
def test_odd_rows_of_several_runs_again(size, shape, monkeypatch):
    """Of many elements, rows of a result lie further apart where the launch writes them."""

    def make():
        x = aligned(*shape)

        def fill(i):
            x.copy_(torch.from_numpy(of_rank(stretto.rank(), i, shape)))

        def check(result, i):
            want = np.concatenate([of_rank(r, i, shape) for r in range(size)])
            assert torch.equal(result, torch.from_numpy(want))

        return fill, lambda: stretto.all_gather(x), check

    repeated(size, make, monkeypatch)


@pytest.mark.parametrize("size", (1, 2, 3, 4))
@pytest.mark.parametrize("dtype, copied", [(torch.bfloat16, 0), (torch.float32, 0), (torch.int64, 0), (torch.bool, 1)])
def test_few_elements_are_not_copied(rng, size, dtype, copied):
    """Of whatever number they are: of bytes alone, four of which are moved as one, some are added."""
    calls = [stretto.all_gather, stretto.broadcast, lambda x: stretto.all_to_all(torch.cat([x] * size))]
    if dtype.is_floating_point:
        calls += [stretto.all_reduce, lambda x: stretto.reduce_scatter(torch.cat([x] * size))]
    for elements in (1, 3, 7, 129, 1021):
        xs = [aligned(elements).mul(8).to(dtype) for _ in range(size)]

        def body(xs=xs):
            results = [call(xs[stretto.rank()]) for call in calls]
            return results, {name for _, name, *_ in stretto._world.group_of().kept._rooms}

        for got, rooms in testing.run(size, body):
            assert ("padded" in rooms) == bool(copied), (elements, rooms)
            gathered, sent, exchanged, *sums = got
            assert torch.equal(gathered, torch.cat(xs)) and torch.equal(exchanged, gathered)
            assert torch.equal(sent, xs[0])
            for total in sums:
                torch.testing.assert_close(total.float(), sum(x.float() for x in xs), rtol=0.02, atol=0.5)


@pytest.mark.parametrize("size", (1, 2, 3, 4))
@pytest.mark.parametrize("shape", [(24,), (24, 1), (24, 5), (12, 3, 2), (3600,)])
def test_blocks_move_in_rows_of_their_own(size, shape, monkeypatch):
    """However narrow the array's are: what a launch moves is no wider than what is there, but for the end."""
    launched = []
    launch = stretto.Group.launch_operator

    def seen(group, kind, program, desc, *rest, **options):
        launched.append((program, desc))
        return launch(group, kind, program, desc, *rest, **options)

    monkeypatch.setattr(stretto.Group, "launch_operator", seen)
    for even in (True, False):
        blocks = [[shape[0] // 12 * (1 if even else (s + d) % 3) for d in range(size)] for s in range(size)]

        def body(blocks=blocks):
            r = stretto.rank()
            x = aligned(sum(blocks[r]), *shape[1:], dtype=torch.bfloat16)
            x.copy_(torch.from_numpy(of_rank(r, 0, x.shape)))
            return stretto.all_to_all(x, None, blocks[r])

        for r, got in enumerate(testing.run(size, body)):
            want = []
            for s in range(size):
                sent = of_rank(s, 0, (sum(blocks[s]), *shape[1:]))
                want.append(sent[sum(blocks[s][:r]) : sum(blocks[s][: r + 1])])
            assert torch.equal(got.float(), torch.from_numpy(np.concatenate(want)))
    moved = [desc for program, desc in launched if program == "all_to_all"]
    assert moved or size == 1
    for desc in moved:
        bytes_of_block = desc["m"] * desc["n"] * {"float32": 4, "bfloat16": 2}[desc["dtype"]]
        assert bytes_of_block <= 1.25 * 2 * 2 * np.prod(shape) // 12 + 2048
