"""Arguments of every operator, right ones and, by lot, wrong ones."""

import inspect

import numpy as np

import stretto

try:
    import torch
except ImportError:
    torch = None

# What no message may hold: the binding's types and sentences, and private names.
INTERNAL = [
    r"nanobind|pybind|_core|capsule|::|stretto\._|<lambda>|0x[0-9a-f]{6}",
    r"incompatible function|Unable to cast|object has no attribute|positional argument|Declaration",
    r"NoneType|not subscriptable|unsupported operand|invalid literal|could not convert",
    r"truth value|not supported between|unhashable",
]
# Nor one of an operator: its programs' names, and their tensors'.
PROGRAMS = [
    r"\bag_gemm|\bgemm_(rs|ar|a2a)|\ba2a_gemm|\bgrouped_gemm|\bag_grouped|\btoken_ring|\brecv_counts",
    r"\bep_(send|place|return)|_one_shot|\bk_cache|\bexpert_tables|\bstarts\b|\btile_|all_gather_and",
]

# Operators whose names are words of the language.
WORDS = {"gather", "reduce", "scatter", "send"}

COLLECTIVES = [
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "all_to_all",
    "all_to_all_v",
    "all_gather_v",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_gather_matmul",
    "matmul_reduce_scatter",
    "matmul_all_gather",
    "matmul_all_reduce",
    "all_reduce_add_rms_norm",
    "reduce_scatter_add_rms_norm",
    "rms_norm_columns",
    "sequence_attention",
    "ring_attention",
    "flash_decode",
    "matmul_all_to_all",
    "all_to_all_matmul",
    "moe_combine",
    "all_gather_grouped_matmul",
    "moe_layer",
    "ep_dispatch",
    "ep_moe_layer",
]
ALONE = [
    "scaled_dot_product_attention",
    "packed_attention",
    "paged_attention",
    "paged_decode",
    "moe_route",
    "grouped_matmul",
]


def numbers(draw, *shape):
    return draw.random(shape, np.float32)


def table(values):
    return np.array(values, np.int32)


