"""Events that tell by themselves whether any is missing, doubled or out of order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

Written = list[tuple[str, str]]  # event, routing key


def numbered(start: int, end: int, *, keys: int = 7, label: str = "event") -> Written:
    """One event for each number from `start` to before `end`; the keys take turns."""
    return [(f"key {number % keys}/{label}/{number}", f"key {number % keys}") for number in range(start, end)]


def by_key(events: Iterable[bytes | str]) -> dict[tuple[str, str], list[int]]:
    """The numbers of the events, in order, by routing key and label.

    Equal for what was written and what was read exactly if nothing is missing, nothing is there twice,
    and each key is in order. Keys of different labels (writers, transactions) are in no order to each other.
    """
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for event in events:
        key, label, number = (event if isinstance(event, str) else event.decode()).split("/")
        found[key, label].append(int(number))
    return dict(found)


def texts(written: Written) -> list[str]:
    return [event for event, _ in written]
