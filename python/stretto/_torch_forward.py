"""Operators without a gradient in torch.library, beside those of _torch.py. Each calls the function
of its name on tensors that autograd knows nothing of."""

from __future__ import annotations

import functools
from typing import Callable

import torch
from torch import Tensor

from . import attention, ulysses
from ._torch import _define, _refuse_gradients
from ._world import current


def _forward(schema: str, body: Callable, fake: Callable):
    @functools.wraps(body)
    def detached(*inputs):
        return body(*(x.detach() if isinstance(x, Tensor) else x for x in inputs))

    op = _define(schema, detached, fake)
    _refuse_gradients(op, detached, schema.partition("(")[0])
    return op


def _packed_attention(query, key, value, cu_seqlens, is_causal, scale, return_lse):
    options = {"is_causal": is_causal, "scale": scale, "return_lse": return_lse}
    made = attention.packed_attention(query, key, value, cu_seqlens, **options)
    return made if return_lse else (made, _no_lse(query))


def _no_lse(query):
    return query.new_empty(0, dtype=torch.float32)


def _packed_fake(query, _key, _value, _cu_seqlens, _is_causal, _scale, return_lse):
    lse = query.new_empty((query.shape[1], query.shape[0]), dtype=torch.float32)
    return query.new_empty(query.shape), lse if return_lse else _no_lse(query)


packed_attention = _forward(
    "packed_attention(Tensor query, Tensor key, Tensor value, Tensor cu_seqlens, bool is_causal,"
    " float? scale, bool return_lse) -> (Tensor, Tensor)",
    _packed_attention,
    _packed_fake,
)
paged_attention = _forward(
    "paged_attention(Tensor query, Tensor key_pages, Tensor value_pages, Tensor cu_seqlens,"
    " Tensor block_table, Tensor cache_tokens, bool is_causal, float? scale) -> Tensor",
    lambda q, k, v, starts, table, tokens, is_causal, scale: attention.paged_attention(
        q, k, v, starts, table, tokens, is_causal=is_causal, scale=scale
    ),
    lambda query, *_: query.new_empty(query.shape),
)
matmul_all_to_all = _forward(
    "matmul_all_to_all(Tensor a, Tensor b, Tensor? bias) -> Tensor",
    lambda a, b, bias: ulysses.matmul_all_to_all(a, b, bias=bias),
    lambda a, b, _: a.new_empty((a.shape[0] * current().size, b.shape[1] // current().size)),
)
all_to_all_matmul = _forward(
    "all_to_all_matmul(Tensor a, Tensor b, Tensor? bias) -> Tensor",
    lambda a, b, bias: ulysses.all_to_all_matmul(a, b, bias=bias),
    lambda a, b, _: a.new_empty((a.shape[0] // current().size, b.shape[1])),
)
