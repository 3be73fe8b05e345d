"""Splits as the partitions of a Dask data frame."""

from __future__ import annotations

from collections.abc import Sequence

import dask.dataframe
import pandas
import pyarrow

import nadi


def frame(split: nadi.Split) -> pandas.DataFrame:
    data: pandas.DataFrame = pyarrow.table(split).to_pandas(types_mapper=pandas.ArrowDtype)
    return data


def by_dask(splits: Sequence[nadi.Split], workers: int) -> dict[str, int]:
    empty = splits[0].schema.empty_table().to_pandas(types_mapper=pandas.ArrowDtype)
    frames = dask.dataframe.from_map(frame, splits, meta=empty)
    sums = frames.groupby("meter")["wh"].sum().compute(num_workers=workers)
    return {str(meter): int(wh) for meter, wh in sums.items()}
