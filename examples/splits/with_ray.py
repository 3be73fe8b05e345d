"""Splits read by Ray's tasks, wherever Ray schedules them."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow
import ray

import nadi


def table(split: nadi.Split) -> pyarrow.Table:
    return pyarrow.table(split)


def totals(readings: pyarrow.Table) -> pyarrow.Table:
    return readings.group_by("meter").aggregate([("wh", "sum")])


def by_ray(splits: Sequence[nadi.Split]) -> dict[str, int]:
    read, sum_up = ray.remote(table), ray.remote(totals)
    tables = [read.remote(split) for split in splits]  # ray.data.from_arrow_refs(tables) is a data set of them
    sums = pyarrow.concat_tables(ray.get([sum_up.remote(part) for part in tables]))
    total = sums.group_by("meter").aggregate([("wh_sum", "sum")])
    return dict(zip(total["meter"].to_pylist(), total["wh_sum_sum"].to_pylist(), strict=True))
