"""docs/guide/python.md says what works: its Python blocks run in order on two ranks, and its commands start ranks."""

import importlib.util
import os
import re
import subprocess
import sys

import pytest

from conftest import ROOT
from test_processes import finish, start

HAS_TORCH = importlib.util.find_spec("torch") is not None
PAGE = (ROOT / "docs" / "guide" / "python.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```([^\n]*)\n(.*?)^```$", PAGE, re.S | re.M)  # (kind, text)
COMMANDS = [line for kind, text in BLOCKS if kind == "sh ranks" for line in text.splitlines()]


def test_every_block_is_run():
    """Here, or by tools/run_docs those that install."""
    here = {"python", "python torch", "python first.py", "python product.py", "python train.py", "sh ranks"}
    assert {kind for kind, _ in BLOCKS} == here | {"sh fresh long"}
    assert len(COMMANDS) == 4


def test_pages_blocks(root):
    kinds = {"python", "python first.py"} | ({"python torch"} if HAS_TORCH else set())
    script = "\n".join(text for kind, text in BLOCKS if kind in kinds)
    script = f"import os; os.chdir({str(root)!r})\n" + script
    for rank, (code, _, errors) in enumerate(finish(start(2, script))):
        assert code == 0, f"rank {rank}: {errors}"


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_that_start_ranks(root, tmp_path, command):
    (program,) = re.findall(r"\w+\.py", command)
    (text,) = [text for kind, text in BLOCKS if kind == f"python {program}"]
    if not HAS_TORCH and ("torchrun" in command or "import torch" in text):
        pytest.skip("PyTorch is not installed")
    if "torchrun" not in command and not (root / "build" / "bin" / "stretto").exists():
        pytest.skip("build/bin/stretto is not there")
    seen = """
import pathlib
pathlib.Path(f"{stretto.rank()} of {stretto.world_size()}").touch()
stretto.barrier()
"""
    (tmp_path / program).write_text(text + seen, encoding="utf-8")
    (tmp_path / "build").symlink_to(root / "build")
    # torchrun of this Python, at a port that is free.
    command = re.sub(r"^torchrun", f"{sys.executable} -m torch.distributed.run", command)
    command = command.replace(" python ", f" {sys.executable} ")
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=tmp_path,
        env={**os.environ, "PET_STANDALONE": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(p.name for p in tmp_path.glob("* of *")) == ["0 of 2", "1 of 2"]
