"""Spark reads and writes streams: `spark.read`, `spark.readStream`, `df.write`, `df.writeStream` with `format("nadi")`.

Spark finds the data source by itself (see `pyspark_nadi`), so nothing in this package needs to be imported: it
registers `registered`, which hands what it is asked to `formats`. `options` defines what may be set, `reading` makes
rows of streams, all at once or a query's batches, and `writing` makes events of rows, each batch once.
"""

from __future__ import annotations

from nadi.spark.reading.query.lags import QueryLag, lag
from nadi.spark.tuning import TUNED, tuned

__all__ = ["TUNED", "QueryLag", "lag", "tuned"]
