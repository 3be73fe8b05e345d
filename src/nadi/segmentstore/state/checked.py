"""Every value of a container's state under a checksum, and each table under a total of them.

A stored value ends in the CRC-32C of container, table, key and value, four bytes little-endian: so neither a damaged
value, nor one of another key, table or container, passes for the correct one. What no checksum of a value can show,
that a record is missing or old, the totals show: for each table the number of records and the sum of their
checksums, kept in a record of their own and written in the same transaction.

States of earlier versions have neither; they are read unchecked until they are upgraded.
"""

from __future__ import annotations

import struct

import msgspec
from crc32c import crc32c

TABLES = ("state", "names", "segments", "attributes", "extents", "logged", "entries", "positions", "times")
COUNTED = TABLES[1:]  # `state` holds the totals
STATE_KEY, TOTALS_KEY = b"state", b"totals"
CRC_BYTES = 4

WHOLE = 0x48674BC7  # what CRC-32C gives for anything that ends in its own CRC-32C, little-endian

_CRC = struct.Struct("<I")

Totals = dict[str, tuple[int, int]]  # table: number of records, and the sum of their checksums

decode_totals = msgspec.msgpack.Decoder(Totals).decode
encode_totals = msgspec.msgpack.Encoder().encode


class Inspected(msgspec.Struct, frozen=True):
    """What a walk over a state's file has found: passed from one process to another, from `inspector` to `check`.

    damage: empty where all is as it should be. checked: whether values have checksums. sequence: of the last frame
    that the state reflects. records: their number by table."""

    damage: str
    checked: bool = False
    sequence: int = 0
    records: dict[str, int] = {}


def seed_of(container: int, table: str) -> int:
    """The seed of a table's checksums."""
    return int(crc32c(f"{container}/{table}/".encode()))


def seeds_of(container: int) -> dict[str, int]:
    """Those of all its tables."""
    return {table: seed_of(container, table) for table in TABLES}


def sealed(seed: int, key: bytes, value: bytes) -> bytes:
    """The value as it is stored.

    >>> sealed(0, b"key", b"value")[:5], is_whole(0, b"key", sealed(0, b"key", b"value"))
    (b'value', True)
    """
    return value + _CRC.pack(crc32c(value, crc32c(key, seed)))


def is_whole(seed: int, key: bytes, raw: bytes) -> bool:
    """Whether a stored value is what was stored under that key.

    >>> is_whole(0, b"kez", sealed(0, b"key", b"value")), is_whole(0, b"key", b"")
    (False, False)
    """
    return len(raw) >= CRC_BYTES and bool(crc32c(raw, crc32c(key, seed)) == WHOLE)


def checksum_of(raw: bytes | bytearray | memoryview) -> int:
    """The checksum that a stored value ends in."""
    return int(_CRC.unpack_from(raw, len(raw) - CRC_BYTES)[0])
