"""One process per rank, as start() and finish() of test_processes.py have them, but forks of one process that has
imported PyTorch: an import takes longer than most tests."""

import atexit
import functools
import json
import pathlib
import socket
import subprocess
import sys
import tempfile
import textwrap

SERVER = """
import atexit, faulthandler, gc, json, os, signal, sys, time, traceback
import torch, torch._dynamo, torch.distributed, stretto, stretto.nn

def become(rank, asked):
    os.environ.update(asked["variables"], RANK=str(rank), LOCAL_RANK=str(rank))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in ((1, "output"), (2, "errors")):
        path = os.path.join(asked["folder"], f"{name}{rank}")
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    faulthandler.enable()
    torch.set_num_threads(1)

def ends_of(ranks, asked):
    begin, failed, ends = time.monotonic(), None, {}
    while len(ends) < len(ranks):
        pid, status = os.waitpid(-1, os.WNOHANG)
        now = time.monotonic()
        if pid:
            ends[ranks[pid]] = os.waitstatus_to_exitcode(status)
            failed = now if status and failed is None else failed
            continue
        if now - begin > asked["seconds"] or (failed is not None and now - failed > asked["after_failure"]):
            hard = now - begin > asked["seconds"] + 20
            for pid in [pid for pid, rank in ranks.items() if rank not in ends]:
                os.kill(pid, signal.SIGKILL if hard else signal.SIGABRT)
            time.sleep(1)
        time.sleep(0.01)
    return [ends[rank] for rank in sorted(ends)]

gc.freeze()  # what a fork collects it copies
for line in sys.stdin:
    asked, ranks, is_rank = json.loads(line), {}, False
    for rank in range(asked["size"]):
        pid = os.fork()
        is_rank = pid == 0
        if is_rank:
            become(rank, asked)
            break
        ranks[pid] = rank
    if is_rank:
        status = 1
        try:
            exec(asked["code"])
            status = 0
        except BaseException:
            traceback.print_exc()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(status)  # an interpreter with PyTorch takes a second to end
    print(json.dumps(ends_of(ranks, asked)), flush=True)
"""


@functools.lru_cache(maxsize=1)
def server():
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(process.communicate)
    return process


def run_forks(size, code, *, seconds=600, after_failure=120, **variables):
    """[(exit code, output, errors)] by rank, with a port of its own for torch.distributed. What hangs is ended after
    `seconds`, or `after_failure` once another rank has failed, and its errors say where each of its threads is."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        ports = one.getsockname()[1], other.getsockname()[1]
    variables = {
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(ports[0]),
        "STRETTO_MASTER_PORT": str(ports[1]),
        "STRETTO_TIMEOUT_MS": "60000",
        **variables,
    }
    with tempfile.TemporaryDirectory() as folder:
        asked = {
            "size": size,
            "code": textwrap.dedent(code),
            "variables": variables,
            "folder": folder,
            "seconds": seconds,
            "after_failure": after_failure,
        }
        server().stdin.write(json.dumps(asked) + "\n")
        server().stdin.flush()
        ends = json.loads(server().stdout.readline())
        texts = [
            [(pathlib.Path(folder) / f"{name}{rank}").read_text(encoding="utf-8") for name in ("output", "errors")]
            for rank in range(size)
        ]
    return [(end, *text) for end, text in zip(ends, texts)]


def run_on_forks(size, code, **variables):
    for rank, (status, _, errors) in enumerate(run_forks(size, code, **variables)):
        assert status == 0, f"rank {rank}: {errors}"
