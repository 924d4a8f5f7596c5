"""What the tests on GPUs have in common: the ranks of torchrun, random tensors, comparisons."""

import json
import os
import pathlib
import sys
import tempfile
import traceback
import unittest

import torch
import torch.distributed as dist

import stretto

RANK, SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
SHARE = os.environ.get("STRETTO_TEST_SHARE_GPU") == "1"
SEED = int(os.environ.get("STRETTO_TEST_SEED") or 0)  # set by the script for all ranks
HAS_CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0 if SHARE else int(os.environ.get("LOCAL_RANK", "0")))
TOLERANCE = {torch.float32: (1e-4, 1e-4), torch.bfloat16: (2e-2, 6e-2), torch.float16: (4e-3, 2e-2)}
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def setUpModule():
    if not HAS_CUDA:
        raise unittest.SkipTest("no CUDA")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.cuda.set_device(DEVICE)
    if "RANK" in os.environ:
        dist.init_process_group("gloo" if SHARE else "cpu:gloo,cuda:nccl")
    stretto.init(share_gpus=SHARE)
    torch.manual_seed(SEED * 64 + RANK)


def tearDownModule():
    stretto.finalize()
    if dist.is_initialized():
        dist.destroy_process_group()


def from_all(x):
    """Every rank's x, by torch.distributed."""
    x = x.detach().contiguous()
    if SIZE == 1:
        return [x]
    source = x.cpu() if SHARE else x
    all_of = [torch.empty_like(source) for _ in range(SIZE)]
    dist.all_gather(all_of, source)
    return [y.to(x.device) for y in all_of]


def total(x):
    return sum(y.float() for y in from_all(x))


def randn(*shape, dtype=torch.bfloat16, scale=1.0):
    return (torch.randn(*shape, device=DEVICE) * scale).to(dtype)


def of_rank_0(value):
    values = [value]
    if SIZE > 1:
        dist.broadcast_object_list(values, 0)
    return values[0]


def meet():
    torch.cuda.synchronize()
    if SIZE > 1:
        dist.barrier()


class GpuTest(unittest.TestCase):
    stops_others = True  # where one fails

    def run(self, result=None):
        """Stops every rank at the first test that fails on one: calls of the ranks no longer belong together."""
        before = len(result.failures) + len(result.errors)
        super().run(result)
        failed = len(result.failures) + len(result.errors) > before
        if SIZE > 1 and dist.is_initialized():
            on_ranks = [False] * SIZE
            dist.all_gather_object(on_ranks, failed)
            failed = any(on_ranks)
        if failed and self.stops_others:
            result.stop()

    def same(self, got, want, dtype=None):
        rtol, atol = TOLERANCE[dtype or got.dtype]
        torch.testing.assert_close(got.float(), want.float(), rtol=rtol, atol=atol)


class FirstCalls(GpuTest):
    """That stretto.warm_up does for GPUs what first calls take long for. Before the other tests of a file, which then
    find the programs of calls() where warm_up() has left them: each rank those of its share."""

    stops_others = False  # no rank needs another for warm_up()

    def warmed(self, calls):
        """calls: functions of nothing, the same on every rank, that make calls with GPU tensors."""
        folder = of_rank_0(tempfile.mkdtemp(prefix="stretto-warmed-") if RANK == 0 else None)
        os.environ["STRETTO_CACHE_DIR"] = folder
        share = calls[RANK::SIZE]
        try:
            count = stretto.warm_up(lambda: [call() for call in share], world_size=SIZE)
            error = "" if count >= len(share) else f"{count} programs of {len(share)} calls"
        except Exception:  # which others would wait for
            error = traceback.format_exc()
        errors = [error]
        if SIZE > 1:
            errors = [""] * SIZE
            dist.all_gather_object(errors, error)
        self.assertFalse(any(errors), "\n".join(errors))
        kept = self.files(folder)
        meet()
        for call in calls:
            call()
        meet()
        self.assertEqual(self.files(folder), kept, "made by first calls although it was warmed up")

    def files(self, folder):
        return sorted(str(path) for path in pathlib.Path(folder).rglob("*") if path.is_file())


class Result(unittest.TextTestResult):
    """Prints what fails when it does: a later test may not end."""

    def addError(self, test, err):
        super().addError(test, err)
        self.show(test, self.errors[-1][1])

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.show(test, self.failures[-1][1])

    def show(self, test, text):
        print(f"rank {RANK}: {test}\n{text}", file=sys.stderr, flush=True)


def main():
    """Runs the tests of the file that is the program; rank 0 writes what they came to to the file that
    STRETTO_TEST_SUMMARY names."""
    if RANK != 0:  # one report is enough, and others' failures
        sys.stdout = open(os.devnull, "w", encoding="utf-8")
    runner = unittest.TextTestRunner(verbosity=1 if RANK else 2, resultclass=Result)
    result = unittest.main(testRunner=runner, exit=False).result
    path = os.environ.get("STRETTO_TEST_SUMMARY")
    if path and RANK == 0:
        write_summary(result, path)
    sys.exit(0 if result.wasSuccessful() else 1)


def write_summary(result, path):
    summary = {
        "ranks": SIZE,
        "gpu": torch.cuda.get_device_name(DEVICE) if HAS_CUDA else None,
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "seed": SEED,
        "tests": result.testsRun,
        "failed": [str(test) for test, _ in result.failures + result.errors],
        "skipped": {str(test): reason for test, reason in result.skipped},
    }
    with open(path, "w", encoding="utf-8") as file:
        json.dump(summary, file)
