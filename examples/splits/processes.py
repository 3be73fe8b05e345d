"""Splits read by processes of this machine, in plain Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

import pyarrow

import nadi


def totals(split: nadi.Split) -> Counter[str]:
    sums = pyarrow.table(split).group_by("meter").aggregate([("wh", "sum")])
    return Counter(dict(zip(sums["meter"].to_pylist(), sums["wh_sum"].to_pylist(), strict=True)))


def by_processes(splits: Sequence[nadi.Split], workers: int, on_read: Callable[[int], object]) -> Counter[str]:
    """Sum up by meter. on_read: called with the bytes of each split once it is read."""
    total: Counter[str] = Counter()
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        reading = {pool.submit(totals, split): split for split in splits}
        for future in as_completed(reading):
            total.update(future.result())
            on_read(reading[future].size_bytes)
    return total
