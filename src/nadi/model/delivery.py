"""How often an event takes effect when programs die: one choice for readers, functions and Spark."""

from __future__ import annotations

from typing import Final, Literal, cast, get_args

from nadi.errors import InvalidArgumentError

Guarantee = Literal["at-most-once", "at-least-once", "exactly-once"]
AT_MOST_ONCE: Final = "at-most-once"
AT_LEAST_ONCE: Final = "at-least-once"
EXACTLY_ONCE: Final = "exactly-once"


def check_delivery(delivery: str) -> Guarantee:
    """Return it; InvalidArgumentError unless it is one of the three.

    >>> check_delivery("at-most-once")
    'at-most-once'
    """
    if delivery not in get_args(Guarantee):
        raise InvalidArgumentError(f"delivery is {', '.join(get_args(Guarantee))}, not {delivery!r:.60}")
    return cast("Guarantee", delivery)
