"""Tensors that repeated calls make, against those of the first call, which PyTorch's functions have made."""

import pytest

import stretto
from stretto import testing

torch = pytest.importorskip("torch")
# Results with rows that hold nothing, by place.
HOLD_MORE = {"all_to_all_v": (0,), "ep_dispatch": (0, 1, 3)}


@pytest.fixture(autouse=True)
def seed(rng):
    torch.manual_seed(int(rng.integers(1 << 30)))


def tensors(result):
    return [x for x in result if isinstance(x, torch.Tensor)] if isinstance(result, tuple) else [result]


def memory(x):
    return x.untyped_storage().data_ptr()


def calls(rank, size, rows):
    torch.manual_seed(7)
    x, router = torch.randn(rows, 32), torch.randn(6, 32)
    chosen = torch.rand(rows, 6).topk(2)[1].int()
    weights = torch.rand(rows, 2)
    return {
        "moe_route": lambda: stretto.moe_route(x, router, 2, tables=True),
        "ep_dispatch": lambda: stretto.ep_dispatch(x, chosen, weights, 6),
        "all_reduce_add_rms_norm": lambda: stretto.all_reduce_add_rms_norm(x, x, torch.ones(32)),
        "all_gather": lambda: stretto.all_gather(x),
        "all_to_all_v": lambda: stretto.all_to_all_v(x.int(), torch.full((size,), rows // size)),
        "matmul_all_to_all": lambda: stretto.matmul_all_to_all(x, torch.ones(size * 2, 32).t()),
    }


@pytest.fixture
def makes_nothing(monkeypatch):
    """From a plan on, PyTorch's own functions."""
    kind = stretto._arrays.TorchKind

    def refuse(_):
        def make():
            raise AssertionError("a result by Python")

        return make

    monkeypatch.setattr(kind, "maker", staticmethod(refuse))


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("name", list(calls(0, 1, 4)))
def test_are_as_the_first_ones(size, name, makes_nothing):
    def body():
        call = calls(stretto.rank(), size, 3 * size)[name]
        return [tensors(call()) for _ in range(3)]

    for first, *others in testing.run(size, body):
        for again in others:
            assert len(again) == len(first)
            for i, (x, y) in enumerate(zip(first, again)):
                assert type(y) is torch.Tensor and (y.dtype, y.shape, y.stride()) == (x.dtype, x.shape, x.stride())
                assert not y.requires_grad and y.is_leaf and not y._is_view() and y._version == 0
                assert y.data_ptr() % 64 == 0  # of PyTorch's own memory, too
                if i not in HOLD_MORE.get(name, ()):
                    assert torch.equal(x, y)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("name", ["moe_route", "ep_dispatch"])
def test_have_memory_of_their_own(size, name, makes_nothing):
    """Who keeps a small table keeps no other with it; a write to one is seen in no other, nor by autograd."""

    def body():
        call = calls(stretto.rank(), size, 5)[name]
        call()
        return tensors(call()), tensors(call())

    for made, others in testing.run(size, body):
        assert len({memory(x) for x in (*made, *others)}) == 2 * len(made) > 4
        for i, x in enumerate(made):
            assert x.untyped_storage().nbytes() == x.numel() * x.element_size()
            x.fill_(-i)
        for i, x in enumerate(made):
            assert (x == -i).all() and x._version == 1


def test_are_of_inference_where_the_call_is(makes_nothing):
    stretto.init()
    try:
        call = calls(0, 1, 4)["moe_route"]
        call()
        with torch.inference_mode():
            assert all(x.is_inference() for x in tensors(call()))
        assert not any(x.is_inference() for x in tensors(call()))
    finally:
        stretto.finalize()


def test_come_and_go(makes_nothing):
    """As many as there were: nothing holds those that nobody has."""
    import gc  # pylint: disable=import-outside-toplevel
    import sys  # pylint: disable=import-outside-toplevel
    import weakref  # pylint: disable=import-outside-toplevel

    stretto.init()
    try:
        call = calls(0, 1, 4)["moe_route"]
        call()
        made = tensors(call())
        assert all(sys.getrefcount(x) <= 3 for x in made)
        seen = [weakref.ref(x) for x in made]
        kept = made[1]
        del made
        gc.collect()
        assert [ref() is None for ref in seen] == [True, False, True, True]
        assert kept.sum() == kept.sum().clone()
    finally:
        stretto.finalize()
