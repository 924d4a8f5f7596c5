#!/usr/bin/env python3
"""Tables from made results: the figures, which run a row is taken from, what the scoreboard calls met, and that --check
sees a stale document."""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent

def overlap_row(m: int, ours: list, sequence: list) -> dict:
    return {"op": "ag_gemm", "ranks": 2, "m": m, "n": 5504, "k": 4096,
            "chosen": "tile=128x256x64 compute=116 gather=push workers=16 comm_rows=32 channels=8 stages=4 raster=8",
            "eager": {"ours_ms": ours, "gemm_ms": [1.0] * len(ours), "gemm_beside_traffic_ms": [1.125] * len(ours),
                      "nccl_ms": [0.5] * len(ours), "sequence_ms": sequence}}


def grouped_row(m: int, **ms) -> dict:
    """Of products that take 2e11 operations with 2048 tokens: 200 TFLOP/s are a millisecond."""
    return {"model": "made", "layer": 1, "m": m, "top_k": 2, "n": 5000, "k": 4882.8125,
            "graph": {name: [t] * 3 for name, t in ms.items()}}


class MadeResults(unittest.TestCase):
    """A folder of results, and a document of one table."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.document = self.folder / "page.md"
        self.document.write_text("before\n<!-- table: overlap-x2 -->\nold\n<!-- end -->\nafter\n", encoding="utf-8")

    def result(self, name: str, **fields):
        (self.folder / name).write_text(json.dumps(fields), encoding="utf-8")

    def tables(self, *arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run([sys.executable, str(HERE / "tables.py"), "--results", str(self.folder), *arguments,
                               str(self.document)], capture_output=True, text=True, check=False)


class Tables(MadeResults):
    def row(self, start: str) -> list:
        text = self.tables("--print", "overlap-x2").stdout
        lines = [line for line in text.splitlines() if line.startswith("| " + start)]
        self.assertEqual(len(lines), 1, text)
        return [cell.strip() for cell in lines[0].strip("|").split("|")]

    def test_figures(self):
        self.result("gpu-overlap-x2-2026-01-02.json", commit="abc",
                    overlap=[overlap_row(8192, [2.0, 2.0, 4.0], [3.0, 3.0, 6.0])])
        self.assertEqual(self.row("AG+GEMM 8192"),
                         ["AG+GEMM 8192, n = 5504, k = 4096", "2.000", "128x256 push 16", "1.000", "1.125", "0.500",
                          "3.000", "1.50 [1.50, 1.50]", "0.50 [0.40, 0.50]", "-", "ours"])

    def test_hidden_on_average_and_at_least(self):
        rows = [overlap_row(m, [ours], [2.0]) for m, ours in ((1024, 1.9), (4096, 1.25), (8192, 1.5))]
        self.result("gpu-overlap-x2-2026-01-02.json", overlap=rows)
        text = " ".join(self.tables("--print", "overlap-x2").stdout.split())
        self.assertIn("E_overlap from 4096 rows on: AG+GEMM 0.62 on average over 2 rows, 0.50 at least (eager).", text)
        for row, ours in zip(rows, (1.0, 1.0, 1.25), strict=True):
            row["graph"] = {**row["eager"], "ours_ms": [ours]}
        self.result("gpu-overlap-x2-2026-01-03.json", overlap=rows)
        self.assertIn("0.50 at least (eager); in graphs AG+GEMM 0.88, 0.75.",
                      " ".join(self.tables("--print", "overlap-x2").stdout.split()))

    def test_attention_in_turn(self):
        self.result("gpu-attention-pair-2026-01-02.json", heads=16, attention_pair=[
            {"head_dim": 128, "batch": 1, "sequence": 16384, "causal": True, "ours": [4.0] * 3, "cudnn": [5.0] * 3}])
        text = self.tables("--print", "attention-pair").stdout
        self.assertIn("| 128 causal 1 x 16384 | 275 | 220 | 1.250 [1.250, 1.250] | ours |", text)
        self.assertIn("Geometric mean of the ratios 1.250, least 1.250.", text)

    def test_shapes_of_two_ranks_do_not_mix(self):
        def product(k, theirs):
            return {"label": "o", "m": 8192, "n": 4096, "k": k, "eager": {"ours_ms": [1.0], "theirs_ms": [theirs]}}
        self.result("gpu-gemm-2026-01-02.json", gemm=[product(1024, 0.75), product(2048, 0.75)])
        self.result("gpu-gemm-tp2-2026-01-03.json", gemm=[product(4096, 1.25), product(8192, 1.25)])
        self.assertIn("| all | 2 | 0.750 | 0.750 |", self.tables("--print", "gemm").stdout)
        self.assertIn("| all | 2 | 1.250 | 1.250 |", self.tables("--print", "gemm-tp2").stdout)

    def test_fp8_in_turn(self):
        shape = {"m": 8192, "n": 8192, "k": 8192}
        self.result("gpu-fp8-pair-2026-01-02.json", fp8_pair=[
            {"scaling": "row-wise", **shape, "eager": {"ours": [1.0] * 3, "scaled_mm": [0.5] * 3},
             "graph": {"ours": [1.0] * 3, "scaled_mm": [2.0] * 3}},
            {"scaling": "block", **shape, "error": "torch._scaled_mm: no", "eager": {"ours": [1.0] * 3}}])
        text = self.tables("--print", "fp8-pair").stdout
        self.assertIn("| row-wise | eager | 1100 | 2199 | 0.500 [0.500, 0.500] | **PyTorch** |", text)
        self.assertIn("| row-wise | graph | 1100 | 550 | 2.000 [2.000, 2.000] | ours |", text)
        self.assertIn("| block | eager | 1100 | refused | - | - |", text)
        self.assertIn("| block | graph | failed: torch._scaled_mm: no |", text)
        self.assertIn("Geometric mean of the ratios 1.000, least 0.500.", text)

    def test_grouped_products(self):
        self.result("gpu-experts-pair-2026-01-02.json", grouped=[grouped_row(2048, ours=2.0, masked=4.0, grouped_mm=1.0,
                                                                             fp8=1.0, scaled_grouped_mm=0.5),
                                                                 grouped_row(4096, ours=1.0, grouped_mm=2.0)])
        text = self.tables("--print", "grouped-pair").stdout
        self.assertIn("| made, layer 1, 2048 tokens | 100 | 50 | 200 | 0.500 [0.500, 0.500] | **PyTorch** "
                      "| 0.250 [0.250, 0.250] | **PyTorch** |", text)
        self.assertIn("| made, layer 1, 4096 tokens | 400 | - | 200 | 2.000 [2.000, 2.000] | ours | - | - |", text)
        self.assertIn("Geometric mean of the ratios 1.000, least 0.500.", text)
        self.assertIn("Geometric mean of the ratios with masked rows 0.250, least 0.250.", text)
        text = self.tables("--print", "grouped-fp8-pair").stdout
        self.assertIn("| made, layer 1, 2048 tokens | 200 | 400 | 0.500 [0.500, 0.500] | **PyTorch** "
                      "| 1.00 [1.00, 1.00] |", text)

    def test_a_contestant_that_failed(self):
        row = {**grouped_row(2048, grouped_mm=1.0), "error": "ours: off by 0.5, allowed 0.01",
               "refused": {"ours": "off by 0.5, allowed 0.01", "scaled_grouped_mm": "NotImplementedError"}}
        self.result("gpu-experts-pair-2026-01-02.json", grouped=[row, {**grouped_row(4096), "error": "no memory"}])
        text = self.tables("--print", "grouped-pair").stdout
        self.assertIn("| failed: off by 0.5, allowed 0.01 | failed: ours: off", text)
        self.assertIn("| made, layer 1, 4096 tokens | failed: no memory | failed: no memory | - |", text)
        self.assertIn("| refused | - | - | - |", self.tables("--print", "grouped-fp8-pair").stdout)

    def test_routing(self):
        self.result("gpu-experts-pair-2026-01-02.json", routing=[
            {"m": 128, "experts": 8, "top_k": 2, "graph": {"ours": [0.01], "pytorch": [0.02], "ours_tables": [0.04],
                                                           "pytorch_tables": [0.02]}}])
        text = self.tables("--print", "routing-pair").stdout
        self.assertIn("| 128 tokens, 2 of 8 experts | no | 10.0 | 20.0 | 2.000 [2.000, 2.000] | ours |", text)
        self.assertIn("| yes | 40.0 | 20.0 | 0.500 [0.500, 0.500] | **PyTorch** |", text)

    def test_several_sequences(self):
        packed = {"sequences": "2 of 4096", "lengths": [4096] * 2, "heads": 16, "kv_heads": 8,
                  "graph": {"ours": [0.5] * 3, "flash2": [1.0] * 3, "cudnn": [0.25] * 3}}
        paged = {"batch": 16, "tokens": 32768, "bytes": 2e9, "refused": {"cudnn": "no backend"},
                 "graph": {"decode": [1.0], "attention": [2.0], "flash2": [1.5]}}
        self.result("gpu-sequences-pair-2026-01-02.json", head_dim=128, copy_bytes_per_s=4e12, packed=[packed],
                    paged=[paged])
        text = self.tables("--print", "packed-pair").stdout
        self.assertIn("| 2 of 4096 | 16, 8 | 275 | 137 | 550 | 0.500 [0.500, 0.500] | **PyTorch** |", text)
        text = self.tables("--print", "paged-pair").stdout
        self.assertIn("| 16 x 32768 | 1000.0 (0.50) | 2000.0 (0.25) | 1500.0 (0.33) | refused | 1.500 [1.500, 1.500] "
                      "| ours |", text)
        self.assertIn("A copy: 4.00 TB/s.", text)

    def test_who_won(self):
        self.result("gpu-overlap-x2-2026-01-02.json", overlap=[
            overlap_row(1, [2.0] * 5, [1.5] * 5), overlap_row(2, [1.5] * 5, [1.2, 1.4, 1.5, 1.6, 1.8])])
        self.assertEqual(self.row("AG+GEMM 1,")[-1], "**sequence**")
        self.assertEqual(self.row("AG+GEMM 2,")[-1], "neither")

    def test_newest_row_of_each_shape(self):
        self.result("gpu-overlap-x2-2026-01-02.json", overlap=[overlap_row(1, [1.0], [2.0]),
                                                               overlap_row(2, [1.0], [2.0])])
        self.result("gpu-overlap-x2-2026-01-03.json", overlap=[overlap_row(2, [1.25], [2.0])])
        self.result("gpu-overlap-x4-2026-01-04.json", overlap=[overlap_row(2, [9.0], [2.0])])
        self.result("gpu-overlap-x2-latest.json", overlap=[overlap_row(2, [8.0], [2.0])])
        self.assertEqual(self.row("AG+GEMM 2,")[1], "1.250")
        self.assertEqual(self.row("AG+GEMM 1,")[:2], ["AG+GEMM 1, n = 5504, k = 4096 \\*", "1.000"])

    def test_a_failure_is_shown(self):
        self.result("gpu-overlap-x2-2026-01-02.json", overlap=[overlap_row(1, [1.0], [2.0])])
        self.result("gpu-overlap-x2-2026-01-03.json", overlap=[
            {"op": "ag_gemm", "m": 1, "n": 5504, "k": 4096, "ranks": 2, "error": "wrong | result"}])
        self.assertEqual(self.row("AG+GEMM 1,")[1], "failed: wrong result")

    def test_pytorch_beside_ours(self):
        self.result("gpu-overlap-x2-2026-01-02.json", overlap=[overlap_row(1, [1.0], [2.0])])
        self.result("gpu-overlap-torch-x2-2026-01-02.json", overlap=[
            {"op": "ag_gemm", "ranks": 2, "m": 1, "n": 5504, "k": 4096,
             "eager": {"async_tp_ms": [1.75], "sequence_ms": [3.5], "gemm_ms": [1.0]}}])
        self.assertEqual(self.row("AG+GEMM 1,")[9], "1.750 async-TP")
        self.assertIn("| async-TP | 1.750 | 1.000 | 3.500 | 2.00 [2.00, 2.00] |",
                      self.tables("--print", "async-tp-x2").stdout)

    def test_sweep(self):
        row = {"op": "gemm_rs", "ranks": 2, "n": 4096, "k": 7168, "mode": "eager", "winner": "fused",
               "config": "tile=128x256x64 scatter=copy_engine", "nccl_ms": [4.0] * 3}
        self.result("gpu-sweep-x2-2026-01-02.json", sweep=[
            {**row, "m": 1024, "fused_ms": [1.0, 1.0, 1.5], "own_ms": [2.0] * 3},
            {**row, "m": 4096, "fused_ms": [1.0] * 3, "own_ms": [2.0] * 3},
            {**row, "m": 8192, "fused_ms": [1.0] * 3, "own_ms": [2.0] * 3},
            {**row, "m": 2048, "fused_ms": [5.0] * 3, "own_ms": [6.0] * 3, "winner": "NCCL"}])
        text = self.tables("--print", "sweep-x2").stdout
        self.assertIn("| GEMM+RS 1024, n = 4096, k = 7168 | eager | 1.000 | 128x256 copy engine | 4.000 | 2.000 "
                      "| 0.500 [0.500, 0.750] | fused |", text)
        self.assertIn("| 1.250 [1.250, 1.250] | NCCL |", text)
        self.assertIn("the fused operator in 3 of 4 rows, cuBLASLt and NCCL in 1", text)
        self.assertIn("0.750 (GEMM+RS 1024", text)

    def test_exchange(self):
        row = {"op": "dispatch", "way": "one-hop", "dtype": "bf16", "ranks": 2, "tokens": 128, "bytes": 2e6,
               "chosen": "128 workers", "graph": {"ours_ms": [0.02] * 3, "nccl_ms": [0.04] * 3}}
        self.result("gpu-exchange-x2-2026-01-02.json", exchange=[row, {**row, "op": "combine", "graph": {
            "ours_ms": [0.04] * 3, "nccl_ms": [0.02] * 3}}, {**row, "tokens": 4096, "graph": {}, "error": "late"}])
        text = self.tables("--print", "exchange-x2").stdout
        self.assertIn("| dispatch bf16, one-hop, 128 tokens a rank | 20.0 | 40.0 | 100 | 50 | 2.00 [2.00, 2.00] "
                      "| 128 workers | ours |", text)
        self.assertIn("| 0.50 [0.50, 0.50] | 128 workers | **NCCL** |", text)
        self.assertIn("4096 tokens a rank | failed: late |", text)

    def test_python_and_cpp_in_turn(self):
        row = {"op": "gemm_rs", "ranks": 2, "m": 4096, "n": 4096, "k": 7168, "cpp_ms": [2.0, 4.0, 2.0],
               "in_place_ms": [2.0, 4.0, 2.5], "plain_ms": [2.5, 5.0, 2.5]}
        self.result("gpu-pytorch-pair-x2-2026-01-02.json", pairs=[row])
        self.result("gpu-pytorch-x2-2026-01-03.json", products=[])  # another kind
        text = self.tables("--print", "pytorch-pair-x2").stdout
        self.assertIn("| GEMM+RS 4096, n = 4096, k = 7168 | 2.000 | 2.500 | 2.500 | 1.000 [1.000, 1.250] "
                      "| 1.250 [1.250, 1.250] |", text)

    def test_attention_ranks(self):
        row = {"label": "gathered m=8", "ranks": 2, "flops": 4e9, "bytes": 0.0, "one_ms": [8.0] * 3,
               "all_ms": [5.0, 4.5, 5.5], "exchange_ms": [4.0] * 3}
        decode = {"label": "decode tokens=8", "ranks": 2, "flops": 0.0, "bytes": 3e9, "one_ms": [2.0], "all_ms": [1.0]}
        self.result("gpu-attention-ranks-x2-2026-01-02.json", attention_ranks=[row, decode])
        text = self.tables("--print", "attention-ranks-x2").stdout
        self.assertIn("| gathered m=8 | 8.000 | 5.000 | 1 TFLOP/s | 0.80 | - | 4.000 | - |", text)
        self.assertIn("| decode tokens=8 (1 sample) | 2.000 | 1.000 | 3.00 TB/s | 1.00 | - | - | - |", text)
        # Sample by sample, whatever one GPU takes.
        self.result("gpu-attention-ranks-x2-2026-01-03.json", attention_ranks=[
            {**row, "without_ms": [4.0, 4.5, 4.5]}, {"label": "ring m=8", "ranks": 2, "error": "late"}])
        text = self.tables("--print", "attention-ranks-x2").stdout
        self.assertIn("| gathered m=8 | 8.000 | 5.000 | 1 TFLOP/s | 0.80 | 4.500 | 4.000 | 0.75 [0.75, 1.00] |", text)
        self.assertIn("| ring m=8 | failed: late |", text)

    def test_startup(self):
        self.result("gpu-startup-x2-2026-01-02.json", startup=[
            {"op": "gemm", "cold_s": 1.5, "nvrtc_s": 1.25, "warm_ms": [9.0, 2.0, 1.0], "new_m_ms": [0.5] * 4,
             "compiled": 0}, {"op": "ag_gemm", "error": "no GPU"}])
        text = self.tables("--print", "startup-x2").stdout
        self.assertIn("| gemm | 1.50 | 1.25 | 2.0, at most 9.0 | 0.500, at most 0.500 (4) | 0 |", text)
        self.assertIn("| ag_gemm | failed: no GPU |", text)

    def test_check(self):
        self.result("gpu-overlap-x2-2026-01-02.json", overlap=[overlap_row(1, [1.0], [2.0])])
        self.assertEqual(self.tables("--check").returncode, 1)
        self.assertIn("old", self.document.read_text(encoding="utf-8"))
        self.assertEqual(self.tables().returncode, 0)
        text = self.document.read_text(encoding="utf-8")
        self.assertTrue(text.startswith("before\n<!-- table: overlap-x2 -->\n| operator"), text)
        self.assertTrue(text.endswith("<!-- end -->\nafter\n"), text)
        self.assertEqual(self.tables("--check").returncode, 0)
        self.result("gpu-overlap-x2-2026-01-03.json", overlap=[overlap_row(1, [1.5], [2.0])])
        self.assertEqual(self.tables("--check").returncode, 1)

    def test_every_document_is_written(self):
        self.result("gpu-overlap-x2-2026-01-02.json", commit="abc", overlap=[overlap_row(1, [1.0], [2.0])])
        other = self.folder / "other.md"
        other.write_text("<!-- table: async-tp-x2 -->\nold\n<!-- end -->\n", encoding="utf-8")
        self.assertIn("'async-tp-x2' of other.md", self.tables("--check", str(other)).stdout)
        self.assertEqual(self.tables(str(other)).returncode, 0)
        self.assertIn("Not measured yet.", other.read_text(encoding="utf-8"))
        self.assertIn("(abc, H200s). Samples of a row: 1.", self.document.read_text(encoding="utf-8"))

    def test_bad_documents(self):
        for text in ("<!-- table: overlap-x2 -->\n", "<!-- table: nothing -->\n<!-- end -->\n"):
            self.document.write_text(text, encoding="utf-8")
            self.assertEqual(self.tables("--check").returncode, 2, text)

    def test_simulated_times_are_none(self):
        self.result("gpu-overlap-x2-2026-11-23.json", machine="GPU 0: simulated Hopper (0000:01:00), sm_90", overlap=[])
        done = self.tables("--check")
        self.assertEqual(done.returncode, 2)
        self.assertIn("simulated", done.stderr)


class Scoreboard(MadeResults):
    """What a reader takes from it: the figure, whether it meets the bar, and a page that is there."""

    def line(self, start: str) -> list:
        text = self.tables("--print", "scoreboard").stdout
        lines = [line for line in text.splitlines() if line.startswith("| " + start)]
        self.assertEqual(len(lines), 1, text)
        return [cell.strip() for cell in lines[0].strip("|").split("|")][1:]

    def test_other_cards_are_named(self):
        self.result("gpu-overlap-x2-2026-01-02.json", commit="abc", machine="GPU 0: NVIDIA H200",
                    overlap=[overlap_row(4096, [1.0], [2.0]), overlap_row(8192, [1.0], [2.0])])
        self.assertEqual(self.line("AG+GEMM from 4096 rows on")[2], "1.00, least 1.00")
        self.result("gpu-overlap-x2-2026-01-03.json", commit="def", machine="GPU 0: NVIDIA H100 80GB HBM3",
                    overlap=[overlap_row(4096, [1.0], [2.0])])
        self.assertEqual(self.line("AG+GEMM from 4096 rows on")[2], "1.00, least 1.00 (in part on H100s)")
        self.assertIn("(def, H100s): 1 of 2 rows,", " ".join(self.tables("--print", "overlap-x2").stdout.split()))
        self.result("gpu-overlap-x2-2026-01-04.json", machine="NVIDIA H100 80GB HBM3",
                    overlap=[overlap_row(4096, [1.0], [2.0]), overlap_row(8192, [1.0], [2.0])])
        self.assertEqual(self.line("AG+GEMM from 4096 rows on")[2], "1.00, least 1.00 (H100s)")

    def test_copies_are_hidden_where_the_launch_without_them_was_timed(self):
        row = {"label": "gathered m=32768", "one_ms": [16.0] * 3, "all_ms": [8.4] * 3, "exchange_ms": [0.5] * 3}
        what = "attention with keys and values gathered"
        self.result("gpu-attention-ranks-x2-2026-01-02.json", attention_ranks=[row])
        self.assertEqual(self.line(what)[2], "-")
        self.result("gpu-attention-ranks-x2-2026-01-03.json", attention_ranks=[
            {**row, "without_ms": [8.375, 8.35, 8.375]}, {**row, "label": "gathered m=8192", "without_ms": [8.0] * 3}])
        self.assertEqual(self.line(what)[2:5], ["0.95", "-", "yes"])

    def test_calls_from_python_by_rounds(self):
        calls = {"launch alone": 5.0, "all_reduce(x, out=out)": 6.0, "all_reduce(x)": 10.5,
                 "torch.ops.stretto.all_reduce(x)": 15.0}
        self.result("gpu-pytorch-x2-2026-01-02.json", overhead_us=calls)
        self.assertEqual(self.line("Python over a bare launch")[2:5], ["**1.0, 5.5, 10.0 us**", "-", "no"])
        made = {name: [us] * 3 for name, us in calls.items()}
        made["all_reduce(x)"] = [9.5, 10.5, 11.5]  # a round has what its launches alone take, too
        made["launch alone"] = [4.75, 5.0, 5.25]
        self.result("gpu-pytorch-x2-2026-01-03.json", overhead_us=made)
        self.assertEqual(self.line("Python over a bare launch")[2:5], ["1.0, 5.5, 10.0 us (within)", "-", "within"])
        made["all_reduce(x)"] = [13.5, 14.5, 15.5]
        made["torch.empty_like(x)"] = [3.0] * 3  # PyTorch's part of a result that is made
        self.result("gpu-pytorch-x2-2026-01-04.json", overhead_us=made)
        self.assertEqual(self.line("Python over a bare launch")[2:5], ["**1.0, 6.5 + 3.0, 10.0 us**", "-", "no"])

    def test_async_tp_in_turn(self):
        def called(m, theirs, ours):
            return {**{name: row[name] for name in ("op", "ranks", "n", "k")}, "m": m,
                    "eager": {"async_tp_ms": theirs, "staged_ms": ours}}
        row = overlap_row(4096, [1.0], [2.0])
        self.result("gpu-overlap-x2-2026-01-02.json", overlap=[row])
        self.result("gpu-pytorch-x2-2026-01-02.json", products=[called(4096, [3.0] * 3, [2.0] * 3),
                                                                called(1024, [1.0] * 3, [2.0] * 3)])
        self.assertEqual(self.line("both called from PyTorch")[2:5], ["1.50x; 1 of 1 rows", "-", "yes"])
        self.result("gpu-overlap-x2-2026-01-02.json", overlap=[row, {**row, "m": 8192}])
        self.assertEqual(self.line("both called from PyTorch")[2:5],
                         ["1.50x; 1 of 2 rows, 1 not timed", "-", "not measured"])
        self.result("gpu-pytorch-x2-2026-01-03.json", products=[called(8192, [3.0, 1.0, 3.0], [2.0] * 3)])
        self.assertEqual(self.line("both called from PyTorch")[2:5],
                         ["1.50x; 1 of 2 rows, 1 within (within)", "-", "within"])

    def test_other_cards_are_not_compared(self):
        row = {**overlap_row(4096, [1.0], [2.0]), "op": "gemm_rs"}
        torch = {**row, "eager": {"async_tp_ms": [1.5]}}
        self.result("gpu-overlap-torch-x2-2026-01-02.json", machine="NVIDIA H200", overlap=[torch])
        self.result("gpu-overlap-x2-2026-01-03.json", machine="NVIDIA H100 80GB HBM3", overlap=[row])
        self.assertNotIn("async-TP", self.tables("--print", "overlap-x2").stdout)

    def test_met_missed_and_not_measured(self):
        def rows(ours):  # E_overlap of a row is 2 - ours
            return [overlap_row(m, [t], [2.0]) for m, t in zip((1024, 4096, 8192), ours, strict=True)]
        self.result("gpu-overlap-x2-2026-01-02.json", overlap=rows([1.9, 1.0625, 1.125]))
        self.assertEqual(self.line("AG+GEMM from 4096 rows on")[1:5], ["", "0.91, least 0.88", "-", "yes"])
        self.result("gpu-overlap-x4-2026-01-02.json", overlap=rows([1.0, 1.0, 1.375]))
        self.assertEqual(self.line("AG+GEMM from 4096 rows on")[1:5],
                         ["", "0.91, least 0.88", "**0.81, least 0.62**", "in part"])
        self.result("gpu-overlap-x2-2026-01-03.json", overlap=rows([1.0, 1.5, 1.0]))
        self.assertEqual(self.line("AG+GEMM from 4096 rows on")[2:5],
                         ["**0.75, least 0.50**", "**0.81, least 0.62**", "no"])
        self.assertEqual(self.line("GEMM+RS from 4096 rows on")[1:5], ["", "-", "-", "not measured"])

    def test_the_default_is_chosen_unless_another_is_predicted_to_take_less(self):
        for rows, predicted, ms, loss, first in ((64, 1.0, 1.0, "25.0", "25.0"), (64, 0.91, 1.0, "25.0", "0.0"),
                                                 (64, 0.89, 1.0, "0.0", "0.0"), (512, 0.96, 1.0, "25.0", "0.0"),
                                                 (512, 0.94, 1.0, "0.0", "0.0"), (512, 0.94, 2.5, "100.0", "100.0")):
            self.points(2, (1.0, 1.25), (predicted, ms), (2.0, 2.0), m=rows)
            self.assertEqual(self.line("choosing by prediction")[2],
                             f"{loss} % over 1 shapes, the first in prediction {first} %")

    def points(self, ranks: int, *times, m: int = 64):
        """Points of one shape, each (predicted, measured)."""
        self.result(f"gpu-points-x{ranks}-2026-01-02.json", points=[
            {"op": "gemm_rs", "ranks": ranks, "m": m, "n": 8, "k": 8, "predicted_ms": predicted, "measured_ms": ms}
            for predicted, ms in times])

    def test_predictions_of_two_and_four_gpus_are_judged_together(self):
        name = "predicted before it was measured"
        self.points(1, *[(2.0, 1.0)] * 300)  # information alone
        self.points(2, *[(1.15, 1.0)] * 75)
        self.assertEqual(self.line(name)[1:5], ["100 %, 100 % of 300 points", "15 %, 15 % of 75 points", "-",
                                                "not measured"])
        self.points(4, *[(1.05, 1.0)] * 125)
        self.assertEqual(self.line(name)[2:5], ["15 %, 15 % of 75 points", "5 %, 5 % of 125 points",
                                                "yes: 9 %, 15 % of 200 points"])
        self.points(4, *[(1.25, 1.0)] * 125)
        self.assertEqual(self.line(name)[4], "no: **21 %, 25 % of 200 points**")

    def test_losses_of_choosing_are_judged_together(self):
        self.points(2, (1.0, 1.05), (2.0, 1.0))  # the same shape on four GPUs is another
        self.points(4, (1.0, 1.0), (2.0, 2.0))
        texts = [f"{loss} % over {count} shapes, the first in prediction {loss} %"
                 for loss, count in (("5.0", 1), ("0.0", 1), ("2.5", 2))]
        self.assertEqual(self.line("choosing by prediction")[2:5], [*texts[:2], f"yes: {texts[2]}"])
        self.points(1, (1.0, 9.0), (2.0, 1.0))  # information alone
        self.assertEqual(self.line("choosing by prediction")[4], f"yes: {texts[2]}")

    def test_gemm_ar_is_within_a_bar_that_the_interval_only_reaches(self):
        def rows(ms: dict):  # {m: (ours, sequence)}
            return [{"op": "gemm_ar", "m": m, "n": 8, "k": 8, "graph": {"ours_ms": ours, "sequence_ms": over}}
                    for m, (ours, over) in ms.items()]
        fast = {m: ([1.0] * 3, [2.0] * 3) for m in (4096, 8192)}
        few = {m: ([us / 1e3] * 3, [1.0] * 3) for m, us in ((1, 34), (64, 39))}
        for above, ratios, times in (([1.45, 1.5, 1.6], "1.50x, 2.00x, 2.00x", ([0.064, 0.065, 0.066], "65.0 us")),
                                     ([1.4, 1.44, 1.45], "1.44x, 2.00x, 2.00x (within)",
                                      ([0.066, 0.067, 0.068], "67.0 us (within)")),
                                     ([1.4, 1.44, 1.44], "**1.44x, 2.00x, 2.00x**", ([0.067] * 3, "67.0 us**"))):
            self.result("gpu-overlap-x2-2026-01-02.json", overlap=rows(
                {**few, 256: (times[0], [1.0] * 3), 1024: ([1.0] * 3, above), **fast}))
            self.assertEqual(self.line("GEMM+AR in graphs, 1024")[2], ratios)
            self.assertEqual(self.line("the same, 1, 64, 256 rows")[2].split(", ")[-1], times[1])

    def test_what_is_asked_on_four_alone(self):
        rows = [{"op": op, "way": "one-hop", "dtype": dtype, "tokens": 128, "bytes": 2e6, "ranks": 2,
                 "graph": {"ours_ms": [0.05], "nccl_ms": [0.1]}}
                for op, dtype in (("dispatch", "e4m3"), ("combine", "bf16"))]
        self.result("gpu-exchange-x2-2026-01-02.json", exchange=rows)
        self.assertEqual(self.line("dispatch (e4m3) + combine")[1:5], ["", "50 + 50 us", "-", "not measured"])
        self.result("gpu-exchange-x4-2026-01-02.json", exchange=rows)
        self.assertEqual(self.line("dispatch (e4m3) + combine")[3:5], ["**50 + 50 us**", "no"])

    def test_calls_from_python_count_row_by_row(self):
        def row(m, in_place):
            return {"op": "ag_gemm", "ranks": 2, "m": m, "n": 8, "k": 8, "cpp_ms": [2.0], "in_place_ms": [in_place],
                    "plain_ms": [2.0]}
        self.result("gpu-pytorch-pair-x2-2026-01-02.json", pairs=[row(8192, 2.0), row(4096, 2.25)])
        self.assertEqual(self.line("AG+GEMM, GEMM+RS and GEMM+AR from PyTorch")[2:5],
                         ["**1.00 to 1.12; 1 of 2 rows**", "-", "no"])
        self.assertEqual(self.line("the same of ordinary tensors")[2:5], ["1.00; 2 of 2 rows", "-", "yes"])

    def test_fastest_all_reduce_counts(self):
        def row(way, size, us):
            return {"op": f"all_reduce_{way} {size}", "graph": {"ours_ms": [us / 1000], "nccl_ms": [0.01]}}
        slow = [row("two_shot", size, 9) for size in ("4 KB", "16 KB", "512 KB", "1 MB", "64 MB")]
        self.result("gpu-collectives-x2-2026-01-02.json", collectives=slow)
        self.assertEqual(self.line("all-reduce in graphs")[2], "**9.0 and 9.0, 9.0, 9.0 us; 1.11x at 64 MB**")
        self.result("gpu-collectives-x2-2026-01-03.json", collectives=[
            row("packet", size, 4) for size in ("4 KB", "16 KB", "512 KB")])
        self.assertEqual(self.line("all-reduce in graphs")[2], "4.0 and 4.0, 4.0, 9.0 us; 1.11x at 64 MB")

    def test_roofline_of_weights_and_of_products(self):
        def row(tokens, flops, ours):  # 32 experts of 4096 x 8192: 3.22 GB of weights on each of two, 0.758 ms
            return {"model": "32-experts", "layer": 0, "m": tokens, "ranks": 2, "flops": flops,
                    "eager": {"ours_ms": [ours], "sequence_ms": [1.5], "gemm_ms": [0.5], "nccl_ms": [0.5]}}
        name = "the same from 8,192 tokens on, part of the grouped"
        self.result("gpu-moe-x2-2026-01-02.json", moe=[row(64, 7e9, 9.0), row(8192, 6.3e11, 1.0)])
        self.assertEqual(self.line(name)[2], "0.90")
        self.result("gpu-moe-x2-2026-01-03.json", moe=[row(16384, 7e9, 2.0)])  # by the weights
        self.assertEqual(self.line(name)[2], "**0.38 to 0.90**")
        spread = [{**row(m, 6.3e11, 9.0), "graph": {"ours_ms": [ours], "sequence_ms": [1.5]}}
                  for m, ours in ((64, 9.0), (8192, 1.2), (16384, 1.25))]
        self.result("gpu-ep-moe-x2-2026-01-02.json", ep_moe=spread)
        self.assertEqual(self.line("the same from 8,192 tokens on, exchange")[1:3], ["-", "**0.72 to 0.75**"])

    def test_whole_layers_of_experts(self):
        def row(case, theirs, ours):
            return {"case": case, "graph": {"sequence_ms": [theirs], "in one launch_ms": [ours]}}
        name = "the same, speed over PyTorch's grouped products"
        self.result("gpu-layers-x1-2026-01-02.json", ranks=1, rows=[
            row("whole 32-experts m=16", 3.0, 2.0), row("layer qwen2-moe m=2048", 1.0, 2.0),
            {"case": "whole 32-experts m=64", "graph": {"sequence_ms": [1.0]}, "errors": {"in one launch": "refused"}}])
        self.assertEqual(self.line(name)[1], "1.50x; 1 of 1 rows")
        spread = [{"model": "32-experts", "m": m, "graph": {"sequence_ms": [1.0], "ours_ms": [ours]}}
                  for m, ours in ((16, 0.5), (64, 2.0))]
        self.result("gpu-ep-moe-x2-2026-01-02.json", ep_moe=spread)
        self.assertEqual(self.line("layers of spread experts")[1:3], ["-", "**0.50 to 2.00x; 1 of 2 rows**"])

    def test_spread_layers_beside_the_faster_of_pytorchs(self):
        name = "the same, eager, speed over the faster of two"
        self.assertEqual(self.line(name)[-2], "not measured")
        times = {"gathered_ms": [3.0], "exchanged_ms": [2.0], "in one launch_ms": [1.0]}
        captured = {"gathered_ms": [3.0], "in one launch_ms": [1.5]}
        self.result("gpu-layers-x2-2026-01-02.json", ranks=2, rows=[
            {"case": "spread 32-experts m=16", "eager": times, "graph": captured},
            {"case": "spread 32-experts m=64", "eager": {"gathered_ms": [3.0]}, "errors": {"in one launch": "no"}}])
        self.assertEqual(self.line(name)[2], "2.00x; 1 of 1 rows")
        text = self.tables("--print", "spread-layers-x2").stdout
        self.assertRegex(text, r"32-experts, 16 tokens \| 1\.500 \| 3\.000 \| - \| 2\.00")
        self.assertRegex(text, r"32-experts, 16 tokens, eager \| 1\.000 \| 3\.000 \| 2\.000 \| 2\.00")

    def test_contests(self):
        slow = {**grouped_row(4096, ours=2.5, grouped_mm=2.0), "refused": {"fp8": "no"}}
        self.result("gpu-experts-pair-2026-01-02.json", grouped=[grouped_row(2048, ours=1.0, grouped_mm=1.0), slow])
        self.assertEqual(self.line("grouped products bf16")[1:5], ["**0.80 to 1.00x; 1 of 2 rows; 160 to 200 TFLOP/s**",
                                                                   "", "", "no"])
        self.assertEqual(self.line("grouped products e4m3")[1:5], ["-", "", "", "not measured"])
        cached = [{"batch": batch, "tokens": 32768, "bytes": 3.4e9, "graph": {"decode": [t], "cudnn": [2.0]}}
                  for batch, t in ((1, 4.0), (16, 1.0))]
        self.result("gpu-sequences-pair-2026-01-02.json", copy_bytes_per_s=4e12, paged=cached)
        self.assertEqual(self.line("decoding over pages")[1], "**0.50 to 2.00x; 1 of 2 rows**")
        self.assertEqual(self.line("the same from 256 thousand")[1], "0.85")

    def test_pages_exist(self):
        text = self.tables("--print", "scoreboard").stdout
        pages = set(re.findall(r"\((\w+\.md)\)", text))
        self.assertGreater(len(pages), 10)
        for page in pages:
            self.assertTrue((HERE.parent.parent / "docs" / "performance" / page).is_file(), page)


if __name__ == "__main__":
    unittest.main(verbosity=2)
