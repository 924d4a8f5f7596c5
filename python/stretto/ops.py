"""The operators: collectives, and matrix products that overlap with them. All are collective over
the ranks of `group`, or of `stretto.init()`: every rank calls them in the same order, with the same
shapes and element types unless an operator says otherwise. P is the number of these ranks.

Arrays are NumPy or CuPy arrays, PyTorch tensors on the CPU or on GPUs, or anything on the CPU with
DLPack; results are of the kind of the first argument, on its device. Strided arrays are copied.
Arrays without rows are taken, where those of all ranks have none.
Element types: float32, bfloat16, float16; on CPUs float64, which is added up in float64, but for
attention; in reductions int32; in products float8_e4m3fn with scales; what only moves arrays
(all_gather, all_to_all, broadcast, gather, scatter, messages) moves any.
Arrays from `stretto.symm_mem.empty` are used where they are, the same part of the same one on every
rank; other arrays are copied to where peers can read them.

On GPUs a call enqueues its work on the current stream and returns; graphs capture it once it has
been made with these shapes before. What goes wrong there is told by a later call.

`async_op=True`, of all but those of one rank and those whose tables name their group: the call goes on
beside what the rank does next, and a `stretto.Work` is returned, whose wait() returns the result.

`group`: what `stretto.new_group` or `stretto.mesh` returned, its name, or the torch.distributed
group that it was made of; None: all ranks. `out`: an array to write the result to, of its shape and
element type; it is returned. Where it overlaps what is still read then, the result is copied there.
No graph of torch.compile holds such a call; `out.copy_(stretto.all_reduce(x))` is part of one.

Errors: UserError for shapes, types and arguments that do not fit, for a group that there is not or
that this rank is not in, where ranks disagree, and where another rank has refused the call, saying
why; Fault where a rank stalls or died, and where ranks on GPUs repeat different calls, or one
refuses what others repeat.
"""

from .attention import (
    flash_decode,
    packed_attention,
    paged_attention,
    paged_decode,
    ring_attention,
    sequence_attention,
)
from .collectives import all_gather, all_reduce, all_to_all, broadcast, reduce_scatter
from .expert_layers import (
    all_gather_grouped_matmul,
    grouped_matmul_all_reduce,
    grouped_matmul_reduce_scatter,
    moe_layer,
)
from .expert_parallel import ep_combine, ep_dispatch, ep_moe_layer
from .matmul import all_gather_matmul, matmul_all_reduce, matmul_reduce_scatter
from .moe import grouped_matmul, moe_combine, moe_route
from .norms import all_reduce_add_rms_norm, reduce_scatter_add_rms_norm, rms_norm_columns
from .rooted import batch_send_recv, gather, recv, reduce, scatter, send
from .spread_columns import matmul_all_gather
from .transformer import scaled_dot_product_attention
from .uneven import all_gather_v, all_to_all_v
from .ulysses import all_to_all_matmul, matmul_all_to_all

__all__ = [
    "all_gather",
    "all_gather_grouped_matmul",
    "all_gather_matmul",
    "all_gather_v",
    "all_reduce",
    "all_reduce_add_rms_norm",
    "all_to_all",
    "all_to_all_matmul",
    "all_to_all_v",
    "batch_send_recv",
    "broadcast",
    "ep_combine",
    "ep_dispatch",
    "ep_moe_layer",
    "flash_decode",
    "gather",
    "grouped_matmul",
    "grouped_matmul_all_reduce",
    "grouped_matmul_reduce_scatter",
    "matmul_all_gather",
    "matmul_all_reduce",
    "matmul_all_to_all",
    "matmul_reduce_scatter",
    "moe_combine",
    "moe_layer",
    "moe_route",
    "packed_attention",
    "paged_attention",
    "paged_decode",
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
]
