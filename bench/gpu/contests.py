"""Rows of results of scripts in which ours meets PyTorch on one GPU (torch_turns.contest): each is printed and written
as it comes, and a case that fails ends no other."""

import argparse

import torch
from timing_options import parser_of
from torch_results import facts, save
from torch_turns import ON_GPU, contest, first_line

THEIRS = ("pytorch", "grouped_mm", "scaled_grouped_mm", "flash", "cudnn")  # names begin so; the others are ours


def parser_of_contest(doc: str, samples: int) -> argparse.ArgumentParser:
    parser = parser_of(doc, samples)
    parser.add_argument("--only", default="", help="cases whose text contains this")
    return parser


def is_ours(name: str) -> bool:
    return not name.startswith(THEIRS)


class RowWriter:
    """Rows by field, in the file that the options name, and whether any of ours failed."""

    def __init__(self, options: argparse.Namespace, more_facts: dict):
        self.options, self.failed = options, False
        self.result = {**facts(options), **more_facts}

    def add(self, field: str, text: str, said: dict, make, most_error: dict, warmup_s: float, show):
        """A row of the case that make() makes, which has calls() and error(name, result); `said` of it in the row."""
        if self.options.only not in text:
            return
        try:
            case = make()
            eager = getattr(case, "EAGER", frozenset())
            row = {**said, **contest(case.calls(), case.error, most_error, self.options.samples, warmup_s, eager)}
            ours = {name: why for name, why in row["refused"].items() if is_ours(name)}
            if ours:
                row["error"] = "; ".join(f"{name}: {why}" for name, why in ours.items())
        except Exception as error:  # memory that is not there, say
            row = {**said, "error": first_line(error)}
        self.failed |= "error" in row
        self.result.setdefault(field, []).append(row)
        errors = {name: f"{e:.2g}" for name, e in row.get("errors", {}).items()}
        print(f"{text:<44} {show(row)}  errors {errors} {row.get('refused') or row.get('error', '')}", flush=True)
        if self.options.out:
            save(self.result, self.options.out)
        if ON_GPU:
            case = None
            torch.cuda.empty_cache()

    def status(self) -> int:
        return 1 if self.failed else 0
