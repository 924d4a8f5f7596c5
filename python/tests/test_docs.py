"""docs/pytorch.md says what works: its Python blocks run in order on two ranks, and its commands start ranks."""

import importlib.util
import os
import re
import subprocess
import sys

import pytest

from test_processes import finish, start

HAS_TORCH = importlib.util.find_spec("torch") is not None


def page(root):
    return (root / "docs" / "pytorch.md").read_text(encoding="utf-8")


def test_pages_blocks(root):
    blocks = re.findall(r"```python( torch)?\n(.*?)```", page(root), re.S)
    assert len(blocks) >= 8
    script = "\n".join(code for needs_torch, code in blocks if HAS_TORCH or not needs_torch)
    script = f"import os; os.chdir({str(root)!r})\n" + script
    for rank, (code, _, errors) in enumerate(finish(start(2, script))):
        assert code == 0, f"rank {rank}: {errors}"


@pytest.mark.parametrize("launcher", ["torchrun", "build/bin/stretto launch"])
def test_commands_that_start_ranks(root, tmp_path, launcher):
    (block,) = re.findall(r"```\n([^`]*first\.py[^`]*)```", page(root))
    (command,) = [line for line in block.splitlines() if line.startswith(launcher)]
    if launcher == "torchrun" and not HAS_TORCH:
        pytest.skip("PyTorch is not installed")
    if launcher != "torchrun" and not (root / "build" / "bin" / "stretto").exists():
        pytest.skip("build/bin/stretto is not there")
    code = re.search(r"```python\n(.*?)```", page(root), re.S).group(1)
    seen = "import pathlib; pathlib.Path(f'{rank} of {size}').touch(); stretto.barrier()"
    (tmp_path / "first.py").write_text(code + seen, encoding="utf-8")
    (tmp_path / "build").symlink_to(root / "build")
    # torchrun of this Python, at a port that is free.
    command = re.sub(r"^torchrun", f"{sys.executable} -m torch.distributed.run", command)
    command = command.replace(" python ", f" {sys.executable} ")
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=tmp_path,
        env={**os.environ, "PET_STANDALONE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(p.name for p in tmp_path.glob("* of *")) == ["0 of 2", "1 of 2"]
