"""Calls of several makers on one GPU, timed in turn: all meet the clocks that they leave together. And contests: of
calls that are compared with what is right before they are timed, as graphs. Without a GPU everything runs on the CPU,
uncaptured, which is how the scripts are tested; such times mean nothing."""

import time

import torch

WARMUP_S = 1.0  # power is capped over tenths of a second
MOST_SETS = 16
ROUND_MS = 3.0  # of a contest: graphs repeat short calls until all of them together take about this long
MOST_REPEATS = 16
ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"


class HostEvent:
    """A torch.cuda.Event of calls that run on the CPU."""

    def __init__(self):
        self.at = 0.0

    def record(self) -> None:
        self.at = time.perf_counter()

    def elapsed_time(self, later: "HostEvent") -> float:
        return 1e3 * (later.at - self.at)


def event():
    return torch.cuda.Event(enable_timing=True) if ON_GPU else HostEvent()


def synchronize() -> None:
    if ON_GPU:
        torch.cuda.synchronize()


def in_turn(calls: dict, samples: int, warmup_s: float = WARMUP_S) -> dict:
    """Milliseconds {name: [sample, ..]} of calls {name: one for each set of operands}, those of a set in turn."""
    sets = len(next(iter(calls.values())))
    begin, at = time.monotonic(), 0
    while time.monotonic() - begin < warmup_s:
        for call in calls.values():
            call[at % sets]()
        at += 1
        synchronize()
    marks = {name: [] for name in calls}
    for call in calls.values():  # the device is busy when the first sample is enqueued
        call[at % sets]()
    for sample in range(samples):
        for name, call in calls.items():
            pair = [event() for _ in range(2)]
            pair[0].record()
            call[(at + sample) % sets]()
            pair[1].record()
            marks[name].append(pair)
    synchronize()
    return {name: [begin.elapsed_time(end) for begin, end in pairs] for name, pairs in marks.items()}


def captured(call) -> callable:
    if not ON_GPU:
        return call
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def num_sets(set_bytes: int) -> int:
    """Sets of operands whose bytes together pass twice the L2 cache; very few bytes stay in it."""
    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size if ON_GPU else set_bytes // 2
    return min(2 * l2_bytes // set_bytes + 1, MOST_SETS)


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """|got - want| / |want| of the row where that is the greatest; both have the same shape."""
    want = want.float()
    return ((got.float() - want).norm(dim=-1) / want.norm(dim=-1)).max().item()


def contest(calls: dict, error_of, most_error: dict, samples: int, warmup_s: float, eager=frozenset()) -> dict:
    """The contestants' part of a row of results, of calls {name: one for each set of operands}, each of which returns
    its result. First every contestant runs once: error_of(name, result) says how far the result of set 0 is from what
    is right, at most most_error[name] or most_error[""]. Those that are right are then timed in turn, each a graph of
    calls of all sets, those named in eager call by call. {"errors": {name: error}, "refused": {name: why it is not
    timed}, "calls_per_graph": number, "graph": {name: [milliseconds of a call, ..]}}."""
    row = {"errors": {}, "refused": {}}
    for name, of_sets in calls.items():
        try:
            row["errors"][name] = error_of(name, of_sets[0]())
            most = most_error.get(name, most_error[""])
            if not row["errors"][name] <= most:
                row["refused"][name] = f"off by {row['errors'][name]:.3g}, allowed {most:g}"
        except Exception as error:  # whatever PyTorch throws belongs into the result
            row["refused"][name] = first_line(error)
    calls = {name: of_sets for name, of_sets in calls.items() if name not in row["refused"]}
    if not calls:
        return row
    repeats = repeats_of(calls)
    row["calls_per_graph"] = repeats * len(next(iter(calls.values())))
    graphs = {}
    for name, of_sets in calls.items():
        try:
            all_sets = lambda of_sets=of_sets: [call() for call in of_sets * repeats] and None
            graphs[name] = [all_sets if name in eager else captured(all_sets)]
        except Exception as error:
            row["refused"][name] = "capture: " + first_line(error)
    if graphs:
        row["graph"] = {name: [ms / row["calls_per_graph"] for ms in values]
                        for name, values in in_turn(graphs, samples, warmup_s).items()}
    return row


def repeats_of(calls: dict) -> int:
    """How often a graph has the calls of all sets, by how long they take without one."""
    for _ in range(2):  # the first meets memory that is not there yet
        synchronize()
        begin = time.perf_counter()
        for of_sets in calls.values():
            for call in of_sets:
                call()
        synchronize()
        ms = 1e3 * (time.perf_counter() - begin)
    return min(max(1, round(ROUND_MS / ms)), MOST_REPEATS)


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".split("\n", maxsplit=1)[0][:300]
