"""What runs of benchmarks measured, and the cells, lines and footnotes of tables made of it (tables.py)."""

import collections
import json
import math
import pathlib
import re
import statistics
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NAME = re.compile(r"gpu-(?P<kind>[a-z][a-z0-9]*(?:-[a-z][a-z0-9]*)*?)(?:-x(?P<ranks>\d+))?"
                  r"-(?P<day>\d{4}-\d\d-\d\d)(?:-.+)?")
SAME = 0.002  # a difference that the bound of an interval must exceed before somebody is called faster

NOT_REACHED = "not reached"  # overlap_torch.py's word

Interval = collections.namedtuple("Interval", "median low high")


class Error(Exception):
    """A document or a result that cannot be read."""


class Run:
    """A run of a benchmark: what it says of itself, and its lists of rows or those of them that were kept."""

    def __init__(self, name: str, data: dict):
        match = NAME.fullmatch(name)
        if not match:
            raise Error(f"{name}: no name of a run, which is gpu-KIND[-xN]-DATE[-PART]")
        if "simulated" in str(data.get("machine", "")):
            raise Error(f"{name}: of a simulated GPU, whose times mean nothing")
        self.name, self.data, self.kind, self.day = name, data, match["kind"], match["day"]
        self.on_h100s = "H100" in str(data.get("machine", ""))  # else on H200s
        self.ranks = int(match["ranks"] or 0)
        self.name_of_cards = "H100s" if self.on_h100s else "H200s"
        self.cards = ", ".join(filter(None, [data.get("commit"), self.name_of_cards]))
        self.order = (self.day, str(data.get("date", "")), name)

    @property
    def kept_in(self) -> str:
        return self.kind + (f"-x{self.ranks}" if self.ranks else "") + ".jsonl"


