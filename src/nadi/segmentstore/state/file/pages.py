"""Pages of an LMDB file, read without LMDB, which trusts them blindly: a damaged page can crash a process that maps it,
make it loop, or hide records.

`File` reads pages as bytes and checks everything LMDB relies on: that each page is the one expected there and is used
once, that nothing lies outside its page or the file, that the free list names no page in use, that keys lie within the
bounds of the branches above them, and that trees have the depth and the number of records that their heads say.

A sound file may end before its last page: LMDB counts pages that it took and freed again within one transaction, and
doesn't write them. All of those are on the free list, so a page after the file's end must be there, and nowhere else.
LMDB writes such a page before it reads it, so the file can be mapped unchanged.
Nothing here can crash or loop, whatever the bytes; as numpy does the work that is the same for every record, it checks
more than a million records per second.

The format is LMDB's 0.9, with pages of 4096 bytes, as on every machine where nadi runs.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

PAGE_BYTES = 4096
_BLOCK_PAGES = 1024  # read together: 4 MiB
_HEAD_BYTES = 16  # of a page
_NODE_BYTES = 8  # of a node's head
_BRANCH, _LEAF, _OVERFLOW, _META = 1, 2, 4, 8  # flags of pages
BIG, TREE = 1, 2  # flags of nodes: the value has its own pages; it is the head of a table
NO_PAGE = 0xFFFF_FFFF_FFFF_FFFF
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_INTEGER_KEYS = 8  # flag of the free list, and the only one that is set in a state
DEEPEST = 32  # LMDB's own limit

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
    """Return the newest meta page of an open file.

    Raises:
        DamagedPagesError: one of the two isn't valid.
    """
    return max((meta_page(file, number) for number in range(2)), key=lambda meta: meta.transaction)


def meta_page(file: int, number: int) -> Meta:
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


class Leaf(NamedTuple):
    """A leaf page to check; its keys are in [low, high)."""

    page: int
    low: bytes | None
    high: bytes | None


class File:
    """The pages of a file, each of which may be taken once."""

    def __init__(self, file: int, last_page: int) -> None:
        self._file = file
        self._size_bytes = os.fstat(file).st_size
        self._last_page = last_page
        self.used = np.zeros(min(last_page + 1, self._size_bytes // PAGE_BYTES), dtype=bool)
        self.used[:2] = True
        self._unwritten: set[int] = set()  # free pages after the file's end

    def take(self, first: int, count: int = 1) -> None:
        if first < 2 or first + count - 1 > self._last_page:
            raise DamagedPagesError(f"page {first:,} is used and lies outside the file")
        if first + count > len(self.used):
            raise self._cut_short(first + count)
        if self.used[first : first + count].any():
            raise DamagedPagesError(f"page {first:,} is used twice")
        self.used[first : first + count] = True

    def take_free(self, number: int) -> None:
        """Take a page that the free list names; it may lie after the file's end."""
        if not len(self.used) <= number <= self._last_page:
            self.take(number)
        elif number in self._unwritten:
            raise DamagedPagesError(f"page {number:,} is free twice")
        else:
            self._unwritten.add(number)

    def check_end(self) -> None:
        """Check, once the whole free list is taken, that all pages after the file's end are on it."""
        if len(self.used) + len(self._unwritten) != self._last_page + 1:
            raise self._cut_short(self._last_page + 1)

    def _cut_short(self, pages: int) -> DamagedPagesError:
        needed = pages * PAGE_BYTES
        return DamagedPagesError(f"the file has {self._size_bytes:,} bytes and needs {needed:,}: it was cut short")

    def page(self, number: int, flag: int) -> bytes:
        """Return one page, which must be of that kind."""
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

    def leaves(self, leaves: list[Leaf]) -> Iterator[tuple[list[Leaf], bytes, Array]]:
        """Yield leaf pages in file order, many at a time, with their bytes and where in these each starts."""
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
        """Return a value that has its own pages."""
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


