"""Programs: of the shipped operators, of own C++ files and of texts; printed, proved, predicted and
launched."""

from __future__ import annotations

import itertools
import os
import pathlib
from typing import Any, Dict, List, NamedTuple, Optional, Union

from . import _core
from ._adopt import adopt
from ._arguments import checked
from ._arrays import may_overlap
from ._calls import element_type, file_name, float_bits, size_of, text, whole
from ._world import GroupLike, group_of, refuse
from .errors import UserError

INCLUDE_DIR = str(pathlib.Path(__file__).parent / "include")


class Program:
    """A tile program for a fixed number of ranks. Calling it launches it; see `__call__`."""

    def __init__(self, core, usual_tables=None):
        self._core = core
        self._usual_tables = _core.UsualTables() if usual_tables is None else usual_tables
        self._key = ("program", core.explain())
        self._waiver = ""

    @staticmethod
    def parse(text: str) -> Program:
        """A program from its text form, what `str` prints. UserError names line and column."""
        if not isinstance(text, str):
            raise UserError(f"Program.parse({text!r}): need a program's text")
        return Program(_core.Program.parse(text))

    @property
    def name(self) -> str:
        return self._core.name

    @property
    def world_size(self) -> int:
        return self._core.world_size

    def __str__(self) -> str:
        return self._core.explain()

    def __repr__(self) -> str:
        return f"<stretto program {self.name} for {self.world_size} ranks>"

    def prove(self) -> str:
        """The proof's report, the verdict first. Rejected, with the report, for a program that has a
        race, a deadlock or an uncovered read. One that is "not complete" is returned: what was not
        shown is in the lines "not shown"."""
        return self._core.prove()

    def waive_proof(self, why: str) -> Program:
        """The same program, launched even where its proof is not complete: nothing wrong was found,
        and not everything was shown. `why`, in words, on every rank alike. Where it is wrong, launches
        are refused as before (Rejected)."""
        if not isinstance(why, str) or not why.strip():
            raise UserError(f"waive_proof({why!r}): say why, in words")
        waived = Program(self._core, self._usual_tables)
        waived._key = ("program", self._key[1], "waived", why)
        waived._waiver = why
        return waived

    def explain(self, *, after: str = "", emit: str = "tile-ir") -> str:
        """As the pass `after` leaves it; emit: "tile-ir", "schedule-ir" or "instances"."""
        return self._core.explain(text("explain", "after", after), text("explain", "emit", emit))

    def predict(
        self, machine: str = "h200x4", *, eager: bool = False, **extents: float
    ) -> Dict[str, Any]:
        """Time and timeline on a machine, built-in or a JSON file, without a GPU: time_ms,
        exposed_comm_ms, bound_by, floors_ms, roles, picture. `extents`: run-time sizes of the
        launch; default: their bounds, scalars 0. Tables of a shipped operator hold what a usual launch
        has in them; those of another program hold the largest values that their contracts allow.
        """
        at = text("predict", "machine", machine)
        return self._core.predict(at, self._extents(extents), bool(eager), self._usual_tables)

    def _extents(self, given: Dict[str, float]) -> List[int]:
        """What a launch takes: a number for each run-time size and scalar, of floats their bits."""
        known = self._core.extents
        names = [name for name, _, _ in known]
        for name in given:
            if name not in names:
                raise UserError(f"{self.name}: no run-time size or scalar '{name}'; it has {names}")
        return [self._extent(*extent, given) for extent in known]

    def _extent(self, name: str, bound: int, kind: str, given: Dict[str, float]) -> int:
        if name not in given:
            return bound if kind == "extent" else 0
        if kind == "float":
            return float_bits(self.name, name, given[name])
        value = whole(self.name, name, given[name])
        if not 0 <= value <= bound:
            raise UserError(f"{self.name}: {name} is {value}, need 0 to {bound}")
        return value

    def __call__(self, *arrays: Any, group: GroupLike = None, **extents: float) -> Any:
        """Launches the program: collective over the group, which has as many ranks as it. `arrays`:
        its inputs, outputs and states in the order in which it declares them, each of the declared
        shape (run-time sizes at their bounds) and element type; what is written may not overlap
        others. Outputs that this rank does not have are None. `extents`: run-time sizes, default: their
        bounds; scalars, whole numbers or floats as
        the program declares them, the same on all ranks, default 0. Returns the outputs, one alone or
        a tuple; outputs left out at the end are made. Proved before its first launch (Rejected with
        the report; NotComplete where not everything is shown, see `waive_proof`)."""
        try:
            return self._launch(group_of(group), arrays, extents)
        except Exception as error:
            refuse(group, self.name, error)
            raise

    def _launch(self, group, arrays, extents: Dict[str, float]):
        tensors = self._core.tensors
        inputs = [t for t in tensors if t[1] != "output"]
        outputs = [t for t in tensors if t[1] == "output"]
        if len(arrays) == len(inputs):
            order = inputs
        elif len(arrays) == len(tensors):
            order = tensors
        else:
            raise UserError(
                f"{self.name}: {len(arrays)} arrays given; need {[t[0] for t in inputs]} or "
                f"{[t[0] for t in tensors]}"
            )
        if not arrays:
            raise UserError(
                f"{self.name}: nothing given to tell the kind of arrays by; pass its outputs"
            )
        absent = {t[0] for t in outputs if group.rank not in t[5]}
        for t, array in zip(order, arrays):
            if t[0] in absent and array is not None:
                raise UserError(
                    f"{self.name}: output '{t[0]}' is not one of rank {group.rank}; pass None"
                )
        given = [(t, array) for t, array in zip(order, arrays) if t[0] not in absent]
        if not given:
            raise UserError(f"{self.name}: nothing given to tell the kind of arrays by")
        kind, like = adopt(f"program {self.name}", given[0][0][0], given[0][1])
        by_name = {t[0]: self._checked(kind, t, array) for t, array in given}
        self._check_apart(kind, by_name)
        for t in outputs:
            if t[0] not in by_name:
                by_name[t[0]] = kind.from_dtype(t[2], t[3], like)
        names = [t[0] for t in tensors]
        group.launch(
            kind,
            self._key,
            lambda sms: _Waived(self._core, self._waiver) if self._waiver else self._core,
            names,
            [by_name[n] for n in names],
            self._extents(extents),
            said="",
        )
        made = tuple(None if t[0] in absent else by_name[t[0]] for t in outputs)
        return made[0] if len(made) == 1 else made

    def _check_apart(self, kind, by_name) -> None:
        """What is written, of all that is given."""
        written = [t[0] for t in self._core.tensors if t[1] != "input" and t[0] in by_name]
        for name, other in itertools.product(written, by_name):
            if name != other and may_overlap(kind, by_name[name], by_name[other]):
                raise UserError(f"{self.name}: the arrays '{name}' and '{other}' overlap")

    def _checked(self, kind, tensor, array):
        name, what, dtype, shape = tensor[:4]
        other, array = adopt(f"program {self.name}", name, array)
        if other is not kind:
            raise UserError(
                f"{self.name}: arrays of different kinds: {kind.name}, and {what} '{name}' is a "
                f"{other.name}"
            )
        if kind.dtype(array) != dtype or tuple(array.shape) != tuple(shape):
            raise UserError(
                f"{self.name}: {what} '{name}' is {dtype} {tuple(shape)}, got "
                f"{kind.dtype(array)} {tuple(array.shape)}"
            )
        if not kind.is_dense(array):
            raise UserError(f"{self.name}: {what} '{name}' must be dense, row by row")
        if what != "input":
            if not kind.writable(array):
                raise UserError(f"{self.name}: {what} '{name}' is read-only")
            kind.count_write(array)
        return array


