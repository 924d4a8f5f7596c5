"""Groups of ranks from PyTorch: against torch.distributed's groups, through gradients, layers and
torch.compile."""

import pytest

import stretto
from forked_ranks import run_on_forks
from stretto import testing

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def seed(rng):
    torch.manual_seed(int(rng.integers(1 << 30)))


def test_random_calls_in_random_groups_are_as_gloo_has_them(rng):
    """Shapes, element types, strides and members are drawn anew; arrays are each rank's own."""
    run_on_forks(
        4,
        f"""
        import random, torch, torch.distributed as dist, stretto
        dist.init_process_group("gloo")
        stretto.init(dist.group.WORLD)
        r, seed = dist.get_rank(), {int(rng.integers(1 << 30))}
        shared, _ = random.Random(seed), torch.manual_seed(seed + 1 + r)
        TOLERANCE = {{torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 6e-2, torch.float16: 1e-2}}

        def strided(*shape, dtype):
            '''Dense, with rows apart, or with its last two dimensions exchanged in memory.'''
            form = shared.randrange(3)
            if form == 1:
                return torch.randn(*shape[:-1], shape[-1] + 3).to(dtype)[..., : shape[-1]]
            if form == 2 and len(shape) > 1:
                return torch.randn(*shape[:-2], shape[-1], shape[-2]).to(dtype).transpose(-1, -2)
            return torch.randn(*shape).to(dtype)

        def from_all(x, group):
            x = x.double().contiguous()
            all_of = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
            dist.all_gather(all_of, x, group=group)
            return all_of

        def same(got, want, dtype):
            assert got.dtype == dtype
            torch.testing.assert_close(got.double(), want, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])

        for turn in range(16):
            ranks = sorted(shared.sample(range(4), shared.randrange(1, 5)))
            theirs = dist.new_group(ranks)
            size, dtype = len(ranks), shared.choice(list(TOLERANCE))
            shape = [shared.randrange(1, 4) * size for _ in range(shared.randrange(1, 4))]
            dim, root = shared.randrange(len(shape)), shared.randrange(size)
            k, n, lead = shared.randrange(1, 40), shared.randrange(1, 20), shared.randrange(1, 3)
            x, a = strided(*shape, dtype=dtype), strided(*[size * 2] * lead, k, dtype=dtype)
            b = strided(k, n, dtype=dtype) * k**-0.5
            along = shared.randrange(lead)
            if r not in ranks:
                continue
            group = stretto.new_group(theirs)
            assert group.rank == dist.get_rank(theirs) and group.ranks == ranks
            at = group.rank
            for given in (theirs, group, group.name):  # again, by plans, whatever names the group
                xs = from_all(x, theirs)
                same(stretto.all_gather(x, dim=dim, group=given), torch.cat(xs, dim), dtype)
                same(stretto.all_reduce(x, group=given), sum(xs), dtype)
                same(stretto.reduce_scatter(x, dim=dim, group=given), sum(xs).chunk(size, dim)[at], dtype)
                same(stretto.broadcast(x, root, group=given), xs[root], dtype)
                want = torch.cat([y.chunk(size)[at] for y in xs])
                same(stretto.all_to_all(x, group=given), want, dtype)
                gathered = torch.cat(from_all(a, theirs), along)
                got = stretto.all_gather_matmul(a, b, gather_dim=along, group=given)
                same(got, gathered @ b.double(), dtype)
                wide = b.repeat(size, 1)
                got = stretto.all_gather_matmul(a, wide, gather_dim=-1, group=given)
                columns = torch.cat(from_all(a, theirs), -1).double()
                same(got, columns @ wide.double(), dtype)
                total = sum(from_all(a.double() @ b.double(), theirs))
                same(stretto.matmul_all_reduce(a, b, group=given), total, dtype)
                got = stretto.matmul_reduce_scatter(a, b, scatter_dim=along, group=given)
                same(got, total.chunk(size, along)[at], dtype)
                wide = b.repeat(1, size)
                got = stretto.matmul_reduce_scatter(a, wide, scatter_dim=-1, group=given)
                total = sum(from_all(a.double() @ wide.double(), theirs))
                same(got, total.chunk(size, -1)[at], dtype)
            x32 = x.float().clone(memory_format=torch.contiguous_format)
            dist.all_reduce(x32, group=theirs)
            same(stretto.all_reduce(x.float(), group=theirs), x32.double(), torch.float32)
            stretto.finalize(theirs)
        dist.barrier()  # the others may need rank 0, which has the store, for groups that it is not in
        stretto.finalize()
        dist.destroy_process_group()
        """,
    )


