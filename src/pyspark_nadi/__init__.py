"""Spark finds nadi here: it imports every top-level module named `pyspark_*` and registers its DefaultSource."""

from nadi.spark.source import DefaultSource

__all__ = ["DefaultSource"]
