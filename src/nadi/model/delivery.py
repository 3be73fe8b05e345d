"""Delivery guarantees after a crash: one option for readers, functions and Spark."""

from __future__ import annotations

from typing import Final, Literal, cast, get_args

from nadi.errors import InvalidArgumentError

Guarantee = Literal["at-most-once", "at-least-once", "exactly-once"]
AT_MOST_ONCE: Final = "at-most-once"
AT_LEAST_ONCE: Final = "at-least-once"
EXACTLY_ONCE: Final = "exactly-once"


def check_delivery(delivery: str) -> Guarantee:
    """Return `delivery`; InvalidArgumentError unless it is one of the three guarantees.

    >>> check_delivery("at-most-once")
    'at-most-once'
    """
    if delivery not in get_args(Guarantee):
        raise InvalidArgumentError(
            f"delivery can't be {delivery!r:.60}: choose one of {', '.join(get_args(Guarantee))}"
        )
    return cast("Guarantee", delivery)
