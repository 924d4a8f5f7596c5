#!/usr/bin/env python3
"""Tests of the statistics and verdicts that pages are made with, against the standard library, every outcome of
few samples, and many drawn ones. If they fail, pages call met what is not."""

import itertools
import json
import os
import pathlib
import random
import statistics
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import lot_tables  # noqa: E402
import routing_tables  # noqa: E402
import user_tables  # noqa: E402
import verdicts  # noqa: E402
from results import Interval, Results, interval, interval_rank, mark, median, quantile, sources  # noqa: E402

SEED = int(os.environ.get("STRETTO_TEST_SEED") or random.SystemRandom().getrandbits(32))


class Statistics(unittest.TestCase):
    def setUp(self):
        self.random = random.Random(SEED)
        print(f"STRETTO_TEST_SEED={SEED}", file=sys.stderr)

    def drawn(self, most: int = 70) -> list:
        return [self.random.choice((self.random.random(), float(self.random.randrange(5))))
                for _ in range(self.random.randint(1, most))]

    def test_medians_and_quantiles_are_those_of_the_library(self):
        for _ in range(300):
            samples = self.drawn()
            self.assertEqual(median(samples), statistics.median(samples))
            self.assertEqual(interval(samples).median, statistics.median(samples))
            if len(samples) > 1:
                tenths = statistics.quantiles(samples, n=10, method="inclusive")
                for at, want in enumerate(tenths, 1):
                    self.assertAlmostEqual(quantile(samples, at / 10), want)

    def test_what_is_turned_round_has_its_interval_turned_round(self):
        for _ in range(300):
            samples = self.drawn()
            r, turned = interval(samples), interval([-x for x in samples])
            self.assertEqual((r.median, r.low, r.high), (-turned.median, -turned.high, -turned.low))
            self.assertTrue(r.low <= r.median <= r.high)

    def test_ranks_are_the_furthest_in_that_hold_the_median(self):
        """Each of 2 ** n ways of samples to lie below and above the median is as likely."""
        for n in range(1, 15):
            below = [sum(way) for way in itertools.product((0, 1), repeat=n)]

            def holds(rank, n=n, below=below):  # the rank-th from below is not above, that from above not below
                return sum(rank <= b <= n - rank for b in below) / len(below)
            rank = interval_rank(n)
            self.assertTrue(holds(rank) >= 0.95 or (rank == 1 and n < 6), n)
            if 2 * (rank + 1) <= n:
                self.assertLess(holds(rank + 1), 0.95, n)

    def test_intervals_hold_the_median_of_the_distribution(self):
        trials = 3000
        for n in (6, 7, 12, 20, 40, 60):
            held = 0
            for _ in range(trials):
                r = interval([self.random.expovariate(1) for _ in range(n)])
                held += r.low <= 0.6931471805599453 <= r.high
            self.assertGreater(held, trials * 0.933, n)  # four deviations below 95 %


class Verdicts(unittest.TestCase):
    def test_the_unfavourable_end_meets_a_bar_and_the_other_is_within(self):
        r = Interval(1.5, 1.0, 2.0)
        words = [True, "within", "within", False]
        self.assertEqual([verdicts.at_least(r, bar) for bar in (1.0, 1.01, 2.0, 2.01)], words)
        self.assertEqual([verdicts.at_most(r, bar) for bar in (2.0, 1.99, 1.0, 0.99)], words)
        self.assertEqual(verdicts.faster(r), "within")
        self.assertEqual(verdicts.faster(Interval(1.0, 0.9, 1.0)), False)

    def test_rows_are_counted_and_numbers_of_gpus_joined(self):
        self.assertEqual(verdicts.counted([True, "within", False]), "1 of 3 rows, 1 within")
        self.assertEqual(verdicts.counted([True], 2), "1 of 2 rows")
        for met, word in (([], "not measured"), ([True], "yes"), ([True, "within"], "within"), ([False], "no"),
                          (["within", False], "in part"), ([True, False], "in part")):
            self.assertEqual(verdicts.of_gpus(met), word)
        self.assertIs(verdicts.of_all([True, "within", False]), False)


def lot_row(m: int, chosen: list, own: list, sequence: bool = False) -> dict:
    return {"op": "gemm_rs", "ranks": 2, "layer": "made, down", "m": m, "n": 8, "k": 8, "mode": "eager",
            "chosen": "tile=128x256x64", "is_sequence": sequence, "num_sets": 3, "fused_ms": chosen,
            "nccl_ms": [2.0] * len(own), "own_ms": own}


class MadeResults(unittest.TestCase):
    def results(self, **files) -> Results:
        with tempfile.TemporaryDirectory() as folder:
            for name, data in files.items():
                path = pathlib.Path(folder) / f"gpu-{name.replace('_', '-')}.json"
                path.write_text(json.dumps(data), encoding="utf-8")
            return Results(pathlib.Path(folder))


