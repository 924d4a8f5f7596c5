"""Which way to run a product takes the least time on these GPUs, measured instead of predicted."""

from __future__ import annotations

import concurrent.futures
import contextlib
import math
import os
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple

from . import _core
from ._calls import whole
from ._group import compile_ahead, use_programs
from ._products import keys_of
from ._world import _member
from .errors import Rejected, UserError

_CACHE_BYTES = 64 << 20  # more than a GPU's L2
_MOST_SETS = 16
_MS_OF_SAMPLES = 40.0  # of each of two that are timed in turn


class Tuned(NamedTuple):
    """A product that `tune` has measured."""

    call: str  # in words
    config: str  # the fastest; "sequence": collective and product one after the other
    ms: float  # of that
    predicted: str  # the config that is taken without measuring
    measured: Dict[str, float]  # milliseconds of all, by config
    predictions: Dict[str, float]  # the same, as predicted


class Tuner:
    """Of a tune() under way, of one rank."""

    def __init__(self, most_fused: int, progress: Optional[Callable[[Tuned], None]]):
        self._most_fused = most_fused
        self._progress = progress
        self._done: Set[Any] = set()
        self.found: List[Tuned] = []

    def tune(
        self, product: Any, program: str, desc: Dict[str, Any], key: Any, size: Any, run: Callable[[Any], None]
    ) -> None:
        """Of what `program` of _core offers for this desc, run(offer) enqueues one; the fastest is what the
        group launches under `key` from now on. Once for each key."""
        kind, group = product.kind, product.group
        sms, on = kind.num_sms(product.a), kind.gpu_name(product.a)
        if (id(group), sms, key) in self._done:
            return
        self._done.add((id(group), sms, key))
        offered = getattr(_core, f"{program}_offers")(sms, self._most_fused, **desc)
        if len(offered) == 1:
            return
        offers = [(config, programs) for config, programs, _ in offered]
        compiled = _compiled(sms, key, size.exact, offers)
        weights = _sets_of(kind, product.weights)
        addresses = [kind.address(x) for x in weights]
        fastest: List[Any] = []
        best = offers[0]
        measured: Dict[str, float] = {}
        for offer in compiled:
            run(offer)  # makes memory, loads kernels
            steps = [_in_turn(step, addresses) for step in group.steps_of(lambda: run(offer))]
            with group.used():
                ms, won = _core.contest(group.session, steps, fastest, _MS_OF_SAMPLES)
            measured[offer[0]] = ms
            if won:
                fastest, best = steps, offer
        getattr(_core, f"keep_{program}")(sms, on, best[0], measured[best[0]], **desc)
        use_programs(sms, key, best)
        predictions = {config: ms for config, _, ms in offered if config in measured}
        self.found.append(
            Tuned(size.said, best[0], measured[best[0]], offers[0][0], measured, predictions)
        )
        if self._progress is not None:
            self._progress(self.found[-1])


def _compiled(sms: int, key: Any, exact: bool, offers: List[Any]) -> List[Any]:
    """Those that can be proved and compiled, side by side, as launch() will look for them."""

    def make(step_key: Any, program: Any) -> None:
        compile_ahead((sms, step_key, exact), lambda _: program)

    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        pending = []
        for offer in offers:
            pending.append([pool.submit(make, *made) for made in zip(keys_of(key, offer), offer[1])])
        good = []
        for offer, futures in zip(offers, pending):
            with contextlib.suppress(UserError, Rejected):
                for future in futures:
                    future.result()
                good.append(offer)
    if not good:
        raise UserError(f"tune: no config of {offers[0][1][0].name} can be compiled")
    return good


def _sets_of(kind: Any, weights: Any) -> List[Any]:
    """The weights, and so many copies that none is in the GPU's cache when its turn comes."""
    size_bytes = math.prod(weights.shape) * kind.itemsize(weights)
    count = min(_CACHE_BYTES // max(size_bytes, 1) + 1, _MOST_SETS)
    return [weights, *(kind.copy(weights) for _ in range(count - 1))]


def _in_turn(step: Tuple[Any, ...], weights: List[int]) -> Tuple[Any, ...]:
    """The launch, with the address of each of the weights in turn."""
    executable, addresses, extents, said = step
    turns = [[w if a == weights[0] else a for a in addresses] for w in weights]
    return executable, turns, extents, said


def tune(
    calls: Callable[[], Any],
    *,
    most_fused: int = 6,
    progress: Optional[Callable[[Tuned], None]] = None,
) -> List[Tuned]:
    """Measures how the products with a collective that `calls()` makes run fastest on these GPUs, and runs
    them so from then on: all_gather_matmul, matmul_reduce_scatter, matmul_all_reduce, matmul_all_gather.

    Collective: every rank makes the same calls, after init(). Each call runs, and its result is there
    afterwards. Of a shape that is new here up to `most_fused` fused configs beside the predicted one, those
    that are predicted to be the fastest, are timed in turn, and collective and product one after the other
    (not with `init(sequence=False)`): some seconds a shape, most of them for compiling. What takes the least
    time on the slowest rank is kept on disk (STRETTO_CACHE_DIR) for every later process on GPUs of that name,
    by the shape, and used there without another call of this. `progress(tuned)` is called after each shape.

    Returns what was measured. On CPUs, and with `init(choose_configs=False)`, nothing is. Other calls run as
    they do without it; so do those of `async_op`.

    Errors: those of the calls."""
    tuner = Tuner(whole("tune", "most_fused", most_fused), progress)
    groups = list(_member().each())
    if not groups:
        raise UserError("tune: call init() first")
    if any(group.tuner is not None for group in groups):
        raise UserError("tune: is under way")
    for group in groups:
        group.tuner = tuner
    try:
        calls()
    finally:
        for group in groups:
            group.tuner = None
            group.plans.clear()  # those of products that run otherwise now
    return tuner.found
