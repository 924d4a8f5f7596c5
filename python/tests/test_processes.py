"""One process per rank, started as torchrun starts them."""

import concurrent.futures
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time

import pytest


def start(size, code, *, argument="-c", **variables):
    """A process per rank that runs the code, or with "-i" what is typed."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    processes = []
    for rank in range(size):
        environment = {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": str(size),
            "LOCAL_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
            "STRETTO_MASTER_PORT": str(port),
            "STRETTO_TIMEOUT_MS": "20000",
            "PYTHONFAULTHANDLER": "1",
            **variables,
        }
        processes.append(
            subprocess.Popen(
                [sys.executable, argument, *([textwrap.dedent(code)] if code else [])],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    return processes


def finish(processes, seconds=600, after_failure=120):
    """[(exit code, output, errors)] by rank. Only what hangs takes `seconds`, also on a loaded machine, or
    `after_failure` once another rank has failed, of which the deadlines of calls tell the others long
    before. What hangs is ended, and its errors say where each of its threads is."""
    with concurrent.futures.ThreadPoolExecutor(len(processes)) as readers:
        reading = [readers.submit(process.communicate) for process in processes]
        try:
            begin, failed = time.monotonic(), None
            while not all(read.done() for read in reading):
                now = time.monotonic()
                if failed is None and any(process.poll() for process in processes):
                    failed = now
                if now - begin > seconds or (failed is not None and now - failed > after_failure):
                    break
                concurrent.futures.wait(reading, 0.1)
        finally:
            for process in processes:
                if process.poll() is None:
                    process.send_signal(signal.SIGABRT)  # PYTHONFAULTHANDLER
            for process, read in zip(processes, reading):
                try:
                    read.exception(20)
                except concurrent.futures.TimeoutError:
                    process.kill()
    return [(process.returncode, *read.result()) for process, read in zip(processes, reading)]


def test_what_hangs_is_ended_and_tells_where():
    hangs = "import time\ndef asleep(): time.sleep(600)\nasleep()"
    begin = time.monotonic()
    for code, output, errors in finish(start(2, hangs), seconds=2):
        assert code == -signal.SIGABRT and "in asleep" in errors, errors
    fails = "import os, sys\nif os.environ['RANK'] == '1': sys.exit('failed')\n" + hangs
    (code, _, errors), other = finish(start(2, fails), after_failure=2)
    assert code == -signal.SIGABRT and "in asleep" in errors and other == (1, "", "failed\n")
    assert time.monotonic() - begin < 120


def test_operators():
    for rank, (code, output, errors) in enumerate(
        finish(
            start(
                3,
                """
                import numpy as np, stretto
                stretto.init()
                r, size = stretto.rank(), stretto.world_size()
                x = np.full((4, 6), r + 1, np.float32)
                assert (stretto.all_reduce(x) == 6).all()
                weight = np.ones((5, 6), np.float32)
                c = stretto.all_gather_matmul(x, weight.T)
                assert c.shape == (12, 5) and (c == 6 * np.repeat([1, 2, 3], 4)[:, None]).all()
                mine = stretto.symm_mem.empty(2, 3, dtype="float64")
                mine[...] = r
                assert (stretto.all_gather(mine)[::2, 0] == [0, 1, 2]).all()
                to_itself = [0] * r + [r + 1] + [0] * (2 - r)
                rows = stretto.all_to_all(np.full((r + 1, 2), r, np.int64), None, to_itself)
                assert rows.tolist() == [[r, r]] * (r + 1)
                stretto.barrier()
                stretto.finalize()
                assert (mine == r).all()  # arrays outlive the world
                stretto.init()
                stretto.barrier()
                print("good")
                """,
            )
        )
    ):
        assert (code, output) == (0, "good\n"), f"rank {rank}: {errors}"


def test_ranks_that_disagree():
    errors = []
    for code, output, said in finish(
        start(
            2,
            """
            import numpy as np, stretto
            stretto.init()
            try:
                stretto.all_gather(np.ones((2 + stretto.rank(), 2), np.float32))
            except stretto.UserError as error:
                print(error)
            assert (stretto.all_reduce(np.ones(4, np.float32)) == 2).all()
            """,
        )
    ):
        assert code == 0, said
        errors.append(output)
    assert errors[0] == errors[1] and "4" in errors[0]


@pytest.mark.parametrize("end", ["kill", "raise"])
def test_a_rank_that_dies_is_named(end):
    processes = start(
        3,
        f"""
        import os, sys, numpy as np, stretto
        stretto.init()
        x = np.ones(4, np.float32)
        try:
            stretto.all_reduce(x)
            print("ready", flush=True)
            if stretto.rank() == 1:
                sys.stdin.readline() if {end == 'kill'} else None
                raise KeyError("mine")
            while True:
                stretto.all_reduce(x)
        except stretto.Fault as fault:
            print("rank 1" in str(fault), flush=True)
        """,
    )
    if end == "kill":
        assert processes[1].stdout.readline() == "ready\n"
        processes[1].send_signal(signal.SIGKILL)
    for rank, (code, output, errors) in enumerate(finish(processes)):
        if rank != 1:
            assert code == 0 and output.endswith("True\n"), f"rank {rank}: {errors}"


def test_a_rank_that_has_shown_an_error_to_a_user_leaves_as_others_do():
    """Who types goes on after an error, which Python remembers as the last."""
    typed = """
        import os, time, numpy as np, stretto
        world = stretto.init()
        1 / 0
        total = stretto.all_reduce(np.ones(4, np.float32))
        for _ in range(20 * stretto.rank()): time.sleep(0.05)

        print("left" if stretto.rank() == 0 else "good", *total, flush=True)
        try: stretto.all_reduce(total) if stretto.rank() else None
        except stretto.Fault as fault: print("died" in str(fault), flush=True)

        exit()
    """
    processes = start(2, "", argument="-i")
    for process in processes:
        process.stdin.write(textwrap.dedent(typed))
        process.stdin.flush()
    first, other = finish(processes)
    assert first[:2] == (0, "left 2.0 2.0 2.0 2.0\n"), first
    assert other[:2] == (0, "good 2.0 2.0 2.0 2.0\nFalse\n"), other


def faults_without(missing):
    """What the other two of three ranks say of one that is killed at once."""
    processes = start(
        3,
        """
        import stretto
        try:
            stretto.init(timeout=2)
        except stretto.Fault as fault:
            print(fault)
        """,
    )
    processes[missing].kill()
    ended = finish(processes)
    del ended[missing]
    for code, _, errors in ended:
        assert code == 0, errors
    return [output for _, output, _ in ended]


def test_a_rank_that_does_not_come():
    for output in faults_without(2):
        assert "rank 2" in output


def test_rank_0_that_does_not_come():
    for output in faults_without(0):
        assert "rank 0 did not answer at 127.0.0.1:" in output and "nobody listens" in output


def test_an_interrupt_ends_a_wait(tmp_path):
    """For a rank that does not come to init(), and to a call; the others are told."""
    code = f"""
        import os, pathlib, signal, threading, time, numpy as np, stretto
        place = pathlib.Path({str(tmp_path)!r})
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run in the background

        def interrupted(wait):
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                wait()  # at the deadline it is a Fault
            except KeyboardInterrupt:
                return True

        if "LATE" in os.environ:
            assert interrupted(lambda: stretto.init(timeout=60))
        else:
            stretto.init(timeout=60)
            x = np.ones(4, np.float32)
            for turn in range(3):
                call = stretto.barrier if turn == 0 else lambda: stretto.all_reduce(x)
                stretto.all_reduce(x)
                if stretto.rank() == 0:
                    assert interrupted(call)
                    (place / str(turn)).touch()
                while not (place / str(turn)).exists():
                    time.sleep(0.05)
                try:
                    call()
                except stretto.Fault as fault:
                    assert "rank 0 was interrupted" in str(fault)
                stretto.recover()
            assert (stretto.all_reduce(x) == 2).all()
        print("good")
    """
    for rank, (code_of_rank, output, errors) in enumerate(finish(start(2, code))):
        assert (code_of_rank, output) == (0, "good\n"), f"rank {rank}: {errors}"
    first, other = start(2, code, LATE="1")
    other.kill()
    code_of_rank, output, errors = finish([first, other])[0]
    assert (code_of_rank, output) == (0, "good\n"), errors


def test_nobody_leaves_or_recovers_while_a_call_is_under_way(tmp_path):
    """In another thread, or where a signal's handler interrupts it: that is refused, and the call ends
    well."""
    code = f"""
        import os, pathlib, signal, threading, time, numpy as np, stretto
        place = pathlib.Path({str(tmp_path)!r})
        stretto.init(timeout=60)
        stretto.new_group([0, 1], name="g")
        x = np.ones(4, np.float32)

        def refused(leave, *arguments):
            try:
                leave(*arguments)
            except stretto.UserError as error:
                assert "is within a call" in str(error), error
                return
            assert False

        def all_refused(*_):
            time.sleep(0.5)
            refused(stretto.finalize)
            refused(leave_group, group)
            (place / str(turn)).touch()

        def call():
            assert (stretto.all_reduce(x, group=group) == 2).all()

        turn = 0
        signal.signal(signal.SIGUSR1, all_refused)
        for group in (None, "g"):
            for leave_group in (stretto.finalize, stretto.recover):
                for interrupts in (False, True):
                    call()
                    if stretto.rank() == 1:
                        while not (place / str(turn)).exists():
                            time.sleep(0.05)
                        call()
                    elif interrupts:
                        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGUSR1)).start()
                        call()
                    else:
                        waiting = threading.Thread(target=call)
                        waiting.start()
                        all_refused()
                        waiting.join()
                    turn += 1
        stretto.finalize("g")
        assert (stretto.all_reduce(x) == 2).all()
        stretto.finalize()
        print("good")
    """
    for rank, (code_of_rank, output, errors) in enumerate(finish(start(2, code))):
        assert (code_of_rank, output) == (0, "good\n"), f"rank {rank}: {errors}"


def test_many_worlds_one_after_the_other_leak_nothing():
    """STRETTO_SOAK=1: a thousand."""
    soak = "STRETTO_SOAK" in os.environ
    code = """
    import gc, os, weakref, numpy as np, stretto
    x, groups = np.ones((4, 6), np.float32), []

    def cycle():
        groups.append(weakref.ref(stretto.init()))
        size = stretto.world_size()
        mine = stretto.symm_mem.empty(4, 6)
        assert (stretto.all_reduce(x) == size).all() and not stretto.all_gather(mine).any()
        stretto.all_reduce_add_rms_norm(x, x, x[0])
        stretto.finalize()

    def state():
        gc.collect()
        maps = open("/proc/self/maps", encoding="utf-8").read().count("stretto ")
        alive = sum(g() is not None for g in groups)
        return maps, alive, len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    for _ in range(3):
        cycle()
    before = state()
    for _ in range(1000 if "STRETTO_SOAK" in os.environ else 30):
        cycle()
    assert state() == before and before[:2] == (0, 0), (before, state())
    """
    for rank, (code_of_rank, _, errors) in enumerate(finish(start(2, code))):
        assert code_of_rank == 0, f"rank {rank}: {errors}"