def test_groups_of_a_device_mesh():
    run_on_forks(
        4,
        """
        import torch, torch.distributed as dist, stretto, stretto.nn
        from torch.distributed.device_mesh import init_device_mesh
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        r, x = dist.get_rank(), torch.ones(4)
        try:
            stretto.all_reduce(x, group=mesh.get_group("tp"))
        except stretto.UserError as error:
            assert "there is no group 'torch.distributed group" in str(error), error
        for axis in ("dp", "tp"):  # without init(): no world of all ranks is needed
            group = stretto.new_group(mesh.get_group(axis), name=axis)
            assert (stretto.all_reduce(x * r, group=axis) == sum(group.ranks)).all()
            try:
                stretto.new_group(mesh.get_group(axis))
                assert False
            except stretto.UserError as error:
                assert "already" in str(error)
        try:
            stretto.all_reduce(x)
            assert False
        except stretto.UserError as error:
            assert "before init" in str(error)
        stretto.init(dist.group.WORLD)
        assert (stretto.all_reduce(x, group=dist.group.WORLD) == 4).all()
        stretto.finalize()
        dist.destroy_process_group()
        """,
    )


def test_the_only_dimension_of_a_device_mesh():
    """Has torch.distributed's group of all ranks, which init() may have been given."""
    run_on_forks(
        2,
        """
        import torch, torch.distributed as dist, stretto
        from torch.distributed.device_mesh import init_device_mesh
        dist.init_process_group("gloo")
        whole = stretto.init(dist.group.WORLD)
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
        group = mesh.get_group("tp")
        assert stretto.new_group(group, name="tp") is whole and stretto.new_group(group) is whole
        for given in (None, "tp", group, whole):
            assert (stretto.all_reduce(torch.ones(4), group=given) == 2).all()
        try:
            stretto.new_group(group, name="tp")
            assert False
        except stretto.UserError as error:
            assert "already" in str(error), error
        stretto.finalize()
        dist.destroy_process_group()
        """,
    )


def test_names_that_torch_distributed_gives_again():
    """To other ranks, after the first group with that name was destroyed."""
    run_on_forks(
        3,
        """
        import os, torch, torch.distributed as dist, stretto

        def meet(number):
            dist.init_process_group(
                "gloo", store=dist.PrefixStore(str(number), store), rank=rank, world_size=3
            )

        rank, x = int(os.environ["RANK"]), torch.ones(4)
        store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), 3, rank == 0)
        meet(0)
        stretto.init()
        first = dist.new_group([0, 1])
        if rank < 2:
            old = stretto.new_group(first)
            assert (stretto.all_reduce(x, group=first) == 2).all()
        dist.barrier()
        dist.destroy_process_group()
        meet(1)
        second = dist.new_group([1, 2])
        if rank == 1:
            assert second.group_name == first.group_name
            for call in (lambda: stretto.all_reduce(x, group=second), lambda: stretto.new_group(second)):
                try:
                    call()
                    assert False
                except stretto.UserError as error:
                    assert "has the ranks [1, 2]" in str(error), error
        if rank < 2:
            assert (stretto.all_reduce(x, group=old) == 2).all()
            stretto.finalize(old)
        if rank > 0:
            stretto.new_group(second)
            assert (stretto.all_reduce(x * rank, group=second) == 3).all()
        dist.barrier()
        stretto.finalize()
        dist.destroy_process_group()
        """,
    )


