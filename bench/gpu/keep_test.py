#!/usr/bin/env python3
"""Rows that are kept of runs: tables of them are those of the runs. If these fail, a figure of a page changes without a
measurement, or is lost."""

import json
import os
import pathlib
import random
import subprocess
import sys
import unittest

from tables_test import HERE, MadeResults, overlap_row

SEED = int(os.environ.get("STRETTO_TEST_SEED") or random.SystemRandom().getrandbits(32))
MACHINE = "GPU 0: NVIDIA H100 80GB HBM3 (0000:00:06), sm_90, 132 SMs, 79.2 GiB"


class Keep(MadeResults):
    def keep(self, *names: str, status: int = 0) -> str:
        """Keeps of runs and removes them."""
        files = [self.folder / name for name in names]
        done = subprocess.run([sys.executable, str(HERE / "keep.py"), "--results", str(self.folder), *map(str, files)],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, status, done.stderr)
        for file in files if status == 0 else ():
            file.unlink()
        return done.stdout + done.stderr

    def shown(self, name: str = "overlap-x2") -> str:
        return self.tables("--print", name).stdout

    def kept(self, name: str) -> list:
        return [json.loads(line) for line in (self.folder / name).read_text(encoding="utf-8").splitlines()]

    def test_tables_of_drawn_runs_stay(self):
        print(f"STRETTO_TEST_SEED={SEED}", file=sys.stderr)
        draw = random.Random(SEED)
        for number in range(1, 5):
            rows = [overlap_row(m, [draw.uniform(0.1, 9) for _ in range(12)], [draw.uniform(0.1, 9) for _ in range(12)])
                    for m in draw.sample(range(1, 9), draw.randint(1, 6))]
            for row in rows:
                row["configs"] = [{"config": "another", "ms": 1.0}]
            run = f"gpu-overlap-x2-2026-01-0{number}.json"
            self.result(run, machine=MACHINE, commit=f"c{number}", overlap=rows)
            before, scoreboard = self.shown(), self.shown("scoreboard")
            self.keep(run)
            self.assertEqual(self.shown(), before)
            self.assertEqual(self.shown("scoreboard"), scoreboard)
        lines = self.kept("overlap-x2.jsonl")
        self.assertEqual(len(lines), len({line["row"]["m"] for line in lines}))
        self.assertNotIn("another", json.dumps(lines))

    def test_a_line_says_where_its_row_comes_from(self):
        self.result("gpu-overlap-x2-2026-01-02.json", machine=MACHINE, commit="abc", date="2026-01-02T03:04:05Z",
                    seed=7, command="gpu_bench overlap --ranks 2", driver="580.1", cublaslt="cuBLASLt 13.1.0 (x.so)",
                    overlap=[overlap_row(m, [1.0], [2.0]) for m in (8, 16)])
        self.keep("gpu-overlap-x2-2026-01-02.json")
        line, next_line = self.kept("overlap-x2.jsonl")
        self.assertEqual({**next_line, "row": 0}, {"run": "gpu-overlap-x2-2026-01-02", "of": "overlap", "row": 0})
        want = {"run": "gpu-overlap-x2-2026-01-02", "date": "2026-01-02T03:04:05Z", "commit": "abc",
                "card": "H100 80GB HBM3", "command": "gpu_bench overlap --ranks 2",
                "with": "driver 580.1, cuBLASLt 13.1.0", "said": {"seed": 7}, "of": "overlap"}
        self.assertEqual({key: line[key] for key in want}, want)
        before = (self.folder / "overlap-x2.jsonl").read_text(encoding="utf-8")
        self.keep()
        self.assertEqual((self.folder / "overlap-x2.jsonl").read_text(encoding="utf-8"), before)

    def test_fields_that_are_no_lists(self):
        calls = {"launch alone": [1.0] * 5, "all_reduce(x)": [3.0] * 5, "all_reduce(x, out=out)": [2.0] * 5,
                 "torch.ops.stretto.all_reduce(x)": [9.0] * 5}
        for day in (2, 3):
            self.result(f"gpu-pytorch-x2-2026-01-0{day}.json", products=[], overhead_us=calls)
        before = self.shown("python-calls")
        self.keep("gpu-pytorch-x2-2026-01-02.json", "gpu-pytorch-x2-2026-01-03.json")
        self.assertEqual(self.shown("python-calls"), before)
        self.assertEqual([line["run"] for line in self.kept("pytorch-x2.jsonl")], ["gpu-pytorch-x2-2026-01-03"])

    def test_verdicts_are_of_samples_that_are_not_kept_too(self):
        """The first of 200 say the contrary of all."""
        def times(ours):
            return {"sequence": [1.0, 1.01] * 100, "again": [1.0, 1.01] * 100, "gemm": [0.5] * 200, "ours": ours,
                    "symmetric": [x / 2 for x in ours]}

        slow, fast = [1.5] * 60 + [0.8] * 140, [0.8] * 60 + [1.5] * 140
        rows = [{"op": "gemm_rs", "m": m, "n": 8, "k": 8, "layer": "a", "first_s": 1.0, "eager_ms": times(ours),
                 "graph_ms": times(ours)} for m, ours in ((4096, slow), (8192, fast))]
        self.result("gpu-user-x2-2026-01-02.json", lot=rows)
        names = "user-lot-x2", "user-lot-shapes-x2"
        before = [self.shown(name) for name in names]
        self.keep("gpu-user-x2-2026-01-02.json")

        def numbers(text):
            return [line for line in text.splitlines() if line.startswith("|")]

        self.assertEqual([numbers(self.shown(name)) for name in names], [numbers(text) for text in before])
        self.assertIn("eager 0.500 on average", self.shown(names[0]))
        kept = self.folder / "user-x2.jsonl"
        self.assertEqual({len(line["row"]["eager_ms"]["ours"]) for line in self.kept(kept.name)}, {12})
        again = kept.read_text(encoding="utf-8")
        self.keep()
        self.assertEqual(kept.read_text(encoding="utf-8"), again)
        verdicts = numbers(self.shown("user-lot-shapes-x2"))
        self.assertEqual([line.split("|")[-2].strip() for line in verdicts if "GEMM+RS" in line],
                         ["met", "met", "over", "over"])

    def test_what_no_table_reads_is_told(self):
        self.result("gpu-links-x4-2026-01-02.json", links=[{"us": 1.0}])
        self.assertIn("no table reads gpu-links-x4-2026-01-02.json", self.keep("gpu-links-x4-2026-01-02.json"))
        self.assertEqual(list(self.folder.glob("*.jsonl")), [])

    def test_broken_lines_are_named_and_lose_nothing(self):
        self.result("gpu-overlap-x2-2026-01-02.json", overlap=[overlap_row(m, [1.0], [2.0]) for m in (8, 16)])
        self.keep("gpu-overlap-x2-2026-01-02.json")
        path = self.folder / "overlap-x2.jsonl"
        good = path.read_text(encoding="utf-8")
        for broken, why in ((good + "{", "overlap-x2.jsonl:3: no kept row"),
                            (good + "{}\n", "overlap-x2.jsonl:3: no kept row"),
                            (good + good.replace("overlap-x2", "overlap-x4"), "overlap-x2.jsonl:3: rows of")):
            path.write_text(broken, encoding="utf-8")
            self.assertIn(why, self.keep(status=2))
            self.assertIn(why, self.tables("--print", "overlap-x2").stderr)
            self.assertEqual(path.read_text(encoding="utf-8"), broken)

    def test_the_results_of_the_pages_are_small_and_all_read(self):
        folder = pathlib.Path(HERE).parent / "results"
        self.assertLess(sum(path.stat().st_size for path in folder.iterdir()), 3_000_000)
        self.assertEqual({path.suffix for path in folder.iterdir()}, {".jsonl"})
        for path in folder.iterdir():
            (self.folder / path.name).write_bytes(path.read_bytes())
        self.keep()
        for path in folder.iterdir():
            self.assertEqual((self.folder / path.name).read_bytes(), path.read_bytes(), path.name)


if __name__ == "__main__":
    unittest.main(verbosity=2)
