"""Says which argument of a call is wrong where the error that it led to does not: what PyTorch, Python
and the extension module raise for a value of another type speaks of functions that the user has not
called."""

from __future__ import annotations

import functools
import inspect
import re
from typing import Any, Callable, Mapping, Optional

from ._adopt import adopt
from ._arrays import kind_of
from ._calls import flag, number, text, whole
from ._torch_names import name_of_torch
from .errors import Error, UserError

# What programs call the tables that operators' arguments are.
_BROKEN_TABLE = re.compile(r"^(\w+): table '(\w+)'(?= breaks its contract)")
_NO_INT32 = re.compile(r"(?<=: entry )(\d+ is )(2147483647|-2147483648)(?=,)")  # maybe: as_table() has cut it
_TABLES = {
    ("packed_attention", "starts"): "cu_seqlens",
    ("paged_attention", "starts"): "cu_seqlens",
    ("paged_attention", "pages"): "block_table",
    ("paged_attention", "tokens"): "cache_tokens",
    ("paged_decode", "pages"): "block_table",
    ("paged_decode", "tokens"): "cache_tokens",
}
_MADE_BY = {"ExpertTiles": "all_gather_grouped_matmul", "Dispatched": "ep_dispatch"}


def checked(
    function: Callable[..., Any],
    tell: Optional[Callable[..., None]] = None,
    beside: Optional[Callable[..., Any]] = None,
) -> Any:
    """For public functions: what they raise names what the user wrote. tell(error, args, kwargs) is
    called before it is raised. With async_op=True, where there is `beside`, what beside(call, args,
    kwargs) returns. All of it in one frame, since every call comes through it."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        if beside is not None and "async_op" in kwargs and kwargs.pop("async_op"):
            return beside(call, args, kwargs)
        try:
            return function(*args, **kwargs)
        except Exception as error:
            raised = told(function, args, kwargs, error)
            if tell is not None:
                tell(raised, args, kwargs)
            if raised is error:
                raise
            raise raised from None

    return call


def in_users_words(error: UserError) -> str:
    """Its text, where it is about a table by the operator's name of it."""

    def named(match: re.Match) -> str:
        op, table = match.groups()
        return f"{op}: {_TABLES.get((op, table), table)}"

    said = str(error)
    if "breaks its contract" in said:
        said = _NO_INT32.sub(lambda m: f"{m[1]}{m[2]} or {'less' if m[2][0] == '-' else 'more'}", said)
    return _BROKEN_TABLE.sub(named, said)


def told(
    function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any], error: Exception
) -> Exception:
    """`error`, which function(*args, **kwargs) has raised, or what to raise in its place."""
    if isinstance(error, UserError):
        return _named(function.__name__, error)
    if isinstance(error, (Error, MemoryError)):
        return error
    try:
        given = inspect.signature(function).bind(*args, **kwargs).arguments
    except TypeError:
        return error  # Python's own, which names the function and the argument
    try:
        _check(function, given)
    except UserError as wrong:
        wrong.is_settled = getattr(error, "is_settled", False)
        return wrong
    return error


def _named(op: str, error: UserError) -> UserError:
    """With the call's name, unless it is about the world or calls of all ranks."""
    of_all = getattr(error, "is_settled", False) or "stretto is used" in str(error)
    if not of_all and op not in str(error):
        error.args = (f"{op}: {error}",)
    return error


def _check(function: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """UserError for the first argument that is not what the function's signature says."""
    op, first = function.__name__, None
    for name, value in given.items():
        parameter = inspect.signature(function).parameters[name]
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue  # several of what the annotation says
        of_type = str(parameter.annotation)
        if value is None and (of_type.startswith("Optional") or parameter.default is None):
            continue
        if "ArrayT" in of_type or name == "out":
            several = isinstance(value, (list, tuple)) and of_type not in ("ArrayT", "Optional[ArrayT]")
            named = {f"{name}[{i}]": x for i, x in enumerate(value)} if several else {name: value}
            for part, x in named.items():
                if x is not None or not several:
                    first = _check_array(op, part, x, first)
        else:
            _check_value(op, name, value, of_type)


def _check_array(op: str, name: str, value: Any, first: Any) -> Any:
    """The kind of the first array of the call."""
    try:
        kind = kind_of(value)
    except UserError as error:
        raise UserError(f"{op}: {name}: {error}") from None
    if kind is None:
        kind, _ = adopt(op, name, value)
    if first is not None and kind is not first:
        raise UserError(
            f"{op}: arrays of different kinds: {first.name}, and {name} is a {kind.name}"
        )
    return kind


def _check_value(op: str, name: str, value: Any, of_type: str) -> None:
    if of_type == "bool":
        flag(op, name, value)
    plain = of_type.removeprefix("Optional[").removesuffix("]")
    if plain == "int":
        whole(op, name, value)
    elif plain == "float":
        number(op, name, value)
    elif plain == "str":
        text(op, name, value)
    elif plain in _MADE_BY and type(value).__name__ != plain:
        raise UserError(
            f"{op}: {name} is a {type(value).__name__}, need what {_MADE_BY[plain]}() returned"
        )
    elif name == "group" and value is not None and not _names_a_group(value):
        raise UserError(f"{op}: group is {value!r}, need a group or its name")


def _names_a_group(value: Any) -> Optional[bool]:
    return isinstance(value, str) or hasattr(value, "ranks") or name_of_torch(value) is not None
