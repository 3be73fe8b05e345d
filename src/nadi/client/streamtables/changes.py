"""Compute changes: compare each new row with the latest earlier row of its key.

`_change_type` is `insert` for a row of a new key, `update_before` and `update_after` for the old and new values of an
update, `delete` for the old values of a deleted key. The changes of each key are in order. Deleting an unknown key
changes nothing, nor does a row that precedes another of its key.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from nadi.client.definitions.columns import CHANGE
from nadi.client.streamtables.latest_rows import MOST_LEVELS, LatestByKey, Spill, windows
from nadi.client.streamtables.layout import (
    AFTER,
    BEFORE,
    DELETE,
    INSERT,
    OFFSET,
    OWN,
    SEGMENT,
    Codes,
    Flags,
    Layout,
    codes_of,
)
from nadi.limits import STREAM_TABLE_PARTS

_TYPES = (INSERT, BEFORE, AFTER, DELETE)
_INSERT, _BEFORE, _AFTER, _DELETE = range(len(_TYPES))
_MISSING = -1


def changes_schema(layout: Layout) -> pa.Schema:
    """Return the schema of changes for output."""
    return pa.schema([pa.field(CHANGE, pa.string()), *layout.output_schema])


def changes_of(
    layout: Layout, before: Iterator[pa.Table], rows: Iterator[pa.Table], level: int = 0
) -> Iterator[pa.Table]:
    """Yield the changes that the rows make to a table of all rows before them, with `changes_schema`."""
    state = LatestByKey(layout, keeps_deleted=True)
    for batch in before:
        state.add(batch)
        if state.is_too_large and level < MOST_LEVELS:
            break
    else:
        for window in windows(rows):
            changes, new = changed(layout, state.rows(), window)
            yield changes
            state.add(new)
            if state.is_too_large and level < MOST_LEVELS:
                break
        else:
            return
    with Spill(layout.schema, layout.keys, level) as olds, Spill(layout.schema, layout.keys, level) as news:
        olds.write(state.rows())
        del state
        for window in windows(before):
            olds.write(window)
        for window in windows(rows):
            news.write(window)
        for number in range(STREAM_TABLE_PARTS):
            yield from changes_of(layout, olds.read(number), news.read(number), level + 1)
            olds.discard(number)
            news.discard(number)


def changed(layout: Layout, latest: pa.Table, window: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the changes of a window of rows, and its rows that count. latest: one earlier row for each key."""
    both = pa.concat_tables([latest, window]).combine_chunks()
    codes, count = codes_of(both, layout.keys)
    old, new = codes[: len(latest)], codes[len(latest) :]
    latest_of = np.full(count, _MISSING, np.int64)  # the index of the latest row of each key
    latest_of[old] = np.arange(len(latest))
    indices = np.arange(len(latest), len(both))
    late = _is_late(both, latest_of[new], indices)
    if late.any():
        new, indices = new[~late], indices[~late]
        window = both.take(pa.array(indices))
    previous = _previous(new, indices, latest_of)
    deleted = layout.deletes(both)
    existed = (previous != _MISSING) & ~deleted[previous]
    is_deleted = deleted[indices]
    return _change_rows(layout, both, indices, previous, existed, is_deleted), window


def _is_late(both: pa.Table, latest: Codes, indices: Codes) -> Flags:
    """Return which rows don't follow the latest row of their key."""
    segments, offsets = (both[name].to_numpy() for name in OWN)
    own, other = segments[indices], segments[latest]
    late: Flags = (latest != _MISSING) & ((own < other) | ((own == other) & (offsets[indices] <= offsets[latest])))
    return late


def _previous(codes: Codes, indices: Codes, latest_of: Codes) -> Codes:
    """Return the index of each row's predecessor of the same key."""
    order = np.argsort(codes, kind="stable")
    keys, rows = codes[order], indices[order]
    previous = np.empty(len(codes), np.int64)
    is_first = np.ones(len(codes), bool)
    is_first[1:] = keys[1:] != keys[:-1]
    before = np.concatenate([[_MISSING], rows[:-1]]) if len(rows) else rows
    previous[order] = np.where(is_first, latest_of[keys], before)
    return previous


def _change_rows(
    layout: Layout, both: pa.Table, indices: Codes, previous: Codes, existed: Flags, is_deleted: Flags
) -> pa.Table:
    """Return up to two rows for each row: the previous values, and its own."""
    first = np.flatnonzero(existed)  # old values: of updates and deletions
    second = np.flatnonzero(~is_deleted)  # new values
    rows = np.concatenate([first, second])
    order = np.argsort(rows, kind="stable")
    rows = rows[order]
    values = np.concatenate([previous[first], indices[second]])[order]
    olds, news = np.where(is_deleted[first], _DELETE, _BEFORE), np.where(existed[second], _AFTER, _INSERT)
    kinds = np.concatenate([olds, news])[order]
    table = both.take(pa.array(values))
    own = both.select(OWN).take(pa.array(indices[rows]))  # the change's position
    for name in (SEGMENT, OFFSET):
        table = table.set_column(table.schema.get_field_index(name), name, own[name])
    output = layout.output(table)
    # not a constant: creating an array makes PyArrow import pandas, which takes 0.2 s
    types = pa.array(_TYPES, pa.string())
    return pa.Table.from_arrays([types.take(pa.array(kinds)), *output.columns], schema=changes_schema(layout))
