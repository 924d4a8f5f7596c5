"""What bench/results/gpu-*.json hold, and the cells, lines and footnotes of tables made of it (tables.py)."""

import collections
import json
import math
import pathlib
import re
import statistics
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NAME = re.compile(r"gpu-(?P<kind>[a-z][a-z0-9]*(?:-[a-z][a-z0-9]*)*?)(?:-x(?P<ranks>\d+))?"
                  r"-(?P<day>\d{4}-\d\d-\d\d)(?:-.+)?\.json")
SAME = 0.002  # a difference that the bound of an interval must exceed before somebody is called faster

NOT_REACHED = "not reached"  # overlap_torch.py's word

Interval = collections.namedtuple("Interval", "median low high")


class Error(Exception):
    """A document or a result that cannot be read."""


class Run:
    """A file of results."""

    def __init__(self, path: pathlib.Path, name: re.Match):
        try:
            self.data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as e:
            raise Error(f"{path.name}: {e}") from e
        if "simulated" in str(self.data.get("machine", "")):
            raise Error(f"{path.name}: of a simulated GPU, whose times mean nothing")
        self.file, self.kind, self.day = path.name, name["kind"], name["day"]
        self.on_h100s = "H100" in str(self.data.get("machine", ""))  # else on H200s
        self.ranks = int(name["ranks"] or 0)
        self.order = (self.day, str(self.data.get("date", "")), path.name)


class Results:
    def __init__(self, folder: pathlib.Path):
        matches = ((path, NAME.fullmatch(path.name)) for path in folder.glob("gpu-*.json"))
        self.runs = sorted((Run(path, name) for path, name in matches if name), key=lambda r: r.order)
        self.used = set()  # runs that rows were taken from

    def rows(self, kinds: list, field: str, key, ranks: int = 0, wanted=lambda row: True) -> dict:
        """{key(row): (row, run)}, of each key the newest row, failed ones included, in the order of the newest run
        that has the most rows; keys that it lacks stand behind those that they follow elsewhere. Of them those that
        are wanted."""
        found, order = {}, []
        runs = [r for r in self.runs if r.kind in kinds and (not ranks or r.ranks == ranks)]
        for run in runs:
            keys = list(dict.fromkeys(key(row) for row in run.data.get(field, [])))
            for row in run.data.get(field, []):
                if row.get("error") != NOT_REACHED:
                    found[key(row)] = (row, run)
            if len(keys) >= len(order):
                order = keys + [k for k in order if k not in keys]
            else:
                for at, k in enumerate(keys):
                    if k not in order:
                        order.insert(order.index(keys[at - 1]) + 1 if at else len(order), k)
        found = {k: found[k] for k in order if k in found and wanted(found[k][0])}
        self.used |= {run for _, run in found.values()}
        return found


def on_same_cards(theirs: dict, key, run: Run) -> dict:
    """Of other runs ({key: (row, run)}) the row of the key, where it is of the cards of `run`; else {}."""
    row, other = theirs.get(key, ({}, run))
    return row if other.on_h100s == run.on_h100s else {}


def interval(samples: list) -> Interval:
    """The median and its 95 % interval by ranks, as median_interval in stretto/ops/gpu_harness/gpu_time.cc."""
    ordered, n = sorted(samples), len(samples)

    def at(rank: float) -> float:
        return ordered[int(min(max(rank, 0), n - 1))]

    half = 0.98 * math.sqrt(n)
    return Interval(at(math.floor(n / 2)), at(math.floor(n / 2 - half)), at(math.ceil(n / 2 + half)))


def spread(values: list, digits: int = 2) -> str:
    low, high = f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"
    return low if low == high else f"{low} to {high}"


def rounds(value: float | list) -> list:
    """Of what was kept of each round, or, in files before 2026-11-26, of the best one alone."""
    return value if isinstance(value, list) else [value]


def ratio(over: list, under: list) -> Interval:
    return interval([x / y for x, y in zip(over, under, strict=True)])


def median(samples: list) -> float:
    return interval(samples).median


def geometric_mean(values) -> float:
    return statistics.geometric_mean(list(values))


def faster(r: Interval, theirs: str) -> str:
    """Who won, by an interval of theirs / ours."""
    if r.low > 1 + SAME:
        return "ours"
    return f"**{theirs}**" if r.high < 1 - SAME else "neither"


def times(r: Interval, digits: int = 2) -> str:
    return f"{r.median:.{digits}f} [{r.low:.{digits}f}, {r.high:.{digits}f}]"


def table(columns: list, rows: list) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines)


def fields(config: str) -> dict:
    return dict(word.split("=", 1) for word in config.split() if "=" in word)


def short(config: str) -> str:
    """The part of a config that tells apart: '128x256 pull 2', 'one-shot 64x64 epilogue'."""
    f, flags = fields(config), config.split()
    words = ["x".join(f.get("tile", "?").split("x")[:2])]
    if "shots" in f:
        shots = {"1": "one-shot", "2": "two-shot"}.get(f["shots"], f["shots"])
        packets = "packets" in flags
        words += ["packets"] if packets and f["shots"] == "1" else [shots, "packets"] if packets else [shots]
    if "gather" in f:
        words.append(f"{f['gather']} {f.get('workers', '')}".strip())
    if "scatter" in f and f.get("shots") != "1":
        words.append({"copy_engine": "copy engine"}.get(f["scatter"], f["scatter"]))
    if f.get("reduce", "0") != "0":
        words.append(f"{f['reduce']} SMs sum")
    if f.get("cluster", "1") != "1":
        words.append(f"cluster {f['cluster']}")
    return " ".join(words)


def sources(rows: dict) -> str:
    """'Measured 2026-11-22 (fff244d): all.' or, of several runs, which rows; `rows` as Results.rows gives them."""
    runs = {}
    for row, run in rows.values():
        runs.setdefault(run.file, run)
    if not runs:
        return ""
    ordered = sorted(runs.values(), key=lambda r: r.order, reverse=True)
    counts = collections.Counter(run.file for _, run in rows.values())
    parts = [f"`{r.file}`" + (f" ({r.data['commit']}" + ", H100s" * r.on_h100s + ")" if r.data.get("commit") else "") +
             (f": {counts[r.file]} of {len(rows)} rows" if len(ordered) > 1 else "") for r in ordered]
    return "\n" + textwrap.fill("From " + ", ".join(parts) + ".", 118, break_on_hyphens=False) + "\n"


def mark(rows: dict, key) -> str:
    """What stands behind the first cell of a row that is of an earlier day than the newest."""
    return " \\*" if rows[key][1].day < max(run.day for _, run in rows.values()) else ""


def footnote(text: str) -> str:
    return "\n\\* from an earlier day than the others.\n" if "\\* |" in text else ""


def failure(row: dict) -> str:
    return "failed: " + re.sub(r"[|\s]+", " ", row["error"])[:60]


def hidden(t: dict) -> Interval:
    """E_overlap: the part of the sequence's time beside the product that ours does not spend."""
    return interval([1 - (o - g) / (s - g) if s != g else 0.0
                     for o, g, s in zip(t["ours_ms"], t["gemm_ms"], t["sequence_ms"], strict=True)])


def shape_key(row: dict) -> tuple:
    return row["op"], row["m"], row["n"], row["k"]


def operator(row: dict) -> str:
    name = {"ag_gemm": "AG+GEMM", "gemm_rs": "GEMM+RS", "gemm_ar": "GEMM+AR"}.get(row["op"], row["op"])
    return f"{name} {row['m']}, n = {row['n']}, k = {row['k']}"