def arguments_of(name, size, rows, draw):
    """Of `size` ranks, by name; `rows`: a multiple of 4."""

    def x(*shape):
        return numbers(draw, *shape)

    chosen = table([[i % 2, 1 - i % 2] for i in range(rows)])
    everyone = table([[i % 2, 1 - i % 2] for i in range(rows * size)])
    share = -(-2 // size)
    pages, starts = x(3, 1, 4, 8), table([0, rows])
    block_table = table([[0, 1, 2]])
    return {
        "all_gather": lambda: {"x": x(rows, 4), "dim": 0},
        "reduce_scatter": lambda: {"x": x(rows, 4), "dim": 0, "reduce_op": "avg"},
        "all_reduce": lambda: {"x": x(rows, 4), "reduce_op": "sum"},
        "all_to_all": lambda: {"x": x(rows, 4)},
        "all_to_all_v": lambda: {"x": x(rows, 4), "input_split_sizes": table([1] * size), "max_rows": rows},
        "all_gather_v": lambda: {"x": x(rows, 4), "input_size": table([1]), "max_rows": rows},
        "broadcast": lambda: {"x": x(rows, 4), "root": 0},
        "reduce": lambda: {"x": x(rows, 4), "root": 0, "reduce_op": "max"},
        "gather": lambda: {"x": x(rows, 4), "root": 0},
        "scatter": lambda: {"x": x(rows, 4), "root": 0},
        "all_gather_matmul": lambda: {"a_shard": x(rows, 6), "b": x(6, 4), "gather_dim": 0},
        "matmul_reduce_scatter": lambda: {"a": x(rows, 6), "b": x(6, 4), "scatter_dim": 0},
        "matmul_all_gather": lambda: {"a": x(rows, 6), "b": x(6, 4)},
        "matmul_all_reduce": lambda: {"a": x(rows, 6), "b": x(6, 4)},
        "all_reduce_add_rms_norm": lambda: {
            "x": x(rows, 4),
            "residual": x(rows, 4),
            "weight": x(4),
            "eps": 1e-5,
        },
        "reduce_scatter_add_rms_norm": lambda: {
            "x": x(rows * size, 4),
            "residual": x(rows, 4),
            "weight": x(4),
            "eps": 1e-5,
        },
        "rms_norm_columns": lambda: {
            "x": x(rows, 4),
            "weight": x(4),
            "residual": x(rows, 4),
            "eps": 1e-5,
        },
        "sequence_attention": lambda: {
            **{n: x(rows, 2, 8) for n in ("query", "key", "value")},
            "is_causal": True,
            "scale": 0.5,
            "window": 0,
            "contiguous": False,
        },
        "ring_attention": lambda: {
            **{n: x(rows, 2, 8) for n in ("query", "key", "value")},
            "scale": 0.5,
            "window": 0,
        },
        "flash_decode": lambda: {
            "query": x(1, 2, 8),
            "key_cache": x(1, rows, 8),
            "value_cache": x(1, rows, 8),
            "tokens": rows,
            "block": 4,
            "scale": 0.5,
        },
        "matmul_all_to_all": lambda: {"a": x(rows, 6), "b": x(6, 4), "bias": x(4)},
        "all_to_all_matmul": lambda: {"a": x(rows, 6), "b": x(6 * size, 4), "bias": x(4)},
        "moe_combine": lambda: {
            "y": x(rows * 2, 4),
            "slots": np.arange(rows * 2, dtype=np.int32).reshape(rows, 2),
            "weights": x(rows, 2),
            "scatter": True,
        },
        "all_gather_grouped_matmul": lambda: {
            "a_shard": x(rows, 6),
            "b": x(2, 6, 4),
            "experts": everyone,
            "up": x(2, 6, 4),
            "bias": x(2, 4),
            "up_bias": x(2, 4),
        },
        "moe_layer": lambda: {
            "x": x(rows, 6),
            "gate": x(2, 6, 4),
            "up": x(2, 6, 4),
            "down": x(2, 4, 6),
            "experts": everyone,
            "weights": x(rows * size, 2),
            "gate_bias": x(2, 4),
            "up_bias": x(2, 4),
            "down_bias": x(2, 6),
        },
        "ep_dispatch": lambda: {
            "x": x(rows, 6),
            "experts": chosen,
            "weights": x(rows, 2),
            "num_experts": 2,
            "fp8": False,
        },
        "ep_moe_layer": lambda: {
            "x": x(rows, 6),
            "gate": x(share, 6, 4),
            "up": x(share, 6, 4),
            "down": x(share, 4, 6),
            "experts": chosen,
            "weights": x(rows, 2),
            "num_experts": 2,
            "gate_bias": x(share, 4),
            "up_bias": x(share, 4),
            "down_bias": x(share, 6),
        },
        "scaled_dot_product_attention": lambda: {
            **{n: x(2, rows, 8) for n in ("query", "key", "value")},
            "scale": 0.5,
            "window": 0,
        },
        "packed_attention": lambda: {
            **{n: x(rows, 2, 8) for n in ("query", "key", "value")},
            "cu_seqlens": starts,
            "scale": 0.5,
            "window": 0,
        },
        "paged_attention": lambda: {
            "query": x(rows, 2, 8),
            "key_pages": pages,
            "value_pages": pages,
            "cu_seqlens": starts,
            "block_table": block_table,
            "cache_tokens": table([12]),
            "window": 0,
        },
        "paged_decode": lambda: {
            "query": x(1, 2, 8),
            "key_pages": pages,
            "value_pages": pages,
            "block_table": block_table,
            "cache_tokens": table([12]),
            "window": 0,
        },
        "moe_route": lambda: {
            "x": x(rows, 6),
            "gate": x(4, 6),
            "top_k": 2,
            "bias": x(4),
            "scoring_func": "sigmoid",
            "n_group": 2,
            "topk_group": 1,
            "group_score": "best_two",
            "routed_scaling_factor": 1.0,
        },
        "grouped_matmul": lambda: {
            "a": x(rows, 6),
            "b": x(2, 6, 4),
            "offsets": table([0, 1, rows]),
            "up": x(2, 6, 4),
            "bias": x(2, 4),
            "up_bias": x(2, 4),
        },
    }[name]()


def valid(name, size, rows, draw, form):
    """`form`: "numpy", "torch", or "gradient", tensors of which the first requires one."""
    arguments = arguments_of(name, size, rows, draw)
    if form == "numpy":
        return arguments
    arguments = {
        n: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for n, x in arguments.items()
    }
    if form == "gradient":
        next(iter(arguments.values())).requires_grad_()
    return arguments


def of_no_kind():
    """Values that are nothing that any function wants, or seldom."""
    return [
        None,
        "nonsense",
        -1,
        2**70,
        1.5,
        float("nan"),
        float("-inf"),
        [],
        [1.0],
        {},
        b"bytes",
        object,
        np.float64(2.5),
        np.ones(3),
        np.ones((2, 2), np.int64),
    ]


def other_arrays(like):
    """Arrays that are not as this one: of another type, shape, layout, order or place."""
    shape = tuple(like.shape)
    x = np.ones(shape, np.float32)
    found = [
        x.astype(np.int64),
        x.astype(complex),
        x.astype(bool),
        x.astype(object),
        x.astype(">f4"),
        np.full(shape, np.nan, np.float32),
        np.ones((*shape, 1), np.float32),
        np.ones(shape[:-1], np.float32),
        np.ones([n + 1 for n in shape], np.float32),
        np.ones([0] * len(shape), np.float32),
        np.float32(1),
        np.asfortranarray(x),
        np.broadcast_to(np.float32(1), shape),
        np.array(["text"]),
    ]
    if torch is not None:
        ones = torch.ones(shape)
        found += [
            ones,
            ones.to("meta"),
            ones.to_sparse(),
            ones.double().requires_grad_(),
            ones.bfloat16(),
            ones.to(torch.complex64).conj(),
        ]
    return found


def replaced(name, arguments, draw, *, group=True):
    """Makes one or two of the arguments wrong, also such as were left out; which."""
    names = list(arguments) + [
        n
        for n in inspect.signature(getattr(stretto, name)).parameters
        if n not in arguments and (group or n != "group")
    ]
    wrong = []
    for i in draw.choice(len(names), int(draw.integers(1, 3)), replace=False):
        argument = names[i]
        choices = of_no_kind()
        if hasattr(arguments.get(argument), "shape"):
            choices += other_arrays(arguments[argument]) * 2
        arguments[argument] = choices[draw.integers(len(choices))]
        wrong.append(argument)
    return wrong
