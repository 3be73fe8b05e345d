"""Spark reads and writes streams: `spark.read`, `spark.readStream`, `df.write`, `df.writeStream` with `format("nadi")`.

Spark discovers the data source itself (see `pyspark_nadi`), so nothing in this package needs to be imported: Spark
registers `registered`, which delegates to `source_requests`. `options` defines the options, `reading` turns streams
into rows, in batch or streaming queries, and `sink` turns rows into events, each batch once. `in_order` is for stateful
operators. `follow_segments` adjusts the number of executors to a stream's segments.
"""

from __future__ import annotations

from nadi.spark.consumer_lag import QueryLag, lag
from nadi.spark.executor_scaling import ExecutorScaler, follow_segments
from nadi.spark.ordering import in_order
from nadi.spark.tuning import TUNED, tuned
from nadi.spark.union_frame import union
from nadi.spark.views import register

__all__ = ["TUNED", "ExecutorScaler", "QueryLag", "follow_segments", "in_order", "lag", "register", "tuned", "union"]
