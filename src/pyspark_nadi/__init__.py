"""The module in which Spark finds `format("nadi")`: Spark imports each top-level module named `pyspark_*` and registers
its DefaultSource, whose implementation is imported on first use."""

from nadi.spark.registered import RegisteredFormat

__all__ = ["DefaultSource"]


class DefaultSource(RegisteredFormat):
    """Stream events as rows (event, scope, stream, segment_id, offset), and rows as events."""

    @classmethod
    def name(cls) -> str:
        return "nadi"
