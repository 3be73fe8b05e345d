"""Looking at an LMDB file without LMDB, which follows what its pages say blindly: a damaged one can crash a process
that maps it, make it loop, or hide records.

`inspect` reads the file as bytes, from the newest meta page down, and checks all that LMDB relies on: that each page is
the one its place asks for and is used once, that nothing lies outside its page or the file, that the free list names
no page in use, that keys lie within the bounds of the branches above them, and that the trees are as deep and have as
many records as their heads say. In the same pass it checks each value's checksum and each table's total (`checked`).

A sound file may end before its last page: LMDB counts pages that it took and freed again within one transaction, and
doesn't write them. All of those are on the free list, so a page behind the file's end must be there, and nowhere else.
LMDB writes such a page before it reads it, so the file can be mapped as it is.
Nothing here can crash or loop, whatever the bytes; with numpy for what is the same for every record, it goes through
more than a million of them in a second.

As a program, `python -m nadi.segmentstore.state.pages FILE CONTAINER`, it prints what it found as JSON: so a server
leaves it to a process of its own, and another core, while it reads its log.

The format is LMDB's 0.9, with pages of 4096 bytes, as on every machine where nadi runs.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

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
    Totals,
    decode_totals,
    is_whole,
    seed_of,
)
from nadi.segmentstore.state.inspected import Inspected

PAGE_BYTES = 4096
_BLOCK_PAGES = 1024  # looked at together: 4 MiB
_HEAD_BYTES = 16  # of a page
_NODE_BYTES = 8  # of a node's head
_BRANCH, _LEAF, _OVERFLOW, _META = 1, 2, 4, 8  # flags of pages
_BIG, _TREE = 1, 2  # flags of nodes: the value has pages of its own; it is the head of a table
_NO_PAGE = 0xFFFF_FFFF_FFFF_FFFF
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_INTEGER_KEYS = 8  # flag of the free list, and the only one that is set in a state
_DEEPEST = 32  # LMDB's own limit

_PAGE = struct.Struct("<QHHHH")  # number, -, flags, lower, upper
_NODE = struct.Struct("<HHHH")  # size (or child page), more of it, flags, size of the key
_TREE_HEAD = struct.Struct("<IHHQQQQQ")  # -, flags, depth, branch, leaf and overflow pages, records, root
TREE_BYTES = _TREE_HEAD.size
_META_HEAD = struct.Struct("<IIQQ")  # magic, version, address, size of the map
_META_TAIL = struct.Struct("<QQ")  # last page, transaction

Array = np.ndarray[Any, np.dtype[Any]]


class DamagedPagesError(Exception):
    """What is wrong with the file."""


class Tree(NamedTuple):
    """The head of a B-tree."""

    flags: int
    depth: int
    records: int
    root: int

    @classmethod
    def decode(cls, raw: bytes) -> Tree:
        _, flags, depth, _, _, _, records, root = _TREE_HEAD.unpack(raw)
        return cls(flags, depth, records, root)


class Meta(NamedTuple):
    """What the newest meta page says."""

    last_page: int
    transaction: int
    free: Tree
    main: Tree


def read_meta(file: int) -> Meta:
    """The newest meta page of an open file.

    Raises:
        DamagedPagesError: one of the two is none.
    """
    return max((_meta_page(file, number) for number in range(2)), key=lambda meta: meta.transaction)


def _meta_page(file: int, number: int) -> Meta:
    page = os.pread(file, PAGE_BYTES, number * PAGE_BYTES)
    if len(page) < PAGE_BYTES:
        raise DamagedPagesError("the file is shorter than its head")
    found, _, flags, _, _ = _PAGE.unpack_from(page)
    magic, version, address, _ = _META_HEAD.unpack_from(page, _HEAD_BYTES)
    trees = _HEAD_BYTES + _META_HEAD.size
    pad = _TREE_HEAD.unpack_from(page, trees)[0]
    free, main = (Tree.decode(page[at : at + TREE_BYTES]) for at in (trees, trees + TREE_BYTES))
    last_page, transaction = _META_TAIL.unpack_from(page, trees + 2 * TREE_BYTES)
    # in a compact copy both have number 0
    if flags != _META or magic != _MAGIC or version != _VERSION or found > 1:
        raise DamagedPagesError(f"meta page {number} is none")
    if pad != PAGE_BYTES or address or free.flags != _INTEGER_KEYS or main.flags:
        raise DamagedPagesError(f"meta page {number} says what no state says")
    return Meta(last_page, transaction, free, main)


class _Leaf(NamedTuple):
    """A leaf page to be looked at; its keys are in [low, high)."""

    page: int
    low: bytes | None
    high: bytes | None


class _File:
    """The pages of a file, each of which may be taken once."""

    def __init__(self, file: int, last_page: int) -> None:
        self._file = file
        self._size_bytes = os.fstat(file).st_size
        self._last_page = last_page
        self.used = np.zeros(min(last_page + 1, self._size_bytes // PAGE_BYTES), dtype=bool)
        self.used[:2] = True
        self._unwritten: set[int] = set()  # free pages behind the file's end

    def take(self, first: int, count: int = 1) -> None:
        if first < 2 or first + count - 1 > self._last_page:
            raise DamagedPagesError(f"page {first:,} is used and lies outside the file")
        if first + count > len(self.used):
            raise self._cut_short(first + count)
        if self.used[first : first + count].any():
            raise DamagedPagesError(f"page {first:,} is used twice")
        self.used[first : first + count] = True

    def take_free(self, number: int) -> None:
        """A page of the free list, which need not be there."""
        if not len(self.used) <= number <= self._last_page:
            self.take(number)
        elif number in self._unwritten:
            raise DamagedPagesError(f"page {number:,} is free twice")
        else:
            self._unwritten.add(number)

    def check_end(self) -> None:
        """Once the whole free list is taken: all behind the file's end is on it."""
        if len(self.used) + len(self._unwritten) != self._last_page + 1:
            raise self._cut_short(self._last_page + 1)

    def _cut_short(self, pages: int) -> DamagedPagesError:
        needed = pages * PAGE_BYTES
        return DamagedPagesError(f"the file has {self._size_bytes:,} bytes and needs {needed:,}: it was cut short")

    def page(self, number: int, flag: int) -> bytes:
        """One page, which must be of that kind."""
        self.take(number)
        data = self._read(number, 1)
        self.check_head(data, number, flag)
        return data

    @staticmethod
    def check_head(data: bytes, number: int, flag: int) -> None:
        found, _, flags, lower, upper = _PAGE.unpack_from(data)
        if found != number or flags != flag:
            raise DamagedPagesError(f"page {number:,} is not what its place asks for")
        if flag != _OVERFLOW and not (_HEAD_BYTES <= lower <= upper <= PAGE_BYTES and lower % 2 == 0):
            raise DamagedPagesError(f"page {number:,} has no room for what it should hold")

    def leaves(self, leaves: list[_Leaf]) -> Iterator[tuple[list[_Leaf], bytes, Array]]:
        """Leaf pages in the order of the file, many at a time, with their bytes and where in them each begins."""
        in_order = sorted(leaves)
        at = 0
        while at < len(in_order):
            first = in_order[at].page
            until = at
            while until < len(in_order) and in_order[until].page < first + _BLOCK_PAGES:
                self.take(in_order[until].page)
                until += 1
            some = in_order[at:until]
            numbers = np.array([leaf.page for leaf in some], dtype=np.int64)
            data = self._read(first, int(numbers[-1]) - first + 1)
            starts = (numbers - first) * PAGE_BYTES
            yield some, data, starts
            at = until

    def big_value(self, number: int, size: int) -> bytes:
        """A value that has pages of its own."""
        count = (_HEAD_BYTES + size - 1) // PAGE_BYTES + 1
        self.take(number, count)
        data = self._read(number, count)
        self.check_head(data, number, _OVERFLOW)
        return data[_HEAD_BYTES : _HEAD_BYTES + size]

    def _read(self, first: int, count: int) -> bytes:
        data = os.pread(self._file, count * PAGE_BYTES, first * PAGE_BYTES)
        if len(data) < count * PAGE_BYTES:
            raise DamagedPagesError(f"page {first:,} can't be read as a whole")
        return data