class _Waived:
    """What makes the program of a launch, with the caller's reason."""

    def __init__(self, core: Any, why: str):
        self._core = core
        self._why = why

    def compile(self, **launches: Any) -> Any:
        return self._core.compile(waiver=self._why, **launches)


class ProgramFile:
    """A C++ file that defines `stretto::Program stretto_program(int world_size)`, or the same of a
    `const stretto::ProgramShape&`; made by `load`. Calling it launches the program for this world's
    size (Program.__call__)."""

    def __init__(self, file):
        self._file = file
        self._programs: Dict[tuple, Program] = {}

    def program(
        self,
        world_size: Optional[int] = None,
        *,
        dtype: Any = "float32",
        target: str = "cpu",
        num_sms: int = 132,
        **sizes: int,
    ) -> Program:
        """Its program for that many ranks; default: this world's. `num_sms`: of the GPUs, with "cuda";
        a GPU launches what was made for as many as it has or fewer. `sizes` by their names, m, n, k
        and those that the file has besides (of all ranks; 0: the file's), `dtype` and `target`,
        "cpu" or "cuda", are for files that take a ProgramShape; others have sizes of their own, and
        giving any is a UserError, as is a name that the file does not ask for."""
        op = "program"
        ranks = group_of().size if world_size is None else world_size
        asked = _shape(op, ranks, dtype, target, "world_size")
        named = {name: size_of(op, name, size) for name, size in sizes.items()}
        plain = [named.pop(name, 0) for name in ("m", "n", "k")]
        sms = whole(op, "num_sms", num_sms)
        shape = (asked.ranks, *plain, asked.dtype, asked.target, sms, tuple(sorted(named.items())))
        if shape not in self._programs:
            self._programs[shape] = Program(self._file.program(*shape[:-1], named))
        return self._programs[shape]

    def __call__(self, *arrays: Any, group: GroupLike = None, **extents: float) -> Any:
        """Launches its program for the group's number of ranks; see Program.__call__."""
        try:
            program = self.program(group_of(group).size)
        except Exception as error:
            refuse(group, "program", error)
            raise
        return program(*arrays, group=group, **extents)


