"""Positions of routing keys and tables' primary keys in the key space [0, 1), and division of ranges.

>>> round(key_position("hello"), 6)
0.658716
>>> equal_ranges(2)
[(0.0, 0.5), (0.5, 1.0)]

Implements MurmurHash3's 128-bit variant for x64 with a 64-bit seed: the `mmh3` package takes only 32-bit seeds, and
Pravega's key-value tables hash with a negative Java int widened to 64 bits. Keys have at most 256 bytes, so plain
Python is fast enough.

>>> import mmh3
>>> first_word(b"The quick brown fox jumps", 7) == mmh3.hash64(b"The quick brown fox jumps", 7, signed=False)[0]
True
"""

from __future__ import annotations

import struct
from itertools import pairwise

import mmh3

_MASK = (1 << 64) - 1
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F
_BLOCK = struct.Struct("<QQ")


def _rotate(word: int, bits: int) -> int:
    return (word << bits | word >> (64 - bits)) & _MASK


def _mix_first(word: int) -> int:
    return _rotate(word * _C1 & _MASK, 31) * _C2 & _MASK


def _mix_second(word: int) -> int:
    return _rotate(word * _C2 & _MASK, 33) * _C1 & _MASK


def _finish(word: int) -> int:
    word = (word ^ word >> 33) * 0xFF51AFD7ED558CCD & _MASK
    word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return word ^ word >> 33


def first_word(data: bytes, seed: int) -> int:
    """Return the first 64 bits of the hash, unsigned; a negative seed counts as its two's complement."""
    h1 = h2 = seed & _MASK
    blocks_size = len(data) & ~15
    for k1, k2 in _BLOCK.iter_unpack(data[:blocks_size]):
        h1 = (_rotate(h1 ^ _mix_first(k1), 27) + h2) * 5 + 0x52DCE729 & _MASK
        h2 = (_rotate(h2 ^ _mix_second(k2), 31) + h1) * 5 + 0x38495AB5 & _MASK
    k1, k2 = _BLOCK.unpack(data[blocks_size:].ljust(16, b"\0"))  # zero bytes mix to zero
    h1 ^= _mix_first(k1) ^ len(data)
    h2 ^= _mix_second(k2) ^ len(data)
    h1 = h1 + h2 & _MASK
    h2 = h2 + h1 & _MASK
    return _finish(h1) + _finish(h2) & _MASK


# Java's "EventRouter".hashCode(); every Pravega client hashes with this seed.
_SEED = 1741865571
_TABLE_SEED = -2020233499  # "KeyValueTableRouter".hashCode()
_MASK_52 = (1 << 52) - 1


def key_position(routing_key: str) -> float:
    """Return a routing key's position in [0, 1), the same as in Pravega's Java client."""
    low = mmh3.hash64(routing_key.encode("utf-16-le", "surrogatepass"), _SEED, True, signed=False)[0]
    return ((low >> 12) & _MASK_52) / (1 << 52)


def primary_key_position(primary_key: bytes) -> float:
    """Return the position of a key-value table's primary key in [0, 1), the same as in Pravega's Java client.

    >>> primary_key_position(b"hello"), primary_key_position((1).to_bytes(8, "big"))
    (0.7859863787458266, 0.6759683568840031)
    """
    return ((first_word(primary_key, _TABLE_SEED) >> 12) & _MASK_52) / (1 << 52)


def equal_ranges(count: int, low: float = 0.0, high: float = 1.0) -> list[tuple[float, float]]:
    """Return `count` equal ranges tiling [low, high); neighbours share bit-equal borders, the last ends at `high`."""
    step = (high - low) / count
    borders = [low + i * step for i in range(count)] + [high]
    return list(pairwise(borders))