class Lot(MadeResults):
    def test_a_sequence_is_no_win_and_an_interval_that_reaches_the_bar_is_within(self):
        rows = [lot_row(512, [0.5] * 6, [1.0] * 6), lot_row(64, [], [1.0] * 6, True),
                lot_row(8192, [1.0, 1.1, 1.0, 1.1, 1.0, 1.1], [1.0] * 6)]
        found = self.results(lot_x2_2026_01_02={"lot": rows})
        self.assertEqual(lot_tables.lot(found, 2), ("fused: 1 of 2 rows, 1 within, at most 1.05; sequence: 1 rows",
                                                    "within"))
        self.assertIsNone(lot_tables.lot(found, 4))
        self.assertIn("| sequence | 1.0000 | 2.0000 | 1.0000 | 1.000 [1.000, 1.000] | sequence |",
                      lot_tables.lot_shapes_table(found, 2))
        text = lot_tables.lot_table(found, 2)
        self.assertIn("| 257 to 4095 | 1 | 0 | 1 | 1 | 1 | 0 | 0 | 0.500 | 0.500 |", text)

    def test_users_draws_are_pooled_and_what_is_not_told_apart_is_undecided(self):
        """Of a seed each, by how long ours takes and the sequence's second time, of 1 that it takes first."""
        def row(m, ours, again):
            return {"op": "gemm_rs", "layer": "made", "m": m, "n": 8, "k": 8, "first_s": 1.0,
                    "graph_ms": {"sequence": [1.0] * 9, "again": [again] * 9, "ours": [ours] * 9, "gemm": [0.5] * 9}}

        kept = {"user_x2_2026_01_02": {"seed": 7, "lot": [row(4096, 0.6, 1.0), row(8192, 1.5, 1.0)]},
                "user_x2_2026_01_03": {"seed": 8, "lot": [row(2048, 0.8, 1.02), row(64, 0.9, 0.995)]}}
        found = self.results(**kept)
        text, met = user_tables.lot_bar(found, 2)
        self.assertEqual(text, "2 of 3, 0 within; 1 undecided; mean 0.95, nine in ten at most 1.32, worst 1.50; "
                               "4 shapes of 2 seeds")
        self.assertIs(met, False)
        self.assertEqual(user_tables.front_lot(found, 2),
                         ("2 of 3 rows told apart, the longest 1.50; 1 undecided", False))
        text, met = user_tables.hidden_bar(found, 2)  # 0.8, -1, 0.4
        self.assertEqual(text, "0.07, -0.72; worst -1.00; 3 of 4 shapes of 2 seeds")
        table = user_tables.user_lot_shapes_table(found, 2)
        self.assertIn("| 0.800 [0.800, 0.800] | 1.020 [1.020, 1.020] | 0.40 | undecided |", table)
        self.assertIn("| 0.900 [0.900, 0.900] | 0.995 [0.995, 0.995] | 0.20 | met |", table)
        self.assertIsNone(user_tables.lot_bar(found, 4))

    def test_bars_of_a_users_calls(self):
        def call(name, **row):
            return {"call": name, "copies": False, "first_s": 0.5, **row}

        rows = [call("all_gather", single_ms={"theirs": [2.0] * 9, "ours": [1.0] * 9},
                     host_us={"ours": [9.0, 10.0, 30.0]}),
                call("all_to_all of even lists", single_ms={"theirs": [0.9] * 9, "ours": [1.0] * 9},
                     eager_ms={"theirs": [0.9] * 9, "ours": [1.0] * 9}, host_us={"ours": [20.0, 21.0, 22.0]})]
        sized = {"case": "all_to_all of sizes on the device, by lot", "stretto, captured": {"gpu_us": [2.0] * 9},
                 "nccl, with sizes": {"gpu_us": [3.2] * 9}}
        found = self.results(
            user_x2_2026_01_02={"calls": rows}, reductions_x2_2026_01_02={"reductions": [sized]},
            user_x2_2026_01_02_warmed={"calls_warmed": [call("all_gather"), {**call("moe_layer"), "first_s": 0.1}]})
        for bar, want in ((user_tables.single_bar, ("0.90 [0.90, 0.90] at least; 1 of 2 rows", False)),
                          (user_tables.host_bar, ("10 to 21 us, median 16, of rounds 9 to 30; 1 of 2 rows", False)),
                          (user_tables.steps_bar, ("0.90x; 0 of 1 rows", False)),
                          (user_tables.device_sizes_bar, ("1.60x; 1 of 1 rows", True)),
                          (user_tables.warmed_bar, ("up to 0.50 s; 1 of 2 rows", False)),
                          (user_tables.proofs_bar, None)):
            self.assertEqual(bar(found, 2), want)

    def test_losses_and_failures_are_told(self):
        rows = [lot_row(512, [1.5] * 6, [1.0] * 6), lot_row(64, [], [3.0] * 6, True),
                {**lot_row(32, [], []), "error": "off by 0.5"}]
        text, met = lot_tables.lot(self.results(lot_x2_2026_01_02={"lot": rows}), 2)
        self.assertEqual(text, "fused: 0 of 1 rows, at most 1.50; sequence: 1 rows, in 1 NCCL's is faster; 1 failed")
        self.assertIs(met, False)

    def test_rows_of_two_draws_do_not_mix(self):
        found = self.results(lot_x2_2026_01_02={"lot": [lot_row(512, [1.5] * 6, [1.0] * 6)]},
                             lot_x2_2026_01_03={"lot": [lot_row(64, [0.5] * 6, [1.0] * 6)]})
        self.assertEqual(lot_tables.lot(found, 2)[0], "fused: 1 of 1 rows, at most 0.50; sequence: 0 rows")


