"""docs/pytorch.md says what works: its blocks run in order on two ranks."""

import importlib.util
import re

from test_processes import finish, start


def test_pages_blocks(root):
    text = (root / "docs" / "pytorch.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python( torch)?\n(.*?)```", text, re.S)
    assert len(blocks) >= 8
    torch = importlib.util.find_spec("torch") is not None
    script = "\n".join(code for needs_torch, code in blocks if torch or not needs_torch)
    script = f"import os; os.chdir({str(root)!r})\n" + script
    for rank, (code, _, errors) in enumerate(finish(start(2, script))):
        assert code == 0, f"rank {rank}: {errors}"
