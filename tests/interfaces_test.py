"""What scripts and programs of users rely on, beside what it was before: exit codes, keys of JSON objects, signatures
of the Python package. tests/data/interfaces.txt has all of it; a difference is meant or a mistake, and the commit says
which. Usage: interfaces_test.py PATH_OF_STRETTO [--write], from the root of the repository."""

import ast
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PINNED = ROOT / "tests/data/interfaces.txt"
PACKAGE = ROOT / "python/stretto"
PUBLIC = ["errors", "nn", "symm_mem", "testing", "transformer"]  # modules whose every public name is for users
HANGS = 1200  # seconds that only a command takes that hangs


def run(stretto, command):
    """VARIABLE=VALUE may come before the arguments. The tester's own STRETTO_ variables are not there."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("STRETTO_") or k == "STRETTO_CACHE_DIR"}
    words = shlex.split(command)
    while re.match(r"[A-Z_]+=", words[0]):
        name, value = words.pop(0).split("=", 1)
        env[name] = value
    return subprocess.run([stretto, *words], env=env, input=b"Debian", capture_output=True,
                          timeout=HANGS, cwd=ROOT, check=False)


def keys_of(value, path=""):
    """Every path of keys in a JSON value, entries of a list together."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield f"{path}.{key}".lstrip(".")
            yield from keys_of(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for inner in value:
            yield from keys_of(inner, f"{path}[]")


def json_keys(output):
    return sorted({path for line in output.splitlines() for path in keys_of(json.loads(line))})


def signature(node):
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(base) for base in node.bases)
        return f"class {node.name}({bases})" if bases else f"class {node.name}"
    return f"{node.name}({ast.unparse(node.args)})"


def public(nodes):
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            yield node


def names_of_package():
    """What `stretto` itself exports, wherever it is written."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return set()


def signatures():
    """A line for each function and class of the public modules, of the others what the package exports and what its
    functions return; of classes __init__, public methods and fields."""
    exported, seen = names_of_package(), set()
    for file in sorted(PACKAGE.glob("*.py")):
        tree, module = ast.parse(file.read_text()), file.stem
        for node in public(tree.body):
            is_result = isinstance(node, ast.ClassDef) and "NamedTuple" in map(ast.unparse, node.bases)
            if node.name not in exported and module not in PUBLIC and not is_result:
                continue
            seen.add(node.name)
            where = "stretto" if node.name in exported else f"stretto.{module}"
            yield f"{where}: {signature(node)}"
            if not isinstance(node, ast.ClassDef):
                continue
            for member in node.body:
                if isinstance(member, ast.AnnAssign):
                    yield f"{where}: {node.name}.{ast.unparse(member)}"
                elif isinstance(member, ast.FunctionDef) and (member.name == "__init__" or member.name[0] != "_"):
                    yield f"{where}: {node.name}.{signature(member)}"
    for name in sorted(exported - seen):
        yield f"stretto: {name}"


def pinned(stretto, text):
    """The file as it is now: its commands run again, its signatures read again."""
    out, section = [], ""
    for line in text.splitlines():
        if line.startswith("["):
            section = line
            out += [line]
            if section == "[python]":
                out += sorted(signatures()) + [""]
        elif line.startswith("#") or (not line and section != "[python]"):
            out += [line]
        elif section == "[exit codes]":
            command = line.split(maxsplit=1)[1]
            out += [f"{run(stretto, command).returncode:>2}  {command}"]
        elif section == "[json]" and not line.startswith(" "):
            done = run(stretto, line)
            out += [line, *(f"  {key}" for key in json_keys(done.stdout))]
    return "\n".join(out).rstrip() + "\n"


def main():
    stretto, before = os.path.abspath(sys.argv[1]), PINNED.read_text()
    now = pinned(stretto, before)
    if "--write" in sys.argv:
        PINNED.write_text(now)
    old, new = before.splitlines(), now.splitlines()
    gone, come = [line for line in old if line not in new], [line for line in new if line not in old]
    for mark, lines in (("-", gone), ("+", come)):
        for line in lines:
            print(mark, line)
    print(f"interfaces: {len(gone)} lines gone, {len(come)} new")
    return 0 if now == before or "--write" in sys.argv else 1


if __name__ == "__main__":
    sys.exit(main())
