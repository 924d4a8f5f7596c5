"""Linear layers whose weights are split over the ranks, with the communication hidden behind the
product.

Two forms. Sequence parallel (default): activations between the layers are split by tokens, the
first dimension; a column-parallel layer gathers them, a row-parallel layer scatters its sums.
Plain: activations are the same on all ranks; the row-parallel layer sums over the ranks, and the
loss, the same on all ranks, counts once. The ranks are those of `group`, by default all.
"""

from __future__ import annotations

import math
from typing import Any, Optional, Tuple, Type, TypeVar

import torch
from torch import Tensor, nn

from . import _route
from ._world import GroupLike, group_of, name_of
from .errors import UserError

_route.load()
LayerT = TypeVar("LayerT", bound="_ParallelLinear")


class _ParallelLinear(nn.Module):
    """A linear layer of which each rank has 1/P of the outputs or of the inputs."""

    split = ""  # "out" or "in", of the class

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        sequence_parallel: bool = True,
        group: GroupLike = None,
        device: Any = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        super().__init__()
        self.group = name_of(group)
        sizes = {
            "in": self._part(in_features) if self.split == "in" else in_features,
            "out": self._part(out_features) if self.split == "out" else out_features,
        }
        self.in_features, self.out_features = in_features, out_features
        self.sequence_parallel = sequence_parallel
        self.weight = nn.Parameter(
            torch.empty(sizes["out"], sizes["in"], device=device, dtype=dtype)
        )
        self.bias = (
            nn.Parameter(torch.empty(sizes["out"], device=device, dtype=dtype)) if bias else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Random weights and a bias of zeros, as a new layer has them; for one that was made on the meta
        device. Every rank draws the whole weight, for which there must be memory meanwhile, and keeps its
        part: under the same seed on all, the parts together are the weight of a new torch.nn.Linear."""
        whole = torch.empty(
            self.out_features, self.in_features, device=self.weight.device, dtype=self.weight.dtype
        )
        nn.init.kaiming_uniform_(whole, a=math.sqrt(5))  # what torch.nn.Linear draws
        with torch.no_grad():
            self.weight.copy_(self._part_of(whole))
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def _part(self, features: int) -> int:
        size = group_of(self.group).size
        if features % size:
            raise UserError(
                f"{type(self).__name__}: {features} features cannot be split over {size} ranks"
            )
        return features // size

    def _part_of(self, weight: Tensor) -> Tensor:
        group = group_of(self.group)
        return weight.chunk(group.size, 0 if self.split == "out" else 1)[group.rank]

    @classmethod
    def from_linear(
        cls: Type[LayerT],
        linear: nn.Linear,
        *,
        sequence_parallel: bool = True,
        group: GroupLike = None,
    ) -> LayerT:
        """This rank's part of a whole layer, trained or frozen as that is."""
        made = cls(
            linear.in_features,
            linear.out_features,
            linear.bias is not None,
            sequence_parallel=sequence_parallel,
            group=group,
            device="meta",
            dtype=linear.weight.dtype,
        ).to_empty(device=linear.weight.device)
        with torch.no_grad():
            made.weight.copy_(made._part_of(linear.weight))
            if linear.bias is not None:
                bias = linear.bias
                made.bias.copy_(made._part_of(bias) if cls.split == "out" else bias)
                made.bias.requires_grad_(bias.requires_grad)
        made.weight.requires_grad_(linear.weight.requires_grad)
        return made.train(linear.training)

    def _factors(self, x: Tensor) -> Tuple[Tensor, Tensor, Optional[Tensor]]:
        """(x, weight, bias), in torch.autocast of its element type, as nn.functional.linear takes them."""
        factors = x, self.weight, self.bias
        device = x.device.type
        if not torch.is_autocast_enabled(device) or x.dtype == torch.float64:
            return factors
        dtype = torch.get_autocast_dtype(device)
        return tuple(y if y is None else y.to(dtype) for y in factors)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, sequence_parallel={self.sequence_parallel}"
            f"{f', group={self.group!r}' if self.group else ''}"
        )


class ColumnParallelLinear(_ParallelLinear):
    """Each rank has out_features / P columns of the result: weight [out_features / P, in_features],
    bias [out_features / P].

    Sequence parallel: [tokens / P, .., in_features] -> [tokens, .., out_features / P]; plain: [..,
    in_features] -> [.., out_features / P].
    """

    split = "out"

    def forward(self, x: Tensor) -> Tensor:
        x, weight, bias = self._factors(x)
        if not self.sequence_parallel:
            x = _route.layer.copy_to_ranks(x, self.group)
            return nn.functional.linear(x, weight, bias)
        y = _route.layer.all_gather_matmul(x, weight.t(), 0, self.group)
        return y if bias is None else y + bias


class RowParallelLinear(_ParallelLinear):
    """Each rank has in_features / P of the inputs: weight [out_features, in_features / P]; bias
    [out_features] on every rank.

    Sequence parallel: [tokens, .., in_features / P] -> [tokens / P, .., out_features]; plain: [..,
    in_features / P] -> [.., out_features] on every rank.
    """

    split = "in"

    def forward(self, x: Tensor) -> Tensor:
        x, weight, bias = self._factors(x)
        if self.sequence_parallel:
            y = _route.layer.matmul_reduce_scatter(x, weight.t(), 0, "sum", self.group)
            if bias is None:
                return y
            # Each rank adds the bias to rows of its own, so that gradients add up.
            return y + _route.layer.copy_to_ranks(bias, self.group)
        y = _route.layer.matmul_all_reduce(x, weight.t(), True, self.group)
        return y if bias is None else y + bias