def _leaves_of(file: _File, tree: Tree) -> list[_Leaf]:
    """All leaf pages of a tree, in the order of their keys."""
    if tree.root == _NO_PAGE:
        if tree.depth or tree.records:
            raise DamagedPagesError("a table without pages should have records")
        return []
    if not 1 <= tree.depth <= _DEEPEST:
        raise DamagedPagesError(f"a table is {tree.depth:,} pages deep")
    level = [_Leaf(tree.root, None, None)]
    for _ in range(tree.depth - 1):
        level = [child for leaf in level for child in _children(file, leaf)]
    return level


def _children(file: _File, branch: _Leaf) -> Iterator[_Leaf]:
    page = file.page(branch.page, _BRANCH)
    children: list[int] = []
    keys: list[bytes | None] = []
    count = (_PAGE.unpack_from(page)[3] - _HEAD_BYTES) // 2
    for at in struct.unpack_from(f"<{count}H", page, _HEAD_BYTES):
        if at + _NODE_BYTES > PAGE_BYTES:
            raise DamagedPagesError(f"branch page {branch.page:,} points outside itself")
        low, middle, high, size = _NODE.unpack_from(page, at)
        if at + _NODE_BYTES + size > PAGE_BYTES:
            raise DamagedPagesError(f"branch page {branch.page:,} has a key that lies outside it")
        children.append(low | middle << 16 | high << 32)
        keys.append(page[at + _NODE_BYTES : at + _NODE_BYTES + size])
    if not children:
        raise DamagedPagesError(f"branch page {branch.page:,} has no children")
    keys[0] = branch.low  # LMDB takes no notice of the first
    for child, low_key, high_key in zip(children, keys, [*keys[1:], branch.high], strict=True):
        if low_key is not None and high_key is not None and low_key >= high_key:
            raise DamagedPagesError(f"the keys of branch page {branch.page:,} are not in order")
        yield _Leaf(child, low_key, high_key)


