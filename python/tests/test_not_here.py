"""docs/guide/python.md lists what is not here: each thing is absent, or refused in the words of the list, and
nothing of torch.distributed is left out."""

import re

import numpy as np
import pytest

import stretto
from conftest import ROOT
from stretto import testing

try:
    import torch
except ImportError:
    torch = None

PAGE = (ROOT / "docs" / "guide" / "python.md").read_text(encoding="utf-8")
LIST = PAGE.split("## What is not here\n")[1].split("\n## ")[0]
ROWS = [line.split(" | ") for line in LIST.splitlines() if line.startswith("| `")]
X = np.ones((4, 4), np.float32)
H = np.ones((2, 4, 8), np.float32)
F8 = np.ones((4, 4), np.float32)


def names(row):
    return re.findall(r"`([^`]*)`", row[0])


def absent(*wanted):
    def check():
        for name in wanted:
            assert not hasattr(stretto, name) and not hasattr(stretto.symm_mem, name), name
            assert not hasattr(stretto.Group, name), name

    return check


def refused(says, *calls):
    """By the package, or for a keyword that a function has not by Python."""

    def check():
        for call in calls:
            with pytest.raises((stretto.UserError, TypeError), match=says):
                call()

    return check


def keyword(name, *functions):
    return refused(f"unexpected keyword argument '{name}'", *(lambda f=f: f(**{name: 1}) for f in functions))


def no_gradients():
    """Of what the list names."""
    if torch is None:
        return
    x, h = torch.ones(4, 4, requires_grad=True), torch.ones(2, 4, 8, requires_grad=True)
    index = torch.zeros(4, 1, dtype=torch.int32)
    for call in (
        lambda: stretto.scaled_dot_product_attention(h, h, h),
        lambda: stretto.packed_attention(h, h, h, torch.tensor([0, 2])),
        lambda: stretto.moe_route(x, x, 2),
        lambda: stretto.grouped_matmul(x, x[None], torch.tensor([0, 4])),
        lambda: stretto.moe_combine(x, index, torch.ones(4, 1)),
        lambda: stretto.matmul_all_to_all(x, x),
    ):
        with pytest.raises(stretto.UserError, match="has no gradient"):
            call()


def other_devices():
    if torch is not None:
        for device in ("meta",):
            with pytest.raises(stretto.UserError, match="only CPUs and NVIDIA GPUs"):
                stretto.all_reduce(torch.ones(4, device=device))


def transforms():
    if torch is not None:
        with pytest.raises((stretto.UserError, RuntimeError)):
            torch.func.vmap(lambda x: stretto.all_reduce(x))(torch.ones(2, 4))


def spread_tensors():
    if torch is None:
        return
    from torch.distributed.tensor import DTensor, Replicate

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = torch.distributed.init_device_mesh("cpu", (1,))
        spread = DTensor.from_local(torch.ones(4, 4), mesh, [Replicate()])
        with pytest.raises(stretto.UserError, match=r"all_reduce: x: .*x\.to_local\(\)"):
            stretto.all_reduce(spread)
        assert (stretto.all_reduce(spread.to_local()) == 1).all()
    finally:
        torch.distributed.destroy_process_group()


def e5m2():
    if torch is not None:
        a = torch.ones(16, 16).to(torch.float8_e5m2)
        with pytest.raises(stretto.UserError, match="float8_e4m3fn"):
            stretto.all_gather_matmul(a, a.t(), scale_a=torch.ones(1), scale_b=torch.ones(1))


def messages_in_large_groups():
    with pytest.raises(stretto.UserError, match="send: a group of 1 ranks"):
        stretto.send(X)
    with pytest.raises(stretto.UserError, match="recv: a group of 1 ranks"):
        stretto.recv(X.copy())


