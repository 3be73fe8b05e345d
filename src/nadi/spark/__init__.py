"""Spark reads and writes streams: `spark.read`, `spark.readStream`, `df.write`, `df.writeStream` with `format("nadi")`.

Spark finds the data source by itself (see `pyspark_nadi`), so nothing in this package needs to be
imported. `options` (and `option_names`) defines what may be set, `plan` what lies between two stream cuts,
`progress` how far a streaming query's batches go, `rows` turns segments into Arrow batches inside the tasks, `sink`
writes through transactions, and `intents` makes each batch of the sink count once.
"""

from __future__ import annotations

from nadi.spark.tuning import TUNED, tuned

__all__ = ["TUNED", "tuned"]