def fresh_run(path: pathlib.Path) -> Run:
    """Of a file as benchmarks write it."""
    try:
        return Run(path.stem, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as e:
        raise Error(f"{path.name}: {e}") from e


class Results:
    """What tables are made of: rows that were kept in FOLDER/*.jsonl (keep.py), and beside them the files of runs that
    the folder has or that are given."""

    def __init__(self, folder: pathlib.Path, fresh: tuple = ()):
        self.place = {}  # of a kept row in its file, by id
        found = (path for path in folder.glob("gpu-*.json") if NAME.fullmatch(path.stem))
        self.runs = sorted([*self.kept_runs(folder), *map(fresh_run, (*found, *fresh))], key=lambda r: r.order)
        self.used = set()  # runs that rows were taken from
        self.read = {}  # {(run, field): {id: row}} that tables were made of
        self.rank = {}  # of a row among those it was found with in rows(), by id

    def kept_runs(self, folder: pathlib.Path) -> list:
        runs = {}
        for path in sorted(folder.glob("*.jsonl")):
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                try:
                    kept = json.loads(line)
                    name, row, field = kept["run"], kept["row"], kept["of"]
                    run = runs.get(name) or Run(name, {**kept["said"], "machine": kept["card"],
                                                       **{k: kept[k] for k in ("date", "commit", "command", "with")}})
                except (ValueError, KeyError, TypeError) as e:
                    raise Error(f"{path.name}:{number}: no kept row: {e!r}") from e
                if run.kept_in != path.name:
                    raise Error(f"{path.name}:{number}: rows of {name} are kept in {run.kept_in}")
                runs[name] = run
                self.place[id(row)] = number
                if kept.get("alone"):
                    run.data[field] = row
                else:
                    run.data.setdefault(field, []).append(row)
        return list(runs.values())

    def take(self, run: Run, field: str, rows) -> None:
        """Notes that tables are made of these rows, or of a field that is no list."""
        self.used.add(run)
        self.read.setdefault((run, field), {}).update((id(row), row) for row in rows)

    def rows(self, kinds: list, field: str, key, ranks: int = 0, wanted=lambda row: True) -> dict:
        """{key(row): (row, run)}, of each key the newest row, failed ones included. They come in the order in which
        they were kept, or else in that of the newest run that has the most rows; keys that it lacks stand behind those
        that they follow elsewhere. Of them those that are wanted."""
        found = {}
        runs = [r for r in self.runs if r.kind in kinds and (not ranks or r.ranks == ranks)]
        kept = [(run.kept_in, self.place[id(row)], key(row)) for run in runs for row in run.data.get(field, [])
                if id(row) in self.place]
        order = list(dict.fromkeys(k for _, _, k in sorted(kept, key=lambda place: place[:2])))
        for run in runs:
            for row in run.data.get(field, []):
                if row.get("error") != NOT_REACHED:
                    found[key(row)] = (row, run)
            keys = list(dict.fromkeys(key(row) for row in run.data.get(field, []) if id(row) not in self.place))
            if len(keys) >= len(order):
                order = keys + [k for k in order if k not in keys]
            else:
                for at, k in enumerate(keys):
                    if k not in order:
                        order.insert(order.index(keys[at - 1]) + 1 if at else len(order), k)
        found = {k: found[k] for k in order if k in found and wanted(found[k][0])}
        for number, (row, run) in enumerate(found.values()):
            self.take(run, field, [row])
            self.rank[id(row)] = max(number, self.rank.get(id(row), 0))  # of the call that tells the most rows apart
        return found


def on_same_cards(theirs: dict, key, run: Run) -> dict:
    """Of other runs ({key: (row, run)}) the row of the key, where it is of the cards of `run`; else {}."""
    row, other = theirs.get(key, ({}, run))
    return row if other.on_h100s == run.on_h100s else {}


def interval_rank(count: int) -> int:
    """Which of so many sorted samples, from 1 on, begins the interval of their distribution's median; the one as far
    from the end ends it. As interval_rank in stretto/base/statistics.h, which says more."""
    ways, rank = 0, 0  # in which fewer than `rank` samples lie below the median, of 2 ** count
    while rank < (count + 1) // 2:
        ways += math.comb(count, rank)
        if 2 * ways * 20 > 2 ** count:
            break
        rank += 1
    return max(rank, 1)


def interval(samples: list) -> Interval:
    """The median and the order statistics that hold it with 95 % confidence and more."""
    ordered, rank = sorted(samples), interval_rank(len(samples))
    return Interval(statistics.median(ordered), ordered[rank - 1], ordered[-rank])


def quantile(samples: list, at: float) -> float:
    """What a part `at` of them does not exceed, linear between two neighbours."""
    ordered = sorted(samples)
    below, part = divmod(at * (len(ordered) - 1), 1)
    low, high = ordered[int(below)], ordered[min(int(below) + 1, len(ordered) - 1)]
    return low + part * (high - low)


def spread(values: list, digits: int = 2) -> str:
    low, high = f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"
    return low if low == high else f"{low} to {high}"


def rounds(value: float | list) -> list:
    """Of what was kept of each round, or, in files before 2026-11-26, of the best one alone."""
    return value if isinstance(value, list) else [value]


def ratio(over: list, under: list) -> Interval:
    return interval([x / y for x, y in zip(over, under, strict=True)])


median = statistics.median


def apart(over: Interval, under: Interval) -> Interval:
    """The ratio of what was not measured in turn: what the bounds of both allow, where samples were kept."""
    known = over.low and under.low
    return Interval(over.median / under.median, over.low / under.high if known else None,
                    over.high / under.low if known else None)


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


def num_samples(row) -> list:
    """How many times there are of each contestant of a row."""
    if isinstance(row, list):
        numbers = [x for x in row if isinstance(x, float)]
        return [len(row)] if numbers else [n for x in row if isinstance(x, dict) for n in num_samples(x)]
    parts = row.values() if isinstance(row, dict) else []
    return [n for part in parts if isinstance(part, (dict, list)) for n in num_samples(part)]


def fewest_samples(row: dict) -> int:
    return min(num_samples(row), default=0)


def usual_samples(rows: dict) -> int:
    return collections.Counter(fewest_samples(row) for row, _ in rows.values()).most_common(1)[0][0]


def said_of_samples(rows: dict) -> str:
    usual = usual_samples(rows)
    if not usual:
        return "These rows keep medians alone, no samples"
    others = {fewest_samples(row) for row, _ in rows.values()} - {usual}
    return f"Samples of a row: {usual}" + (", unless it says another number" if others else "")


def sources(rows: dict) -> str:
    """'From `gpu-moe-x2-2026-11-22` (fff244d, H200s).' or, of several runs, which rows, and how many samples they
    have; `rows` as Results.rows gives them."""
    runs = {}
    for row, run in rows.values():
        runs.setdefault(run.name, run)
    if not runs:
        return ""
    ordered = sorted(runs.values(), key=lambda r: r.order, reverse=True)
    counts = collections.Counter(run.name for _, run in rows.values())
    parts = [f"`{r.name}`" + f" ({r.cards})" +
             (f": {counts[r.name]} of {len(rows)} rows" if len(ordered) > 1 else "") for r in ordered]
    text = f"From {', '.join(parts)}. {said_of_samples(rows)}."
    return "\n" + textwrap.fill(text, 118, break_on_hyphens=False) + "\n"


def mark(rows: dict, key) -> str:
    """What stands behind the first cell of a row: that it is of an earlier day than the newest, of other cards than
    most, or of another number of samples."""
    row, run = rows[key]
    on_h100s = [other.on_h100s for _, other in rows.values()]
    cards = run.on_h100s != (2 * sum(on_h100s) > len(on_h100s))
    samples = fewest_samples(row)
    other_number = 0 < samples != usual_samples(rows)
    return (f" ({samples} sample{'s' * (samples > 1)})" * other_number + f" ({run.name_of_cards})" * cards
            + " \\*" * (run.day < max(other.day for _, other in rows.values())))


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