@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_data_and_tensor_parallel_layers_equal_the_whole_ones(sequence_parallel):
    """Two halves of the batch, each over two ranks' parts of the weights."""
    first, second, x = torch.nn.Linear(6, 8), torch.nn.Linear(8, 6), torch.randn(8, 6)
    second(torch.relu(first(x))).square().sum().backward()

    def body():
        from stretto.nn import ColumnParallelLinear, RowParallelLinear

        groups = stretto.mesh(dp=2, tp=2)
        options = {"sequence_parallel": sequence_parallel, "group": groups["tp"]}
        up = ColumnParallelLinear.from_linear(first, **options)
        down = RowParallelLinear.from_linear(second, **options)
        assert up.weight.shape == (4, 6) and "group='tp'" in repr(up)
        mine = x.chunk(2)[stretto.rank("dp")]
        if sequence_parallel:
            mine = mine.chunk(2)[stretto.rank("tp")]
        down(torch.relu(up(mine))).square().sum().backward()
        parameters = *up.parameters(), *down.parameters()
        return [stretto.all_reduce(p.grad, group="dp") for p in parameters]

    for r, (up, up_bias, down, down_bias) in enumerate(testing.run(4, body)):
        at = r % 2
        for got, want in (
            (up, first.weight.grad.chunk(2)[at]),
            (up_bias, first.bias.grad.chunk(2)[at]),
            (down, second.weight.grad.chunk(2, 1)[at]),
            (down_bias, second.bias.grad),
        ):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_compiled_in_one_graph():
    """Whatever names the group; each call keeps its own."""
    run_on_forks(
        2,
        """
        import torch, torch.distributed as dist, stretto, stretto.nn
        dist.init_process_group("gloo")
        stretto.init(dist.group.WORLD)
        r, theirs = dist.get_rank(), dist.new_group([0, 1])
        alone = [stretto.new_group([i], name=f"alone {i}") for i in range(2)][r]
        stretto.new_group(theirs, name="pair")
        pair = stretto._world.group_of("pair")
        layers = [stretto.nn.ColumnParallelLinear(8, 4, group=g) for g in (None, "pair", alone)]
        w = torch.randn(8, 6)

        def block(x, group):
            rows = stretto.all_gather_matmul(x, w, group=group)
            return stretto.matmul_reduce_scatter(torch.relu(rows), w.t(), group=group) + stretto.all_reduce(
                x, group=alone)

        for given in (None, "pair", pair, theirs, alone):
            torch._dynamo.reset()
            compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
            x = torch.randn(4, 8)
            torch.testing.assert_close(compiled(x, given), block(x, given))
            one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
            compiled(one, given).square().sum().backward()
            block(other, given).square().sum().backward()
            torch.testing.assert_close(one.grad, other.grad)
        for layer in layers:
            x = torch.randn(4, 8)
            compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
            torch.testing.assert_close(compiled(x), layer(x))
            assert layer(x).shape[0] == (4 if layer is layers[2] else 8)
        stretto.finalize()
        dist.destroy_process_group()
        """,
    )


def test_results_are_those_of_async_tp(rng):
    """What PyTorch computes for torch.ops.symm_mem where it does not overlap, over gloo."""
    theirs = pytest.importorskip("torch.distributed._symmetric_memory")
    names = "all_gather_matmul", "matmul_reduce_scatter"
    if not all(hasattr(theirs, f"_fused_{name}_fallback") for name in names):
        pytest.skip("this PyTorch has them elsewhere")
    run_on_forks(
        2,
        f"""
        import torch, torch.distributed as dist, stretto
        from torch.distributed import _symmetric_memory as theirs
        dist.init_process_group("gloo")
        stretto.init(dist.group.WORLD)
        torch.manual_seed({int(rng.integers(1 << 30))} + dist.get_rank())
        group = dist.group.WORLD
        name = group.group_name
        # Gloo of PyTorch 2.8 scatters the sum where the average is asked for.
        ones = theirs._fused_matmul_reduce_scatter_fallback(torch.ones(2, 1), torch.ones(1, 1), "avg", 0, name)
        assert ones in (1, 2)
        for dims in (2, 3):
            for dim in range(dims - 1):
                a, weights = torch.randn(*[4] * (dims - 1), 8), [torch.randn(8, n) for n in (6, 3)]
                want = theirs._fused_all_gather_matmul_fallback(a, weights, dim, name)
                got = stretto.all_gather_matmul(a, weights, gather_dim=dim, return_a=True, group=group)
                torch.testing.assert_close(got[0], want[0])
                for x, y in zip(got[1], want[1]):
                    torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)
                for reduce_op in ("sum", "avg"):
                    want = theirs._fused_matmul_reduce_scatter_fallback(a, weights[0], reduce_op, dim, name)
                    want /= ones if reduce_op == "avg" else 1
                    got = stretto.matmul_reduce_scatter(
                        a, weights[0], scatter_dim=dim, reduce_op=reduce_op, group=group)
                    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        # Along the last dimension, which the references without overlap do not take.
        shards, b = [torch.empty(4, 3, 8) for _ in range(2)], torch.randn(16, 6)
        dist.all_gather(shards, a := torch.randn(4, 3, 8))
        gathered, c = stretto.all_gather_matmul(a, b, gather_dim=-1, return_a=True, group=group)
        torch.testing.assert_close(gathered, torch.cat(shards, -1))
        torch.testing.assert_close(c, torch.cat(shards, -1) @ b, rtol=1e-4, atol=1e-5)
        dist.all_reduce(total := a @ b[:8])
        got = stretto.matmul_reduce_scatter(a, b[:8], scatter_dim=2, group=group)
        torch.testing.assert_close(got, total.chunk(2, -1)[dist.get_rank()], rtol=1e-4, atol=1e-5)
        stretto.finalize()
        dist.destroy_process_group()
        """,
    )
