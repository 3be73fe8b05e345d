"""Spark reads and writes streams: `spark.read`, `spark.readStream`, `df.write`, `df.writeStream` with `format("nadi")`.

The data source is found by Spark itself (see `pyspark_nadi`), so nothing of this package need be
imported. `options` (and `option_names`) says what may be asked for, `plan` what lies between two stream cuts,
`progress` how far a streaming query's batches go, `rows` turns segments into Arrow batches inside the tasks, `sink`
writes through transactions, and `intents` makes each batch of the sink count once.
"""

from __future__ import annotations

from nadi.spark.tuning import TUNED, tuned

__all__ = ["TUNED", "tuned"]
