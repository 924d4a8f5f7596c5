"""Statistics of what is timed in rounds: launches of one round are alike, since memory, clocks and temperatures are
those of the round, so that a round, however many launches it had, is one observation."""

import math
import random
import statistics

RESAMPLES = 4000
Z = 1.96  # of 95 %


def mean_ratio(over: list, under: list, seed: int = 1) -> dict:
    """{"mean", "low", "high"} of over / under, each a list of one figure a round: the geometric mean, and its 95 %
    interval by bootstrap over the rounds. Percentiles of resamples are too narrow with few rounds, so they are those
    further out by as much as Student's t is beyond the normal distribution, and the sample's own variance beyond that
    of its resamples (Hesterberg, What Teachers Should Know About the Bootstrap, 2015, 4.1.2: the expanded percentile
    interval). None for low and high with fewer than five rounds, which say too
    little of how far apart rounds are."""
    logs = [math.log(x / y) for x, y in zip(over, under, strict=True)]
    mean = math.exp(statistics.fmean(logs))
    if len(logs) < 5:
        return {"mean": mean, "low": None, "high": None}
    draw = random.Random(seed)
    means = sorted(statistics.fmean(draw.choices(logs, k=len(logs))) for _ in range(RESAMPLES))
    tail = statistics.NormalDist().cdf(-_student(len(logs) - 1) * math.sqrt(len(logs) / (len(logs) - 1)))
    below = int(tail * RESAMPLES)
    return {"mean": mean, "low": math.exp(means[below]), "high": math.exp(means[-1 - below])}


def _student(freedom: int) -> float:
    """The quantile of Student's t that Z is of the normal distribution (Abramowitz and Stegun 26.7.5)."""
    z = Z
    return (z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
            + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3))