def routed_row(layer: int, ours: float, routing: str = "one-sided", **more) -> dict:
    """Hidden is (6 - ours) / 2."""
    return {"model": "qwen2-moe", "layer": layer, "m": 4096, "ranks": 4, "routing": routing, "routing_seed": 7,
            "eager": {"ours_ms": [ours] * 6, "gemm_ms": [4.0] * 6, "nccl_ms": [1.0] * 6, "sequence_ms": [6.0] * 6},
            **more}


class Routings(MadeResults):
    def test_the_mean_of_each_layer_is_judged_on_four(self):
        rows = [routed_row(1, 4.2), routed_row(1, 4.6, "same experts"), routed_row(2, 4.6)]  # 0.9, 0.7; 0.7
        run = {"machine": "NVIDIA H200", "routings": rows}
        found = self.results(routings_x4_2026_01_02=run, routings_x2_2026_01_02=run)
        self.assertEqual(routing_tables.routed_hidden(found, 4), ("0.80 and 0.70; at least 0.70 and 0.70", True))
        self.assertEqual(routing_tables.routed_hidden(found, 2), ("0.80 and 0.70; at least 0.70 and 0.70", None))
        self.assertIsNone(routing_tables.routed_hidden(found, 8))
        text = routing_tables.routings_table(found, 4)
        self.assertIn("| one-sided | qwen2-moe, layer 1, 4096 tokens | 4.200 | 4.000 | 1.000 | 6.000 |", text)
        self.assertIn("Layer 1 of 2 routings: 0.80 of the communication hidden on average, 0.70 at least (qwen2-moe, "
                      "4096 tokens, same experts).", text)

    def test_short_of_it_and_wrong_results_are_told(self):
        rows = [routed_row(1, 4.2), routed_row(2, 4.8)]  # 0.6
        self.assertEqual(routing_tables.routed_hidden(self.results(routings_x4_2026_01_02={"routings": rows}), 4),
                         ("0.90 and 0.60; at least 0.90 and 0.60", False))
        rows = [routed_row(1, 4.2), routed_row(2, 4.2), routed_row(2, 4.0, "uniform", error="rank 0: pair 3")]
        found = self.results(routings_x4_2026_01_02={"routings": rows})
        self.assertEqual(routing_tables.routed_hidden(found, 4)[0], "0.90 and 0.90; at least 0.90 and 0.90; 1 failed")
        self.assertIs(routing_tables.routed_hidden(found, 4)[1], False)
        self.assertIn("failed: rank 0: pair 3", routing_tables.routings_table(found, 4))

    def test_rows_of_two_draws_do_not_mix(self):
        found = self.results(routings_x4_2026_01_02={"routings": [routed_row(1, 4.2), routed_row(2, 4.2)]},
                             routings_x4_2026_01_03={"routings": [routed_row(1, 5.0, "uniform"),
                                                                  routed_row(2, 5.0, "uniform")]})
        self.assertEqual(routing_tables.routed_hidden(found, 4)[0], "0.50 and 0.50; at least 0.50 and 0.50")


class Rows(MadeResults):
    def test_cards_and_samples_of_each_row(self):
        found = self.results(
            lot_x2_2026_01_02={"machine": "NVIDIA H200", "commit": "abc", "lot": [lot_row(1, [1.0] * 6, [1.0] * 6),
                                                                               lot_row(2, [1.0] * 6, [1.0] * 6)]},
            lot_x2_2026_01_03={"machine": "NVIDIA H100", "lot": [lot_row(3, [1.0] * 2, [1.0] * 2)]})
        rows = found.rows(["lot"], "lot", lambda r: r["m"])
        self.assertEqual([mark(rows, m) for m in (1, 2, 3)], [" \\*", " \\*", " (2 samples) (H100s)"])
        self.assertIn("(abc, H200s): 2 of 3 rows. Samples of a row: 6, unless it says another number.",
                      " ".join(sources(rows).split()))
        points = {"points": [{"op": "gemm", "measured_ms": 1.0}]}
        rows = self.results(points_x2_2026_01_02=points).rows(["points"], "points", lambda r: r["op"])
        self.assertIn("medians alone, no samples", sources(rows))


if __name__ == "__main__":
    unittest.main()
