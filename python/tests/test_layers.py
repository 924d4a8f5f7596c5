"""What stretto.nn's layers have in common with PyTorch's: mixed precision, the meta device."""

import threading

import pytest

import stretto
from stretto import testing

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_layers_in_autocast_compute_as_linear_ones_do(rng, sequence_parallel, compiled):
    """Float32 weights, what comes from a layer before in bfloat16, and gradients of float32."""
    torch.manual_seed(int(rng.integers(1 << 30)))
    first, second = torch.nn.Linear(16, 8), torch.nn.Linear(8, 16)
    x = torch.randn(6, 16)

    def run(up, down, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return down(torch.nn.functional.silu(up(torch.tanh(x @ torch.eye(16)))))

    want = run(first, second, x)
    want.sum().backward()

    stretto.init()
    try:
        from stretto.nn import ColumnParallelLinear, RowParallelLinear

        options = {"sequence_parallel": sequence_parallel}
        up = ColumnParallelLinear.from_linear(first, **options)
        down = RowParallelLinear.from_linear(second, **options)
        step = torch.compile(run, fullgraph=True, backend="aot_eager") if compiled else run
        y = step(up, down, x)
        y.sum().backward()
    finally:
        stretto.finalize()
    assert y.dtype == want.dtype == torch.bfloat16
    near = {"rtol": 3e-2, "atol": 3e-2}
    torch.testing.assert_close(y, want, **near)
    for layer, whole in ((up, first), (down, second)):
        for got, of_whole in zip(layer.parameters(), whole.parameters()):
            assert got.grad.dtype == torch.float32
            torch.testing.assert_close(got.grad, of_whole.grad, **near)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("lay", [lambda x: x.t().contiguous().t(), lambda x: x[:, ::2]])
def test_compiled_layers_take_inputs_in_any_order(rng, backend, lay):
    """What is traced says how results lie in memory, which later operators go by."""
    torch.manual_seed(int(rng.integers(1 << 30)))
    stretto.init()
    try:
        from stretto.nn import ColumnParallelLinear

        layer = ColumnParallelLinear(16, 8, sequence_parallel=False)
        x = lay(torch.randn(6, 32 if lay(torch.empty(2, 4)).shape[1] == 2 else 16))
        want = torch.nn.functional.linear(x, layer.weight, layer.bias)
        copied = torch.compile(lambda x: stretto._torch.copy_to_ranks(x, "").view(-1), backend=backend)
        torch.testing.assert_close(copied(x), x.reshape(-1))
        compiled = torch.compile(layer, fullgraph=True, backend=backend)
        torch.testing.assert_close(compiled(x), want)
        compiled(x).sum().backward()
    finally:
        stretto.finalize()


def test_layers_that_were_made_without_memory():
    """As tools for large models make them: memory comes later, then parameters as of a new layer."""
    stretto.init()
    try:
        from stretto.nn import RowParallelLinear

        layer = RowParallelLinear(16, 8, device="meta").to_empty(device="cpu")
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.fill_(float("nan"))
        layer.reset_parameters()
        assert 0 < layer.weight.abs().max() <= 0.25 and not layer.bias.any()
        assert torch.equal(layer(torch.zeros(2, 16)), torch.zeros(2, 8))
    finally:
        stretto.finalize()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("column", [True, False])
def test_parts_under_one_seed_are_those_of_one_new_layer(rng, column, dtype):
    """And so differ; equal ones would have equal gradients, and stay equal."""
    seed, drawn = int(rng.integers(1 << 30)), threading.Lock()
    torch.manual_seed(seed)
    want = torch.nn.Linear(12, 18, bias=False, dtype=dtype).weight

    def body():
        from stretto.nn import ColumnParallelLinear, RowParallelLinear

        make = ColumnParallelLinear if column else RowParallelLinear
        with drawn:
            torch.manual_seed(seed)
            layer = make(12, 18, bias=False, dtype=dtype)
        new = layer.weight.detach().clone()
        with drawn:
            torch.manual_seed(seed)
            layer.reset_parameters()
        assert torch.equal(new, layer.weight) and layer.weight.requires_grad
        return new

    parts = testing.run(3, body)
    assert torch.equal(torch.cat(parts, 0 if column else 1), want)


@pytest.mark.parametrize("column", [True, False])
def test_parts_are_trained_as_the_whole_layer(column):
    stretto.init()
    try:
        from stretto.nn import ColumnParallelLinear, RowParallelLinear

        of = (ColumnParallelLinear if column else RowParallelLinear).from_linear
        for weight, bias, training in ((False, False, False), (False, True, True), (True, False, True)):
            whole = torch.nn.Linear(4, 8).train(training)
            whole.weight.requires_grad_(weight)
            whole.bias.requires_grad_(bias)
            state = torch.get_rng_state()
            part = of(whole)
            assert torch.equal(torch.get_rng_state(), state)
            assert torch.equal(part.weight, whole.weight) and torch.equal(part.bias, whole.bias)
            found = part.weight.requires_grad, part.bias.requires_grad, part.training
            assert found == (weight, bias, training)
        assert of(torch.nn.Linear(4, 8, bias=False)).bias is None
        assert of(torch.nn.Linear(4, 8, device="meta")).weight.is_meta
    finally:
        stretto.finalize()
