"""Spark finds `format("pravega")` here, for programs made for Pravega's own connector."""

from nadi.spark.registered import Registered

__all__ = ["DefaultSource"]


class DefaultSource(Registered):
    """As `format("nadi")`, with the defaults of Pravega's connector."""

    @classmethod
    def name(cls) -> str:
        return "pravega"
