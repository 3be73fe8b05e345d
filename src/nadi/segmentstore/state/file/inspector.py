"""Is a state's file intact? Every page, every record's checksum and every table's total is checked, in one pass.

As a program, `python -m nadi.segmentstore.state.file.inspector FILE CONTAINER`, it prints what it found as JSON: so a
server leaves it to a process of its own, and another core, while it reads its log.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
import numpy as np
from crc32c import crc32c

from nadi.segmentstore.state.checked import (
    COUNTED,
    CRC_BYTES,
    STATE_KEY,
    TABLES,
    TOTALS_KEY,
    WHOLE,
    Inspected,
    Totals,
    decode_totals,
    is_whole,
    seed_of,
)
from nadi.segmentstore.state.file.pages import (
    BIG,
    NO_PAGE,
    TREE,
    TREE_BYTES,
    DamagedPagesError,
    File,
    Meta,
    Tree,
    check_free,
    read_meta,
    walk,
)


def _check_table(file: File, name: str, tree: Tree, seed: int) -> tuple[int, int]:
    """The table's total, after a look at each value."""
    count = total = 0
    crc = crc32c
    for data, records, big in walk(file, tree):
        if (records.flags & ~np.uint16(BIG)).any():
            raise DamagedPagesError(f"table {name} has a record of no kind")
        count += len(records.keys)
        plain = (records.flags & BIG) == 0
        keys, ends = records.keys[plain], records.ends[plain]
        if (records.sizes < CRC_BYTES).any():
            raise DamagedPagesError(f"table {name} has a value without a checksum")
        view = memoryview(data)
        for start, end in zip(keys.tolist(), ends.tolist(), strict=True):  # key and value lie end to end
            if crc(view[start:end], seed) != WHOLE:
                raise DamagedPagesError(f"table {name} has a damaged record")
        flat = np.frombuffer(data, dtype=np.uint8)
        tails = sum(flat[ends - CRC_BYTES + n].astype(np.uint64) << np.uint64(8 * n) for n in range(CRC_BYTES))
        total += int(np.sum(tails))
        big_spans = zip(records.keys[~plain].tolist(), records.values[~plain].tolist(), big, strict=True)
        for start, end, value in big_spans:
            if crc(value, crc(view[start:end], seed)) != WHOLE:
                raise DamagedPagesError(f"table {name} has a damaged record")
            total += int.from_bytes(value[-CRC_BYTES:], "little")
    return count, total


def _pairs(file: File, tree: Tree) -> dict[bytes, tuple[int, bytes]]:
    """The records of a small table: flags and value by key."""
    found: dict[bytes, tuple[int, bytes]] = {}
    for data, records, big in walk(file, tree):
        values = iter(big)
        for flags, key, value, end in zip(
            records.flags.tolist(), records.keys.tolist(), records.values.tolist(), records.ends.tolist(), strict=True
        ):
            found[data[key:value]] = flags, next(values) if flags & BIG else data[value:end]
    return found


def inspect(path: Path, container: int) -> Inspected:
    """Check a complete file; OSError if it can't be read. Blocking, for as long as it takes to read it."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        meta = read_meta(file)
        return inspect_pages(File(file, meta.last_page), meta, container)
    except DamagedPagesError as damage:
        return Inspected(str(damage))
    finally:
        os.close(file)


def inspect_pages(file: File, meta: Meta, container: int) -> Inspected:
    trees: dict[str, Tree] = {}
    for key, (flags, value) in _pairs(file, meta.main).items():
        name = key.decode(errors="replace")
        if flags != TREE or len(value) != TREE_BYTES or name not in TABLES:
            raise DamagedPagesError("the list of tables names one that no state has")
        trees[name] = Tree.decode(value)
        if trees[name].flags:
            raise DamagedPagesError(f"table {name} is of no kind that a state has")
    if trees and len(trees) < len(TABLES):
        # half of a first opening, each table being a transaction, or damage, which the state's record tells
        if any(tree.records for tree in trees.values()) and "state" not in trees:
            raise DamagedPagesError("the table of the state's own records is missing")
        trees = {name: trees.get(name, Tree(0, 0, 0, NO_PAGE)) for name in TABLES}
    if not trees:
        check_free(file, meta.free)
        file.check_end()
        return Inspected("", checked=True)
    own = _pairs(file, trees["state"])
    seed = seed_of(container, "state")
    state = own.get(STATE_KEY, (0, b""))[1]
    checked = is_whole(seed, STATE_KEY, state)
    counts: Totals = {}
    for name in COUNTED:
        if checked:
            counts[name] = _check_table(file, name, trees[name], seed_of(container, name))
        else:
            counts[name] = sum(len(records.keys) for _, records, _ in walk(file, trees[name])), 0
    check_free(file, meta.free)
    file.check_end()
    if checked:
        totals = own.get(TOTALS_KEY, (0, b""))[1]
        if not is_whole(seed, TOTALS_KEY, totals):
            raise DamagedPagesError("the tables' totals are damaged or missing")
        expected = decode_totals(totals[:-CRC_BYTES])
        for name, found in counts.items():
            if found != expected.get(name, (0, 0)):
                raise DamagedPagesError(
                    f"table {name} has {found[0]:,} records and should have {expected.get(name, (0, 0))[0]:,}, "
                    "or holds older ones among them"
                )
    if not state and any(count for count, _ in counts.values()):
        raise DamagedPagesError("the state's own record is missing")
    sequence = _sequence_of(state[:-CRC_BYTES] if checked else state) if state else 0
    return Inspected("", checked or not state, sequence, {name: count for name, (count, _) in counts.items()})


def _sequence_of(state: bytes) -> int:
    """A record of a version without checksums is one list; a damaged current one has more after it."""
    try:
        return int(msgspec.msgpack.decode(state, type=list)[0])
    except (msgspec.DecodeError, IndexError, TypeError, ValueError) as error:
        raise DamagedPagesError("the state's own record is damaged") from error


def main() -> None:
    path, container = sys.argv[1:]
    sys.stdout.buffer.write(msgspec.json.encode(inspect(Path(path), int(container))))


if __name__ == "__main__":
    main()
