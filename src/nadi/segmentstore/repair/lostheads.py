"""Which pages of a state's file are in use where both its heads are gone: those of the newest tables that are whole.

LMDB never changes a page in place, so the list of tables that the lost head named, and ones before it, are still
somewhere in the file. What such a list leads to is a state of one moment if all of it is whole and its totals are right
(`pages`); the log goes on from there as from any. Where none is, all that is whole anywhere is taken, old and new.
"""

from __future__ import annotations

import os

import msgspec

from nadi.segmentstore.state import pages
from nadi.segmentstore.state.checked import CRC_BYTES, STATE_KEY, TABLES
from nadi.segmentstore.state.metadata import decode_sequence
from nadi.segmentstore.state.pages import PAGE_BYTES, TREE_BYTES, DamagedPagesError, Meta, Tree, UsedPages


def used_pages(file: int, container: int, damage: DamagedPagesError) -> UsedPages:
    """The pages of an open file, of which `damage` is said; blocking.

    Raises:
        OSError: it can't be read.
    """
    last_page = os.fstat(file).st_size // PAGE_BYTES - 1
    for _, root in sorted(_roots(file, last_page), reverse=True):
        try:
            return UsedPages(pages.pages_of(file, container, root), set(), f"{damage}, and so is the other")
        except DamagedPagesError:
            continue
    return UsedPages(set(), set(range(2, last_page + 1)), f"{damage}, and so is the other")


def _roots(file: int, last_page: int) -> list[tuple[int, Meta]]:
    """What heads may have said: lists of all tables, with the last frame that each reflects."""
    names = {name.encode() for name in TABLES}
    found = []
    for number in range(2, last_page + 1):
        tables = dict(pages.records_on(file, number))
        if set(tables) == names and all(len(raw) == TREE_BYTES for raw in tables.values()):
            own = Tree.decode(tables[b"state"])
            if own.depth != 1 or not 2 <= own.root <= last_page:
                continue
            raw = dict(pages.records_on(file, own.root)).get(STATE_KEY, b"")
            try:
                found.append((decode_sequence(raw[:-CRC_BYTES]), pages.meta_of(last_page, number, len(names))))
            except msgspec.DecodeError:  # the page was used again, for another table
                continue
    return found
