#!/usr/bin/env python3
"""What the tests of a run of bench/gpu/pytorch_suite came to, as one JSON file to keep with the results:
    bench/gpu/pytorch_summary.py OUT.json --commit C --driver D STEP:STATUS:SECONDS:FILE...
FILE: what rank 0 of the step wrote (gpu_testing.py); a step that was ended leaves none."""

import argparse
import datetime
import json
import pathlib
import sys


def of_step(text: str) -> dict:
    name, status, seconds, path = text.split(":", 3)
    row = {"step": name, "status": int(status), "seconds": int(seconds)}
    if pathlib.Path(path).exists():
        row.update(json.loads(pathlib.Path(path).read_text(encoding="utf-8")))
    return row


def summary(rows: list) -> str:
    """A line for people; a step without a report counts as failed."""
    lines = []
    for row in rows:
        told = "no report" if "tests" not in row else (
            f"{row['tests']} tests, {len(row['failed'])} failed, {len(row['skipped'])} skipped")
        lines.append(f"{row['step']}: status {row['status']}, {told}, {row['seconds']} s")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--driver", default="unknown")
    parser.add_argument("steps", nargs="+")
    args = parser.parse_args()
    rows = [of_step(text) for text in args.steps]
    result = {"date": str(datetime.date.today()), "commit": args.commit, "driver": args.driver, "steps": rows}
    pathlib.Path(args.out).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(summary(rows))
    return 0 if all(row["status"] == 0 and not row.get("failed", ["?"]) for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
