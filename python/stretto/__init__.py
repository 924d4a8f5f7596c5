"""Communication hidden behind computation: collectives and matrix products that overlap with them,
for NumPy arrays and PyTorch tensors, and tile programs of one's own.

    import numpy, stretto
    stretto.init()
    c = stretto.all_gather_matmul(a_shard, weight.T)
"""

from . import _route, symm_mem
from ._beside import Work
from ._gates import SwiGLU
from ._trace import trace
from ._tune import Tuned, tune
from ._warm import warm_up
from ._group import Group
from ._world import barrier, finalize, init, mesh, new_group, rank, recover, world_size
from .attention import zigzag
from .errors import DeviceError, Error, Fault, InternalError, NotComplete, Rejected, UserError
from .ops import (
    all_gather,
    all_gather_grouped_matmul,
    all_gather_matmul,
    all_gather_v,
    all_reduce,
    all_reduce_add_rms_norm,
    all_to_all,
    all_to_all_matmul,
    all_to_all_v,
    batch_send_recv,
    broadcast,
    ep_combine,
    ep_dispatch,
    ep_moe_layer,
    flash_decode,
    gather,
    grouped_matmul,
    grouped_matmul_all_reduce,
    grouped_matmul_reduce_scatter,
    matmul_all_gather,
    matmul_all_reduce,
    matmul_all_to_all,
    matmul_reduce_scatter,
    moe_combine,
    moe_layer,
    moe_route,
    packed_attention,
    paged_attention,
    paged_decode,
    recv,
    reduce,
    reduce_scatter,
    reduce_scatter_add_rms_norm,
    ring_attention,
    rms_norm_columns,
    scaled_dot_product_attention,
    scatter,
    send,
    sequence_attention,
)
from .programs import Program, ProgramFile, choose, explain, load, operator, predict, prove


def _import_torch_layers():
    from . import _torch, _torch_forward  # pylint: disable=import-outside-toplevel

    return _torch, _torch_forward


_route.import_both = _import_torch_layers

__all__ = [
    "DeviceError",
    "Error",
    "Fault",
    "Group",
    "InternalError",
    "NotComplete",
    "Program",
    "ProgramFile",
    "Rejected",
    "SwiGLU",
    "Tuned",
    "UserError",
    "Work",
    "all_gather",
    "all_gather_grouped_matmul",
    "all_gather_matmul",
    "all_gather_v",
    "all_reduce",
    "all_reduce_add_rms_norm",
    "all_to_all",
    "all_to_all_matmul",
    "all_to_all_v",
    "barrier",
    "batch_send_recv",
    "broadcast",
    "choose",
    "ep_combine",
    "ep_dispatch",
    "ep_moe_layer",
    "explain",
    "finalize",
    "flash_decode",
    "gather",
    "grouped_matmul",
    "grouped_matmul_all_reduce",
    "grouped_matmul_reduce_scatter",
    "init",
    "load",
    "matmul_all_gather",
    "matmul_all_reduce",
    "matmul_all_to_all",
    "matmul_reduce_scatter",
    "mesh",
    "moe_combine",
    "moe_layer",
    "moe_route",
    "new_group",
    "operator",
    "packed_attention",
    "paged_attention",
    "paged_decode",
    "predict",
    "prove",
    "rank",
    "recover",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_add_rms_norm",
    "ring_attention",
    "rms_norm_columns",
    "scaled_dot_product_attention",
    "scatter",
    "send",
    "sequence_attention",
    "symm_mem",
    "trace",
    "tune",
    "warm_up",
    "world_size",
    "zigzag",
]
__version__ = "0.1.0"