@checked
def load(path: Union[str, os.PathLike]) -> ProgramFile:
    """Compiles a C++ file with a tile program with $CXX (c++), once per content, and loads it.
    UserError with the compiler's messages."""
    return ProgramFile(_core.ProgramFile(file_name("load", path), INCLUDE_DIR))


@checked
def operator(
    name: str,
    *,
    ranks: int = 2,
    m: int = 0,
    n: int = 0,
    k: int = 0,
    dtype: Any = "float32",
    target: str = "cuda",
    num_sms: int = 132,
) -> Program:
    """The program of a shipped operator (the names that `stretto prove --all` lists) at a shape,
    with its default config for `target`, "cuda" or "cpu", and on GPUs for so many SMs as they have, of
    which it takes no more. Sizes are those of all ranks; 0: the
    operator's default."""
    op = "operator"
    asked = _shape(op, ranks, dtype, target)
    sizes = [size_of(op, size, given) for size, given in (("m", m), ("n", n), ("k", k))]
    made = _core.catalog_program(
        text(op, "name", name),
        asked.ranks,
        *sizes,
        asked.dtype,
        asked.target,
        whole(op, "num_sms", num_sms),
    )
    return Program(*made)


class _Shape(NamedTuple):
    ranks: int
    dtype: str
    target: str


def _shape(op: str, ranks: Any, dtype: Any, target: Any, named: str = "ranks") -> _Shape:
    """Checked, of what makes programs; `named`: what the number of ranks is called there."""
    size = whole(op, named, ranks)
    if not 1 <= size <= 64:
        raise UserError(f"{op}: {named} is {size}, need 1 to 64")
    return _Shape(size, element_type(op, dtype), text(op, "target", target))


class Choice(NamedTuple):
    """What an operator is predicted to run fastest as on GPUs."""

    config: str
    time_ms: float
    programs: List[Program]  # one, or collective and product, one after the other


@checked
def choose(
    name: str,
    machine: Optional[str] = None,
    *,
    ranks: int = 2,
    m: int = 0,
    n: int = 0,
    k: int = 0,
    dtype: Any = "float32",
) -> Choice:
    """The config of a shipped operator that is predicted to be the fastest on a machine (default:
    H200s, as many as ranks), collective and product in sequence among what is offered. Arguments
    as those of `operator`. Some seconds where it has not been asked before."""
    op = "choose"
    asked = _shape(op, ranks, dtype, "cuda")
    sizes = [size_of(op, size, given) for size, given in (("m", m), ("n", n), ("k", k))]
    at = _machine_of(asked.ranks) if machine is None else text(op, "machine", machine)
    config, time_ms, programs = _core.chosen_operator(
        text(op, "name", name), asked.ranks, *sizes, asked.dtype, at
    )
    return Choice(config, time_ms, [Program(*made) for made in programs])


