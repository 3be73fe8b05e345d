"""Which pages of a state's file are in use if both its heads are gone: those of the newest tables that are intact.

LMDB never changes a page in place, so the list of tables that the lost head named, and ones before it, are still
somewhere in the file. What such a list leads to is a consistent state if all of it is intact and its totals are correct
(`pages`); the log continues from there as from any. If there is none, all intact records are taken, old and new.
"""

from __future__ import annotations

import os

import msgspec

from nadi.segmentstore.repair.usedpages import UsedPages, pages_of
from nadi.segmentstore.state.checked import CRC_BYTES, STATE_KEY, TABLES
from nadi.segmentstore.state.file.pages import (
    PAGE_BYTES,
    TREE_BYTES,
    DamagedPagesError,
    Meta,
    Tree,
    meta_of,
    records_on,
)
from nadi.segmentstore.state.stored import decode_sequence


def used_pages(file: int, container: int, damage: DamagedPagesError) -> UsedPages:
    """The pages of an open file, of which `damage` is said; blocking.

    Raises:
        OSError: it can't be read.
    """
    last_page = os.fstat(file).st_size // PAGE_BYTES - 1
    for _, root in sorted(_roots(file, last_page), reverse=True):
        try:
            return UsedPages(pages_of(file, container, root), set(), f"{damage}; the other is damaged too")
        except DamagedPagesError:
            continue
    return UsedPages(set(), set(range(2, last_page + 1)), f"{damage}; the other is damaged too")


def _roots(file: int, last_page: int) -> list[tuple[int, Meta]]:
    """What heads may have said: lists of all tables, with the last frame that each reflects."""
    names = {name.encode() for name in TABLES}
    found = []
    for number in range(2, last_page + 1):
        tables = dict(records_on(file, number))
        if set(tables) == names and all(len(raw) == TREE_BYTES for raw in tables.values()):
            own = Tree.decode(tables[b"state"])
            if own.depth != 1 or not 2 <= own.root <= last_page:
                continue
            raw = dict(records_on(file, own.root)).get(STATE_KEY, b"")
            try:
                found.append((decode_sequence(raw[:-CRC_BYTES]), meta_of(last_page, number, len(names))))
            except msgspec.DecodeError:  # the page was used again, for another table
                continue
    return found
