"""Every value of a container's state under a checksum, and each table under a total of them; and the check of all.

A stored value ends in the CRC-32C of container, table, key and value, four bytes little-endian: so neither a damaged
value, nor one of another key, table or container, passes for the correct one. What no checksum of a value can show,
that a record is missing or old, the totals show: for each table the number of records and the sum of their
checksums, kept in a record of their own and written in the same transaction.

As a program, `python -m nadi.segmentstore.state.checked FILE CONTAINER [COPY]`, it inspects a state's file and prints
an `Inspected` as JSON. LMDB follows the pointers that it finds in a file, so damage may crash it: whoever does not know
where a file has been starts this program (`check.inspect_file`).
"""

from __future__ import annotations

import os
import struct
import sys
from itertools import islice
from pathlib import Path

import lmdb
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
    """What an inspection has shown. damage: empty if there is none. sequence: of the last frame that the state
    reflects. records: their number by table."""

    damage: str
    sequence: int = 0
    records: dict[str, int] = {}


def seed_of(container: int, table: str) -> int:
    return int(crc32c(f"{container}/{table}/".encode()))


def seeds_of(container: int) -> dict[str, int]:
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
    return int(_CRC.unpack_from(raw, len(raw) - CRC_BYTES)[0])


def inspect(file: Path, container: int, copy: Path | None = None) -> Inspected:
    """Read all of a state's file, which nobody changes meanwhile; blocking. copy: gets a compact one of a sound file. A
    damaged file may crash the process."""
    try:
        with lmdb.open(os.fsencode(file), subdir=False, readonly=True, lock=False, max_dbs=len(TABLES)) as env:
            inspected = _inspect(env, container)
            if copy is not None and not inspected.damage:
                _copy(env, copy)
            return inspected
    except lmdb.Error as error:
        return Inspected(str(error))


def _copy(env: lmdb.Environment, copy: Path) -> None:
    """Write a compact copy, if there is room for it."""
    try:
        with copy.open("wb", buffering=0) as stream:
            env.copyfd(stream.fileno(), compact=True)  # of the list of free pages, only their number is read
            os.fsync(stream.fileno())
    except (OSError, lmdb.DiskError):
        copy.unlink(missing_ok=True)


def _inspect(env: lmdb.Environment, container: int) -> Inspected:
    with env.begin() as txn:
        keys = islice(txn.cursor().iternext(values=False), len(TABLES) + 1)
        names = {bytes(key).decode(errors="replace") for key in keys}
    if not names <= set(TABLES):
        return Inspected("its list of tables names one that no state has")
    seed, own = seed_of(container, "state"), dict[bytes, bytes]()
    if "state" in names:
        with env.begin(db=env.open_db(b"state", create=False)) as txn:
            own = dict(islice(txn.cursor(), len((STATE_KEY, TOTALS_KEY))))
    if not all(is_whole(seed, key, raw) for key, raw in own.items()):
        return Inspected("its own record is damaged")
    expected = decode_totals(own[TOTALS_KEY][:-CRC_BYTES]) if TOTALS_KEY in own else {}
    totals: Totals = {}
    for name in COUNTED:
        should = expected.get(name, (0, 0))
        total = _total(env, name, seed_of(container, name), should[0]) if name in names else (0, 0)
        if total is None:
            return Inspected(f"table {name} has a damaged record")
        if total != should:
            return Inspected(f"table {name} does not have the {should[0]:,} records that it should have")
        totals[name] = total
    if STATE_KEY not in own:
        return Inspected("its own record is missing" if any(count for count, _ in totals.values()) else "")
    sequence = int(msgspec.msgpack.decode(own[STATE_KEY][:-CRC_BYTES], type=list)[0])
    return Inspected("", sequence, {name: count for name, (count, _) in totals.items()})


def _total(env: lmdb.Environment, name: str, seed: int, most: int) -> tuple[int, int] | None:
    """The table's total, of at most one record more than `most`: damage may lead a cursor in a circle. None: a value is
    damaged."""
    count = total = 0
    with env.begin(db=env.open_db(name.encode(), create=False), buffers=True) as txn:
        for key, raw in islice(txn.cursor(), most + 1):
            if len(raw) < CRC_BYTES or crc32c(raw, crc32c(key, seed)) != WHOLE:
                return None
            count += 1
            total += int.from_bytes(raw[-CRC_BYTES:], "little")
    return count, total


if __name__ == "__main__":
    file, container, *copy = sys.argv[1:]
    sys.stdout.buffer.write(msgspec.json.encode(inspect(Path(file), int(container), *map(Path, copy))))
