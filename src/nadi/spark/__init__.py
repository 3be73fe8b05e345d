"""Spark reads and writes streams: `spark.read`, `spark.readStream`, `df.write`, `df.writeStream` with `format("nadi")`.

Spark finds the data source by itself (see `pyspark_nadi`), so nothing in this package needs to be imported: it
registers `registered`, which hands what it is asked to `formats`. `options` defines what may be set, `reading` makes
rows of streams, all at once or a query's batches, and `writing` makes events of rows, each batch once. `in_order`
is for operators of yours that keep a state for each key. `following` keeps as many executors as a stream has segments.
"""

from __future__ import annotations

from nadi.spark.consumer_lag import QueryLag, lag
from nadi.spark.executor_scaling import ExecutorFollowing, follow_segments
from nadi.spark.ordering import in_order
from nadi.spark.tuning import TUNED, tuned
from nadi.spark.union_frame import union
from nadi.spark.views import register

__all__ = ["TUNED", "ExecutorFollowing", "QueryLag", "follow_segments", "in_order", "lag", "register", "tuned", "union"]