# By the first name of a row: what shows that it is so.
CHECKS = {
    "send": messages_in_large_groups,
    "all_gather": refused("x: list: need", lambda: stretto.all_gather([X, X])),
    "all_gather_object": absent(
        *("all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list"),
        *("send_object_list", "recv_object_list"),
    ),
    "all_reduce_coalesced": absent("all_reduce_coalesced", "all_gather_coalesced"),
    "ReduceOp.BAND": refused(
        "reduce_op '(band|bor|bxor)': one of sum, avg",
        *(lambda op=op: stretto.all_reduce(X, reduce_op=op) for op in ("band", "bor")),
        lambda: stretto.reduce_scatter(X, reduce_op="bxor"),
    ),
    "async_op=True": keyword(
        "async_op",
        stretto.barrier,
        stretto.moe_route,
        stretto.grouped_matmul_reduce_scatter,
        stretto.grouped_matmul_all_reduce,
        stretto.ep_combine,
        stretto.packed_attention,
        stretto.symm_mem.empty,
    ),
    "monitored_barrier": absent("monitored_barrier"),
    "split_group": absent("split_group", "shrink_group", "new_subgroups", "new_subgroups_by_enumeration"),
    "Store": absent("Store", "PrefixStore", "TCPStore"),
    "DistributedDataParallel": absent("DistributedDataParallel", "fully_shard", "DTensor", "pipeline"),
    "one_shot_all_reduce": absent("one_shot_all_reduce", "two_shot_all_reduce", "multimem_all_reduce_"),
    "get_signal_pad": absent("get_signal_pad", "put_signal", "wait_signal", "get_buffer", "rendezvous"),
    "attn_mask=": keyword("attn_mask", stretto.scaled_dot_product_attention, stretto.packed_attention),
    "dropout_p=": keyword("dropout_p", stretto.scaled_dot_product_attention),
    "flex_attention": absent("flex_attention", "score_mod", "create_block_mask"),
    "linear": absent("linear", "embedding", "cross_entropy", "rms_norm", "layer_norm", "silu"),
    "bias=": keyword(
        "bias",
        *(stretto.all_gather_matmul, stretto.matmul_reduce_scatter),
        *(stretto.matmul_all_gather, stretto.matmul_all_reduce),
    ),
    "SyncBatchNorm": absent("SyncBatchNorm", "batch_norm"),
    "float8_e5m2": e5m2,
    "complex64": refused(
        "element type complex64",
        lambda: stretto.all_reduce(X.astype(np.complex64)),
        lambda: stretto.all_gather_matmul(*2 * [X.astype(np.complex64)]),
    ),
    "int64": refused("element type int64", lambda: stretto.all_reduce(X.astype(np.int64))),
    "float64": refused(
        "element type float64", lambda: stretto.scaled_dot_product_attention(*3 * [H.astype(float)])
    ),
    "backward()": no_gradients,
    "torch.func": transforms,
    "DTensor": spread_tensors,
    'device="mps"': other_devices,
    "torch.compile": None,  # test_torch_compile.py
}


def test_every_row_is_checked():
    assert [names(row)[0] for row in ROWS] == list(CHECKS)


@pytest.mark.parametrize("name", [name for name, check in CHECKS.items() if check is not None])
def test_what_is_not_here(name):
    testing.run(1, CHECKS[name])


# What only starts, ends or asks about groups and their backends.
AROUND = """
Backend BackendConfig DebugLevel GroupMember GroupName ProcessGroup ProcessGroupGloo ProcessGroupNCCL
ProcessGroupNCCL2 ProcessGroupNCCLLazy ProcessGroupXCCL ProcessGroupUCC ProcessGroupMPI default_pg_timeout
destroy_process_group get_backend get_backend_config get_backend_impl get_debug_level
get_default_backend_for_device get_global_rank get_group_rank get_node_local_rank get_pg_count
get_process_group_ranks get_rank get_world_size group is_backend_available is_gloo_available is_initialized
is_mpi_available is_nccl_available is_torchelastic_launched is_ucc_available is_xccl_available reduce_op
record_comm set_timeout supports_complex Work
""".split()


@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
def test_nothing_of_torch_distributed_is_left_out():
    from torch.distributed import distributed_c10d as there

    moved = PAGE.split("## Coming from torch.distributed")[1].split("\n## ")[0]
    listed = set(re.findall(r"\w+", moved + LIST))
    offered = {name for name in there.__all__ if not name.endswith("Options")}
    assert not offered - listed - set(AROUND)
