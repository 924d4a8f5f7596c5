"""The Python that has what a test compares with: this one, or that of build/python (tools/build --check makes it)."""

import importlib.util
import os
import pathlib
import sys


def needs(module, binary):
    """Begins again with the environment beside build/bin/BINARY where this Python lacks the module."""
    python = pathlib.Path(binary).resolve().parent.parent / "python/bin/python"
    if importlib.util.find_spec(module) is None and python.exists() and not os.environ.get("STRETTO_TEST_PYTHON"):
        os.environ["STRETTO_TEST_PYTHON"] = str(python)
        os.execv(python, [str(python), *sys.argv])