def _machine_of(ranks: int) -> str:
    return f"h200x{next((n for n in (1, 2, 4) if n >= ranks), 8)}"


def _chosen(what, machine: Optional[str], shape: Dict[str, Any]) -> Choice:
    if not isinstance(what, str):
        raise UserError("chosen=True is for operators by name; a program is what it is")
    _check_names(what, shape)
    shape = {key: value for key, value in shape.items() if key not in ("target", "num_sms")}
    return choose(what, machine, **shape)


def _in_sequence(parts: List[Dict[str, Any]]) -> Dict[str, Any]:
    """The prediction of programs one after the other, of theirs."""
    longest = max(parts, key=lambda part: part["time_ms"])
    return {
        "time_ms": sum(part["time_ms"] for part in parts),
        "exposed_comm_ms": sum(part["exposed_comm_ms"] for part in parts),
        "bound_by": longest["bound_by"],
        "machine": longest["machine"],
        "floors_ms": {
            floor: sum(part["floors_ms"][floor] for part in parts) for floor in longest["floors_ms"]
        },
        "roles": [role for part in parts for role in part["roles"]],
        "picture": "\n".join(part["picture"] for part in parts),
    }


def _check_names(what, shape: Dict[str, Any]) -> None:
    """A program has one shape, what makes programs the arguments of operator(), and of a file the
    sizes that it names."""
    if isinstance(what, ProgramFile):
        return
    known = () if isinstance(what, Program) else ("ranks", "m", "n", "k", "dtype", "target", "num_sms")
    for name in shape:
        if name not in known:
            choices = ", ".join(known) or "nothing"
            raise UserError(f"{what!r} is not asked for by '{name}', by {choices}")


def _program(what, **shape: Any) -> Program:
    _check_names(what, shape)
    if isinstance(what, Program):
        return what
    if isinstance(what, ProgramFile):
        return what.program(shape.pop("ranks", 2), **shape)
    if not isinstance(what, str):
        raise UserError(
            f"{what!r}: need a program, what load() returned or the name of an operator"
        )
    return operator(what, **shape)


@checked
def explain(
    what: Union[str, Program, ProgramFile],
    *,
    after: str = "",
    emit: str = "tile-ir",
    chosen: bool = False,
    **shape: Any,
) -> str:
    """A program at any stage of its way, as text. `what`: a program, a loaded file or an operator's
    name, whose `shape` are `operator`'s arguments. `chosen`: what `choose` finds for the operator
    instead of its default; the first line says what that is, and a sequence is two programs."""
    if chosen:
        choice = _chosen(what, None, shape)
        texts = [program.explain(after=after, emit=emit) for program in choice.programs]
        return "\n".join([f"# {choice.config}, predicted {choice.time_ms:.4f} ms", *texts])
    return _program(what, **shape).explain(after=after, emit=emit)


@checked
def prove(what: Union[str, Program, ProgramFile], **shape: Any) -> str:
    """The proof's report of a program, as `explain` takes it; Rejected with the report where it
    fails."""
    return _program(what, **shape).prove()


@checked
def predict(
    what: Union[str, Program, ProgramFile],
    machine: str = "h200x4",
    *,
    chosen: bool = False,
    **shape: Any,
) -> Dict[str, Any]:
    """What a launch would cost on a machine, as `Program.predict` says; `what` and `chosen` as
    `explain` takes them, `shape` of a program its run-time sizes. With `chosen` the result has
    `config`, too: its name, or the sequence's steps, of which it has the sums."""
    if chosen:
        choice = _chosen(what, machine, shape)
        parts = [program.predict(machine) for program in choice.programs]
        return {**_in_sequence(parts), "config": choice.config}
    if isinstance(what, Program):
        return what.predict(machine, **shape)
    return _program(what, **shape).predict(machine)
