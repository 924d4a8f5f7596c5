"""Whether a bar is met: True, False, or WITHIN where the interval reaches it and its unfavourable end does not."""

from results import Interval, spread

WITHIN = "within"


def at_least(r: Interval, bar: float):
    return True if r.low >= bar else WITHIN if r.high >= bar else False


def at_most(r: Interval, bar: float):
    return True if r.high <= bar else WITHIN if r.low <= bar else False


def faster(r: Interval):
    """Of theirs / ours."""
    return True if r.low > 1 else WITHIN if r.high > 1 else False


def of_all(verdicts: list):
    """What is asked of every one of them."""
    return False if False in verdicts else WITHIN if WITHIN in verdicts else True


def counted(verdicts: list, num_rows: int | None = None) -> str:
    """'5 of 7 rows, 1 within'; of rows that were not timed, which are not met, `num_rows` knows."""
    within = verdicts.count(WITHIN)
    num_rows = len(verdicts) if num_rows is None else num_rows
    return f"{verdicts.count(True)} of {num_rows} rows" + (f", {within} within" if within else "")


def ratios_met(ratios: list, judge):
    """A cell of ratios and whether judge(ratio) is met in all; None without any."""
    if not ratios:
        return None
    verdicts = [judge(r) for r in ratios]
    return f"{spread([r.median for r in ratios])}x; {counted(verdicts)}", of_all(verdicts)


def of_gpus(met: list) -> str:
    """The word for what was found on some numbers of GPUs."""
    if not met:
        return "not measured"
    if False not in met:
        return "within" if WITHIN in met else "yes"
    return "no" if set(met) == {False} else "in part"
