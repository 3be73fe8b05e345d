"""The module in which Spark finds `format("pravega")`, for programs written for Pravega's connector."""

from nadi.spark.registered import RegisteredFormat

__all__ = ["DefaultSource"]


class DefaultSource(RegisteredFormat):
    """`format("nadi")` with the defaults of Pravega's connector."""

    @classmethod
    def name(cls) -> str:
        return "pravega"
