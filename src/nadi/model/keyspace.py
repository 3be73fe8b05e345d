"""The key space [0, 1): where a routing key falls, and how ranges of it are cut and compared.

>>> round(key_position("hello"), 6)
0.658716
>>> equal_ranges(2)
[(0.0, 0.5), (0.5, 1.0)]
"""

from __future__ import annotations

from itertools import pairwise

import mmh3

# Java's "EventRouter".hashCode(); every Pravega client hashes with this seed.
_SEED = 1741865571
_MASK_52 = (1 << 52) - 1


def key_position(routing_key: str) -> float:
    """Where a routing key falls in [0, 1): the same place as in Pravega's Java client."""
    low = mmh3.hash64(routing_key.encode("utf-16-le", "surrogatepass"), _SEED, True, signed=False)[0]
    return ((low >> 12) & _MASK_52) / (1 << 52)


def equal_ranges(count: int, low: float = 0.0, high: float = 1.0) -> list[tuple[float, float]]:
    """`count` equal ranges that tile [low, high); neighbours share bit-equal borders, the last ends at `high`."""
    step = (high - low) / count
    borders = [low + i * step for i in range(count)] + [high]
    return list(pairwise(borders))


def overlaps(a: tuple[float, float], b: tuple[float, float]) -> bool:
    """Whether two half-open ranges share a key."""
    return a[1] > b[0] and a[0] < b[1]
