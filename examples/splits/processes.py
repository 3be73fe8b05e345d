"""Splits read by processes of this machine, with nothing but Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

import pyarrow

import nadi


def totals(split: nadi.Split) -> Counter[str]:
    found = pyarrow.table(split).group_by("meter").aggregate([("wh", "sum")])
    return Counter(dict(zip(found["meter"].to_pylist(), found["wh_sum"].to_pylist(), strict=True)))


def by_processes(splits: Sequence[nadi.Split], workers: int, told: Callable[[int], object]) -> Counter[str]:
    """told: called with the bytes of each split once it is read."""
    together: Counter[str] = Counter()
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        reading = {pool.submit(totals, split): split for split in splits}
        for future in as_completed(reading):
            together.update(future.result())
            told(reading[future].size_bytes)
    return together
