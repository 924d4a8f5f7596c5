"""Circles among files that need each other: in C++ a header with its source, in Python a module."""

import ast
import pathlib
import re

INCLUDED = re.compile(r'^#include "([^"]+)"', re.M)


def circles(needs: dict) -> list:
    """Of {name: names it needs} the sets of names that reach each other, each sorted.

    >>> circles({"a": ["b"], "b": ["c"], "c": ["b"], "d": ["d"], "e": ["a", "elsewhere"]})
    [['b', 'c']]
    """
    order, low, stack, found = {}, {}, [], []  # Tarjan, Depth-First Search and Linear Graph Algorithms, 1972

    def visit(name):
        order[name] = low[name] = len(order)
        stack.append(name)
        for other in needs[name]:
            if other in needs and other not in order:
                visit(other)
            if other in needs and other in stack:
                low[name] = min(low[name], low[other])
        if low[name] == order[name]:
            at = stack.index(name)
            found.append(sorted(stack[at:]))
            del stack[at:]

    for name in needs:
        if name not in order:
            visit(name)
    return sorted(circle for circle in found if len(circle) > 1)


def of_cpp(root: pathlib.Path, folder: str) -> dict:
    """{path without its ending: what it includes}, tests apart."""
    needs = {}
    for path in sorted((root / folder).rglob("*")):
        if path.suffix in (".h", ".cc") and not re.search(r"_(test|bench|fuzz)$", path.stem):
            own = path.relative_to(root).with_suffix("").as_posix()
            included = INCLUDED.findall(path.read_text(encoding="utf-8"))
            needs.setdefault(own, set()).update(pathlib.PurePosixPath(i).with_suffix("").as_posix() for i in included)
            needs[own].discard(own)
    return {name: sorted(others) for name, others in needs.items()}


def imported(tree: ast.AST, package: str, module: str, is_package: bool):
    """Modules of the package that are imported anywhere, within functions too, but for what types alone need."""
    typing_only = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            typing_only.update(map(id, ast.walk(node)))
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == package)
        elif isinstance(node, ast.ImportFrom):
            parts = module.split(".")
            base = parts[:len(parts) - node.level + is_package] if node.level else []
            start = ".".join(filter(None, [*base, node.module]))
            if start.split(".")[0] == package:
                yield from (f"{start}.{alias.name}" for alias in node.names)


def names_bound(tree: ast.Module) -> set:
    """By a module's own statements."""
    names = set()
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            names.update(n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    return names


def of_python(folder: pathlib.Path) -> dict:
    """{module: modules of the package it imports}"""
    package, files = folder.name, {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path

    bound = {module: names_bound(ast.parse(path.read_text(encoding="utf-8"))) for module, path in files.items()}

    def module_of(name: str) -> str:
        """Of `from stretto import run`, where run is a function, the package; of a compiled module none."""
        if name in files:
            return name
        module, _, member = name.rpartition(".")
        return module if member in bound.get(module, ()) or member == "*" else ""

    needs = {}
    for module, path in files.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found = {module_of(name) for name in imported(tree, package, module, path.name == "__init__.py")}
        needs[module] = sorted(found - {module, ""})
    return needs
