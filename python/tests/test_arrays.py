"""Arrays as users have them: results written over what is read, memory that is not aligned, element types
that cannot be moved, symmetric arrays that are not the same on all ranks."""

import numpy as np
import pytest

import stretto
from stretto import testing

X = np.arange(16, dtype=np.float32).reshape(4, 4)


def test_a_result_over_a_factor(rng):
    """The products read what they would write over."""
    a = rng.random((512, 512), np.float32)
    b = rng.random((2, 512, 512), np.float32)
    offsets = np.array([0, 100, 512], np.int32)
    want = np.concatenate([a[:100].astype(float) @ b[0], a[100:].astype(float) @ b[1]])
    testing.run(1, lambda: stretto.grouped_matmul(a, b, offsets, out=a))
    np.testing.assert_allclose(a, want, rtol=1e-4)


@pytest.mark.parametrize("offset", [0, 7])
def test_a_result_over_what_was_written_apart_before(rng, offset):
    """A call whose arrays lie in each other, behind one of the same layouts whose arrays do not."""
    memory = [rng.random(300 * 256 + 7, np.float32) for _ in range(2)]
    want = memory[0][: 300 * 256].astype(float) + memory[1][: 300 * 256]

    def body():
        m = memory[stretto.rank()]
        x, out = m[: 300 * 256], m[offset:][: 300 * 256]
        stretto.all_reduce(x, out=np.empty_like(x))
        return stretto.all_reduce(x, out=out)

    for got in testing.run(2, body):
        np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("symmetric", [False, True])
def test_gathering_and_scattering_in_place(rng, symmetric):
    """A rank's part of the longer array is the shorter one, as NCCL has it."""
    parts = rng.random((2, 64, 96), np.float32)

    def body():
        r = stretto.rank()
        whole = stretto.symm_mem.empty(128, 96) if symmetric else np.empty((128, 96), np.float32)
        part = whole[64 * r : 64 * (r + 1)]
        part[...] = parts[r]
        stretto.all_gather(part, out=whole)
        gathered = whole.copy()
        stretto.reduce_scatter(whole, out=part)
        return gathered, part.copy()

    for r, (gathered, part) in enumerate(testing.run(2, body)):
        np.testing.assert_array_equal(gathered, parts.reshape(128, 96))
        np.testing.assert_array_equal(part, 2 * parts[r])


@pytest.mark.parametrize("which", ["place", "array"])
def test_symmetric_arrays_that_are_not_the_same_on_all_ranks(which):
    """Peers would read other rows than those that were passed."""
    errors = []

    def body():
        r, (one, other) = stretto.rank(), (stretto.symm_mem.empty(8, 4) for _ in range(2))
        mine = one[4 * r :][:4] if which == "place" else (one, other)[r]
        with pytest.raises(stretto.UserError) as caught:
            stretto.all_gather(mine)
        errors.append(str(caught.value))
        one[...] = r
        return stretto.all_gather(one)[::8, 0]

    for got in testing.run(2, body):
        np.testing.assert_array_equal(got, [0, 1])
    assert errors[0] == errors[1] and "of array" in errors[0]


@pytest.mark.parametrize("num_aligned", [0, 1, 2])
def test_memory_that_is_not_aligned(num_aligned):
    """Whether or not aligned arrays of that layout have come before."""

    def body():
        x, out = (np.zeros(65, np.uint8)[1:].view(np.float32).reshape(4, 4) for _ in range(2))
        x[...] = X
        assert not x.flags.aligned
        for _ in range(num_aligned):
            stretto.all_reduce(X)
            stretto.all_reduce(X, out=np.empty_like(X))
        return stretto.all_reduce(x), stretto.all_reduce(X, out=out), stretto.all_reduce(x, out=out)

    for results in testing.run(2, body):
        for got in results:
            np.testing.assert_array_equal(got, 2 * X)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: np.array([1, None, "x"], dtype=object), "Python objects"),
        (lambda: np.array([(1, None)], dtype=[("a", "i4"), ("b", object)]), "Python objects"),
        (lambda: np.array([1, 2], ">f4"), "byte order"),
    ],
)
def test_elements_that_mean_nothing_to_another_process(make, message):
    for call in (stretto.all_gather, stretto.all_reduce, stretto.broadcast):
        with pytest.raises(stretto.UserError, match=message):
            testing.run(1, lambda call=call: call(make()))