class _Records(NamedTuple):
    """The records of some leaf pages: where keys begin and end, and where values end, in their bytes."""

    keys: Array
    values: Array
    ends: Array
    flags: Array
    sizes: Array  # of the values
    counts: Array  # of records by page


def _records_of(leaves: list[_Leaf], data: bytes, starts: Array) -> _Records:
    """Take leaf pages to pieces, after a look at whether every piece lies where it should."""
    flat = np.frombuffer(data, dtype=np.uint8)
    words = flat.view("<u2")
    heads = words[(starts // 2)[:, None] + np.arange(_HEAD_BYTES // 2)]
    numbers = np.array([leaf.page for leaf in leaves], dtype=np.uint64)
    found = np.ascontiguousarray(heads[:, :4]).view("<u8")[:, 0]
    lower, upper = heads[:, 6].astype(np.int64), heads[:, 7].astype(np.int64)
    wrong = (found != numbers) | (heads[:, 5] != _LEAF) | (lower <= _HEAD_BYTES) | (lower > upper)
    wrong |= (upper > PAGE_BYTES) | (lower % 2 == 1)
    if wrong.any():
        raise DamagedPagesError(f"page {int(numbers[wrong.argmax()]):,} is not what its place asks for")
    counts = (lower - _HEAD_BYTES) // 2
    of_page = np.repeat(np.arange(len(leaves)), counts)
    firsts = np.repeat(np.cumsum(counts) - counts, counts)
    slots = (starts[of_page] + _HEAD_BYTES) // 2 + (np.arange(len(of_page)) - firsts)
    at = words[slots].astype(np.int64)
    wrong = (at < upper[of_page]) | (at > PAGE_BYTES - _NODE_BYTES) | (at % 2 == 1)
    if not wrong.any():
        nodes = (starts[of_page] + at) // 2
        sizes = words[nodes].astype(np.int64) | words[nodes + 1].astype(np.int64) << 16
        flags, key_sizes = words[nodes + 2], words[nodes + 3].astype(np.int64)
        keys = nodes * 2 + _NODE_BYTES
        values = keys + key_sizes
        ends = values + np.where(flags & _BIG, 8, sizes)
        wrong = (ends > starts[of_page] + PAGE_BYTES) | (key_sizes == 0)
    if wrong.any():
        raise DamagedPagesError(f"page {int(numbers[of_page[wrong.argmax()]]):,} has a record that lies outside it")
    return _Records(keys, values, ends, flags, sizes, counts)


def _check_bounds(leaves: list[_Leaf], data: bytes, records: _Records) -> None:
    last = np.cumsum(records.counts) - 1
    first = last + 1 - records.counts
    spans = zip(
        leaves,
        records.keys[first].tolist(),
        records.values[first].tolist(),
        records.keys[last].tolist(),
        records.values[last].tolist(),
        strict=True,
    )
    for leaf, key, key_end, last_key, last_key_end in spans:
        low, high = data[key:key_end], data[last_key:last_key_end]
        if low > high or (leaf.low is not None and low < leaf.low) or (leaf.high is not None and high >= leaf.high):
            raise DamagedPagesError(f"page {leaf.page:,} has keys that belong elsewhere")


def _walk(file: _File, tree: Tree, *, sorted_bytes: bool = True) -> Iterator[tuple[bytes, _Records, list[bytes]]]:
    """The records of a table, many at a time; those with pages of their own also by value, in the order of flags."""
    found = 0
    for leaves, data, starts in file.leaves(_leaves_of(file, tree)):
        records = _records_of(leaves, data, starts)
        if sorted_bytes:
            _check_bounds(leaves, data, records)
        found += len(records.keys)
        big: list[bytes] = []
        for index in np.flatnonzero(records.flags & _BIG):
            at = int(records.values[index])
            big.append(file.big_value(struct.unpack_from("<Q", data, at)[0], int(records.sizes[index])))
        yield data, records, big
    if found != tree.records:
        raise DamagedPagesError(f"a table has {found:,} records and should have {tree.records:,}")


def _check_free(file: _File, tree: Tree) -> None:
    """The free list: pages by the transaction that freed them. None of them is in use."""
    for data, records, big in _walk(file, tree, sorted_bytes=False):
        values = iter(big)
        for flags, at, end in zip(records.flags.tolist(), records.values.tolist(), records.ends.tolist(), strict=True):
            raw = next(values) if flags & _BIG else data[at:end]
            if len(raw) < 8 or len(raw) % 8:
                raise DamagedPagesError("the list of free pages can't be read")
            count, *pages = struct.unpack(f"<{len(raw) // 8}Q", raw)
            if count > len(pages):
                raise DamagedPagesError("the list of free pages is shorter than it says")
            for page in pages[:count]:
                file.take_free(page)


def _check_table(file: _File, name: str, tree: Tree, seed: int) -> tuple[int, int]:
    """The table's total, after a look at each value."""
    count = total = 0
    crc = crc32c
    for data, records, big in _walk(file, tree):
        if (records.flags & ~np.uint16(_BIG)).any():
            raise DamagedPagesError(f"table {name} has a record of no kind")
        count += len(records.keys)
        plain = (records.flags & _BIG) == 0
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


def _pairs(file: _File, tree: Tree) -> dict[bytes, tuple[int, bytes]]:
    """The records of a small table: flags and value by key."""
    found: dict[bytes, tuple[int, bytes]] = {}
    for data, records, big in _walk(file, tree):
        values = iter(big)
        for flags, key, value, end in zip(
            records.flags.tolist(), records.keys.tolist(), records.values.tolist(), records.ends.tolist(), strict=True
        ):
            found[data[key:value]] = flags, next(values) if flags & _BIG else data[value:end]
    return found


def inspect(path: Path, container: int) -> Inspected:
    """Look at a whole file; OSError where it can't be read. Blocking, for as long as it takes to read it."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _inspect(file, container)
    except DamagedPagesError as damage:
        return Inspected(str(damage))
    finally:
        os.close(file)


def _inspect(descriptor: int, container: int) -> Inspected:
    meta = read_meta(descriptor)
    return _inspect_pages(_File(descriptor, meta.last_page), meta, container)


def _inspect_pages(file: _File, meta: Meta, container: int) -> Inspected:
    trees: dict[str, Tree] = {}
    for key, (flags, value) in _pairs(file, meta.main).items():
        name = key.decode(errors="replace")
        if flags != _TREE or len(value) != TREE_BYTES or name not in TABLES:
            raise DamagedPagesError("the list of tables names one that no state has")
        trees[name] = Tree.decode(value)
        if trees[name].flags:
            raise DamagedPagesError(f"table {name} is of no kind that a state has")
    if trees and len(trees) < len(TABLES):
        # half of a first opening, each table being a transaction, or damage, which the state's record tells
        if any(tree.records for tree in trees.values()) and "state" not in trees:
            raise DamagedPagesError("the table of the state's own records is missing")
        trees = {name: trees.get(name, Tree(0, 0, 0, _NO_PAGE)) for name in TABLES}
    if not trees:
        _check_free(file, meta.free)
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
            counts[name] = sum(len(records.keys) for _, records, _ in _walk(file, trees[name])), 0
    _check_free(file, meta.free)
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
    """A record of a version that had no checksums is one list; a damaged one of today has more behind it."""
    try:
        return int(msgspec.msgpack.decode(state, type=list)[0])
    except (msgspec.DecodeError, IndexError, TypeError, ValueError) as error:
        raise DamagedPagesError("the state's own record is damaged") from error


# --- for the last resort -----------------------------------------------------------------------------


class UsedPages(NamedTuple):
    """Which pages of a file are in use. rest: of which that can't be told; what they hold may be older.

    damage: why it had to be found out in another way than by the list of free pages.
    """

    sure: set[int]
    rest: set[int]
    damage: str = ""


def used_pages(file: int) -> UsedPages:
    """The pages of an open file that may hold records: all but free ones, or else those that its tables reach.

    Raises:
        DamagedPagesError: that can't be told.
    """
    try:
        meta = read_meta(file)
    except DamagedPagesError:
        meta = _any_meta(file)
    walked = _File(file, meta.last_page)
    pages = set(range(2, len(walked.used)))
    try:
        _check_free(walked, meta.free)
    except DamagedPagesError as error:
        reached, is_all = _reached(file, meta)
        rest = set() if is_all else pages - reached - _known_free(file, meta)
        return UsedPages(reached, rest, str(error))
    return UsedPages(pages - set(np.flatnonzero(walked.used).tolist()), set())


def pages_of(file: int, container: int, meta: Meta) -> set[int]:
    """The pages in use of a state that such a meta page would lead to.

    Raises:
        DamagedPagesError: that is none, or not whole.
    """
    walked = _File(file, meta.last_page)
    if not _inspect_pages(walked, meta, container).checked:
        raise DamagedPagesError("it is of an earlier version, and nothing tells whether it is whole")
    return set(np.flatnonzero(walked.used).tolist()) - {0, 1}


def meta_of(last_page: int, root: int, tables: int) -> Meta:
    """What a meta page would say of the list of tables on that page; nothing of free pages."""
    return Meta(last_page, 0, Tree(_INTEGER_KEYS, 0, 0, _NO_PAGE), Tree(0, 1, tables, root))


def _any_meta(file: int) -> Meta:
    """The newest meta page that is one. Pages of the transaction before the last are not used again by that one, so its
    tables are whole too."""
    metas, damage = [], ""
    for number in range(2):
        try:
            metas.append(_meta_page(file, number))
        except DamagedPagesError as error:
            damage = str(error)
    if not metas:
        raise DamagedPagesError(damage)
    return max(metas, key=lambda meta: meta.transaction)


def _reached(file: int, meta: Meta) -> tuple[set[int], bool]:
    """The leaf pages to which the tables of the newest transaction lead, and whether those are all."""
    walked = _File(file, meta.last_page)
    found, is_all = _leaves_anyhow(walked, meta.main)
    heads = {
        key: Tree.decode(value)
        for number in found
        for key, value in records_on(file, number)
        if key.decode(errors="replace") in TABLES and len(value) == TREE_BYTES
    }
    is_all = is_all and len(heads) == len(TABLES)
    for tree in heads.values():
        leaves, are_all = _leaves_anyhow(walked, tree)
        found |= leaves
        is_all = is_all and are_all
    return found, is_all


def _leaves_anyhow(file: _File, tree: Tree) -> tuple[set[int], bool]:
    """The numbers of a tree's leaf pages to which whole pages lead, and whether those are all."""
    if tree.root == _NO_PAGE:
        return set(), True
    if not 1 <= tree.depth <= _DEEPEST:
        return set(), False
    level, is_all = [_Leaf(tree.root, None, None)], True
    for _ in range(tree.depth - 1):
        below: list[_Leaf] = []
        for branch in level:
            try:
                below += list(_children(file, branch))
            except DamagedPagesError:
                is_all = False
        level = below
    inside = {leaf.page for leaf in level if 2 <= leaf.page < len(file.used)}
    return inside, is_all and len(inside) == len(level)


def _known_free(file: int, meta: Meta) -> set[int]:
    """What can be read of the list of free pages."""
    free: set[int] = set()
    for number in _leaves_anyhow(_File(file, meta.last_page), meta.free)[0]:
        for _, raw in records_on(file, number):
            count, *pages = struct.unpack(f"<{len(raw) // 8}Q", raw[: len(raw) // 8 * 8]) or (0,)
            free.update(pages[:count])
    return free


def records_on(file: int, number: int) -> Iterator[tuple[bytes, bytes]]:
    """Key and stored value of what can be read of one leaf page; nothing of another page."""
    page = os.pread(file, PAGE_BYTES, number * PAGE_BYTES)
    if len(page) < PAGE_BYTES or _PAGE.unpack_from(page)[2] != _LEAF:
        return
    lower = min(_PAGE.unpack_from(page)[3], PAGE_BYTES)
    for slot in range(_HEAD_BYTES, lower - 1, 2):
        (at,) = struct.unpack_from("<H", page, slot)
        if at + _NODE_BYTES > PAGE_BYTES:
            continue
        low, high, flags, key_size = _NODE.unpack_from(page, at)
        key_end, size = at + _NODE_BYTES + key_size, low | high << 16
        if key_end + (8 if flags & _BIG else size) > PAGE_BYTES:
            continue
        value = page[key_end : key_end + size]
        if flags & _BIG:
            first = struct.unpack_from("<Q", page, key_end)[0]
            if first > os.fstat(file).st_size // PAGE_BYTES:
                continue
            value = os.pread(file, size, first * PAGE_BYTES + _HEAD_BYTES)
        yield page[at + _NODE_BYTES : key_end], value


def main() -> None:
    path, container = sys.argv[1:]
    sys.stdout.buffer.write(msgspec.json.encode(inspect(Path(path), int(container))))


if __name__ == "__main__":
    main()
