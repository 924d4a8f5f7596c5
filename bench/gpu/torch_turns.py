"""Calls of several makers on one GPU, timed in turn: all meet the clocks that they leave together."""

import time

import torch

WARMUP_S = 1.0  # power is capped over tenths of a second


def in_turn(calls: dict, samples: int) -> dict:
    """Milliseconds {name: [sample, ..]} of calls {name: one for each set of operands}, those of a set in turn."""
    sets = len(next(iter(calls.values())))
    begin, at = time.monotonic(), 0
    while time.monotonic() - begin < WARMUP_S:
        for call in calls.values():
            call[at % sets]()
        at += 1
        torch.cuda.synchronize()
    marks = {name: [] for name in calls}
    for call in calls.values():  # the device is busy when the first sample is enqueued
        call[at % sets]()
    for sample in range(samples):
        for name, call in calls.items():
            pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            pair[0].record()
            call[(at + sample) % sets]()
            pair[1].record()
            marks[name].append(pair)
    torch.cuda.synchronize()
    return {name: [begin.elapsed_time(end) for begin, end in pairs] for name, pairs in marks.items()}
