"""Which pages of a damaged state's file are in use: what they hold belongs to the state; others may be older."""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

from nadi.segmentstore.state.checked import TABLES
from nadi.segmentstore.state.file.inspector import inspect_pages
from nadi.segmentstore.state.file.pages import (
    DEEPEST,
    NO_PAGE,
    TREE_BYTES,
    DamagedPagesError,
    File,
    Leaf,
    Meta,
    Tree,
    check_free,
    children,
    meta_page,
    read_meta,
    records_on,
)


class UsedPages(NamedTuple):
    """Which pages of a file are in use. rest: those for which that is unknown; what they hold may be older.

    damage: why the list of free pages couldn't be used to find out.
    """

    sure: set[int]
    rest: set[int]
    damage: str = ""


def used_pages(file: int) -> UsedPages:
    """The pages of an open file that may hold records: all but free ones, or else those that its tables reach.

    Raises:
        DamagedPagesError: that can't be determined.
    """
    try:
        meta = read_meta(file)
    except DamagedPagesError:
        meta = _any_meta(file)
    walked = File(file, meta.last_page)
    pages = set(range(2, len(walked.used)))
    try:
        check_free(walked, meta.free)
    except DamagedPagesError as error:
        reached, is_all = _reached(file, meta)
        rest = set() if is_all else pages - reached - _known_free(file, meta)
        return UsedPages(reached, rest, str(error))
    return UsedPages(pages - set(np.flatnonzero(walked.used).tolist()), set())


def pages_of(file: int, container: int, meta: Meta) -> set[int]:
    """The pages in use of a state that such a meta page would lead to.

    Raises:
        DamagedPagesError: it isn't a state, or isn't intact.
    """
    walked = File(file, meta.last_page)
    if not inspect_pages(walked, meta, container).checked:
        raise DamagedPagesError("it is from an earlier version, and nothing shows whether it is intact")
    return set(np.flatnonzero(walked.used).tolist()) - {0, 1}


def _any_meta(file: int) -> Meta:
    """The newest valid meta page. The last transaction doesn't reuse pages of the one before it, so the tables of that
    one are intact too."""
    metas, damage = [], ""
    for number in range(2):
        try:
            metas.append(meta_page(file, number))
        except DamagedPagesError as error:
            damage = str(error)
    if not metas:
        raise DamagedPagesError(damage)
    return max(metas, key=lambda meta: meta.transaction)


def _reached(file: int, meta: Meta) -> tuple[set[int], bool]:
    """The leaf pages to which the tables of the newest transaction lead, and whether those are all."""
    walked = File(file, meta.last_page)
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


def _leaves_anyhow(file: File, tree: Tree) -> tuple[set[int], bool]:
    """The numbers of a tree's leaf pages that intact pages lead to, and whether those are all."""
    if tree.root == NO_PAGE:
        return set(), True
    if not 1 <= tree.depth <= DEEPEST:
        return set(), False
    level, is_all = [Leaf(tree.root, None, None)], True
    for _ in range(tree.depth - 1):
        below: list[Leaf] = []
        for branch in level:
            try:
                below += list(children(file, branch))
            except DamagedPagesError:
                is_all = False
        level = below
    inside = {leaf.page for leaf in level if 2 <= leaf.page < len(file.used)}
    return inside, is_all and len(inside) == len(level)


def _known_free(file: int, meta: Meta) -> set[int]:
    """What can be read of the list of free pages."""
    free: set[int] = set()
    for number in _leaves_anyhow(File(file, meta.last_page), meta.free)[0]:
        for _, raw in records_on(file, number):
            count, *pages = struct.unpack(f"<{len(raw) // 8}Q", raw[: len(raw) // 8 * 8]) or (0,)
            free.update(pages[:count])
    return free
