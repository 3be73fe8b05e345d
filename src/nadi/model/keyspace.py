"""The key space [0, 1): where a routing key or a table's primary key falls, and how ranges are divided.

>>> round(key_position("hello"), 6)
0.658716
>>> equal_ranges(2)
[(0.0, 0.5), (0.5, 1.0)]
"""

from __future__ import annotations

from itertools import pairwise

import mmh3

from nadi.model.murmur3 import first_word

# Java's "EventRouter".hashCode(); every Pravega client hashes with this seed.
_SEED = 1741865571
_TABLE_SEED = -2020233499  # "KeyValueTableRouter".hashCode()
_MASK_52 = (1 << 52) - 1


def key_position(routing_key: str) -> float:
    """Return where a routing key falls in [0, 1): the same place as in Pravega's Java client."""
    low = mmh3.hash64(routing_key.encode("utf-16-le", "surrogatepass"), _SEED, True, signed=False)[0]
    return ((low >> 12) & _MASK_52) / (1 << 52)


def primary_key_position(primary_key: bytes) -> float:
    """Return where a key-value table's primary key falls in [0, 1): the same place as in Pravega's Java client.

    >>> primary_key_position(b"hello"), primary_key_position((1).to_bytes(8, "big"))
    (0.7859863787458266, 0.6759683568840031)
    """
    return ((first_word(primary_key, _TABLE_SEED) >> 12) & _MASK_52) / (1 << 52)


def equal_ranges(count: int, low: float = 0.0, high: float = 1.0) -> list[tuple[float, float]]:
    """Return `count` equal ranges tiling [low, high); neighbours share bit-equal borders, the last ends at `high`."""
    step = (high - low) / count
    borders = [low + i * step for i in range(count)] + [high]
    return list(pairwise(borders))