def _leaves_of(file: File, tree: Tree) -> list[Leaf]:
    """All leaf pages of a tree, in key order."""
    if tree.root == NO_PAGE:
        if tree.depth or tree.records:
            raise DamagedPagesError("a table without pages should have records")
        return []
    if not 1 <= tree.depth <= DEEPEST:
        raise DamagedPagesError(f"a table is {tree.depth:,} pages deep")
    level = [Leaf(tree.root, None, None)]
    for _ in range(tree.depth - 1):
        level = [child for leaf in level for child in children(file, leaf)]
    return level


def children(file: File, branch: Leaf) -> Iterator[Leaf]:
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
    keys[0] = branch.low  # LMDB ignores the first
    for child, low_key, high_key in zip(children, keys, [*keys[1:], branch.high], strict=True):
        if low_key is not None and high_key is not None and low_key >= high_key:
            raise DamagedPagesError(f"the keys of branch page {branch.page:,} are not in order")
        yield Leaf(child, low_key, high_key)


class Records(NamedTuple):
    """The records of some leaf pages: where in their bytes keys start and end, and where values end."""

    keys: Array
    values: Array
    ends: Array
    flags: Array
    sizes: Array  # of the values
    counts: Array  # of records by page


def _records_of(leaves: list[Leaf], data: bytes, starts: Array) -> Records:
    """Find the records of leaf pages, after checking that every part lies where it should."""
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
        ends = values + np.where(flags & BIG, 8, sizes)
        wrong = (ends > starts[of_page] + PAGE_BYTES) | (key_sizes == 0)
    if wrong.any():
        raise DamagedPagesError(f"page {int(numbers[of_page[wrong.argmax()]]):,} has a record that lies outside it")
    return Records(keys, values, ends, flags, sizes, counts)


def _check_bounds(leaves: list[Leaf], data: bytes, records: Records) -> None:
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


def walk(file: File, tree: Tree, *, sorted_bytes: bool = True) -> Iterator[tuple[bytes, Records, list[bytes]]]:
    """Yield a table's records, many at a time, and the values that have their own pages, in the order of the flags."""
    found = 0
    for leaves, data, starts in file.leaves(_leaves_of(file, tree)):
        records = _records_of(leaves, data, starts)
        if sorted_bytes:
            _check_bounds(leaves, data, records)
        found += len(records.keys)
        big: list[bytes] = []
        for index in np.flatnonzero(records.flags & BIG):
            at = int(records.values[index])
            big.append(file.big_value(struct.unpack_from("<Q", data, at)[0], int(records.sizes[index])))
        yield data, records, big
    if found != tree.records:
        raise DamagedPagesError(f"a table has {found:,} records and should have {tree.records:,}")


def check_free(file: File, tree: Tree) -> None:
    """Check the free list, pages by the transaction that freed them: none may be in use."""
    for data, records, big in walk(file, tree, sorted_bytes=False):
        values = iter(big)
        for flags, at, end in zip(records.flags.tolist(), records.values.tolist(), records.ends.tolist(), strict=True):
            raw = next(values) if flags & BIG else data[at:end]
            if len(raw) < 8 or len(raw) % 8:
                raise DamagedPagesError("the list of free pages can't be read")
            count, *pages = struct.unpack(f"<{len(raw) // 8}Q", raw)
            if count > len(pages):
                raise DamagedPagesError("the list of free pages is shorter than it says")
            for page in pages[:count]:
                file.take_free(page)


def records_on(file: int, number: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield key and stored value of each record that can be read on a leaf page; nothing on any other page."""
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
        if key_end + (8 if flags & BIG else size) > PAGE_BYTES:
            continue
        value = page[key_end : key_end + size]
        if flags & BIG:
            first = struct.unpack_from("<Q", page, key_end)[0]
            if first > os.fstat(file).st_size // PAGE_BYTES:
                continue
            value = os.pread(file, size, first * PAGE_BYTES + _HEAD_BYTES)
        yield page[at + _NODE_BYTES : key_end], value


def meta_of(last_page: int, root: int, tables: int) -> Meta:
    """Return what a meta page would say about the list of tables on that page, without free pages."""
    return Meta(last_page, 0, Tree(_INTEGER_KEYS, 0, 0, NO_PAGE), Tree(0, 1, tables, root))
