"""Spark finds `format("nadi")` here: it imports every top-level module named `pyspark_*` and registers its
DefaultSource. What that does is imported when it is first used."""

from nadi.spark.registered import Registered

__all__ = ["DefaultSource"]


class DefaultSource(Registered):
    """A stream as rows (event, scope, stream, segment_id, offset), and rows as events."""

    @classmethod
    def name(cls) -> str:
        return "nadi"