def test_tensors_that_are_no_strided_memory():
    torch = pytest.importorskip("torch")
    with pytest.raises(stretto.UserError, match="sparse"):
        testing.run(1, lambda: stretto.all_reduce(torch.eye(3).to_sparse()))


def test_arrays_of_different_kinds_are_named():
    torch = pytest.importorskip("torch")
    with pytest.raises(stretto.UserError, match="tensor on the CPU, and b is a NumPy array"):
        testing.run(1, lambda: stretto.all_gather_matmul(torch.ones(2, 4), X))
    with pytest.raises(stretto.UserError, match="out is a NumPy array.* a tensor"):
        testing.run(1, lambda: stretto.all_reduce(torch.ones(4, 4), out=X.copy()))


@pytest.mark.parametrize("number", [2**32 + 4, -(2**32) + 4, 2**31, -1])
def test_an_int64_table_keeps_its_numbers(number):
    """They would be others in int32, some of which name rows that there are."""
    q = np.ones((4, 2, 8), np.float32)
    starts = np.array([0, number], np.int64)
    said = "-1" if number == -1 else "2147483647 or more" if number > 0 else "-2147483648 or less"
    with pytest.raises(stretto.UserError, match=f"cu_seqlens breaks its contract: entry 1 is {said},"):
        testing.run(1, lambda: stretto.packed_attention(q, q, q, starts))


@pytest.mark.parametrize("dim", [1.5, None, "rows"])
def test_a_dimension_that_is_no_number(dim):
    with pytest.raises(stretto.UserError, match="whole number"):
        testing.run(1, lambda: stretto.all_gather(X, dim=dim))


@pytest.mark.parametrize("out", [X, [X], (X, X, X)])
def test_out_of_several_results(out):
    """`out` of operators with two is a pair."""
    q = np.ones((4, 1, 4), np.float32)
    starts = np.array([0, 4], np.int32)
    pages, table, tokens = q[:, :, None], np.zeros((4, 1), np.int32), np.ones(4, np.int32)
    told = {"return_lse": True, "out": out}
    for call in (
        lambda: stretto.all_reduce_add_rms_norm(X, X, X[0], out=out),
        lambda: stretto.packed_attention(q, q, q, starts, **told),
        lambda: stretto.paged_decode(q, pages, pages, table, tokens, **told),
        lambda: stretto.scaled_dot_product_attention(q, q, q, **told),
        lambda: stretto.sequence_attention(q, q, q, **told),
    ):
        with pytest.raises(stretto.UserError, match="need 2 arrays for its results"):
            testing.run(1, call)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda q, s: stretto.packed_attention(q, q, q, s, window=None), "window is None"),
        (lambda q, s: stretto.packed_attention(q, q, q, s, scale="x"), "scale is 'x'"),
        (
            lambda q, s: stretto.flash_decode(q[:1], *2 * [q.reshape(1, 4, 4)], 3.0, block=1),
            "tokens is 3.0",
        ),
        (lambda q, s: stretto.sequence_attention(q, q, q, window=2.5), "window is 2.5"),
        (lambda q, s: stretto.moe_route(q[0], q[0], 1.0), "top_k is 1.0"),
        (
            lambda q, s: stretto.ep_dispatch(q[0], s[:1, None], q[0, :, :1], 4.0),
            "num_experts is 4.0",
        ),
        (lambda q, s: stretto.all_reduce_add_rms_norm(q, q, q[0, 0], eps="x"), "eps is 'x'"),
        (lambda q, s: stretto.symm_mem.empty(3.5), "shape 3.5"),
        (lambda q, s: stretto.symm_mem.empty("ab"), "shape 'ab'"),
        (lambda q, s: stretto.symm_mem.empty(3, dtype=object), "Python objects"),
        (lambda q, s: stretto.symm_mem.empty(3, dtype="torch.float32"), "no element type"),
    ],
)
def test_arguments_of_other_types(call, message):
    q, starts = np.ones((4, 1, 4), np.float32), np.array([0, 4], np.int32)
    with pytest.raises(stretto.UserError, match=message):
        testing.run(1, lambda: call(q, starts))
