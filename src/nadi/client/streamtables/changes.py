"""What rows change: each that comes, beside the latest one of its key before it.

`_change_type` says what a row is: `insert` for one of a key that isn't in the table, `update_before` and `update_after`
for what one was and has become, `delete` for what one was. The rows of each key are in order. A row that deletes what
isn't there changes nothing, nor does one that has an earlier place than another of its key.
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
_NOBODY = -1


def changes_schema(layout: Layout) -> pa.Schema:
    """Of changes, as they are given away."""
    return pa.schema([pa.field(CHANGE, pa.string()), *layout.told])


def changes_of(
    layout: Layout, before: Iterator[pa.Table], rows: Iterator[pa.Table], level: int = 0
) -> Iterator[pa.Table]:
    """What the rows change in a table of all rows before them, with `changes_schema`."""
    state = LatestByKey(layout, keeps_deleted=True)
    for some in before:
        state.add(some)
        if state.is_too_large and level < MOST_LEVELS:
            break
    else:
        for window in windows(rows):
            found, new = changed(layout, state.rows(), window)
            yield found
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
            olds.forget(number)
            news.forget(number)


def changed(layout: Layout, held: pa.Table, window: pa.Table) -> tuple[pa.Table, pa.Table]:
    """What the rows of a window change, and those of them that are new. held: one row for each key before them."""
    both = pa.concat_tables([held, window]).combine_chunks()
    codes, count = codes_of(both, layout.keys)
    old, new = codes[: len(held)], codes[len(held) :]
    holders = np.full(count, _NOBODY, np.int64)  # the held row of each key
    holders[old] = np.arange(len(held))
    places = np.arange(len(held), len(both))
    late = _is_late(both, holders[new], places)
    if late.any():
        new, places = new[~late], places[~late]
        window = both.take(pa.array(places))
    previous = _previous(new, places, holders)
    deleted = layout.deletes(both)
    was = (previous != _NOBODY) & ~deleted[previous]
    gone = deleted[places]
    return _told(layout, both, places, previous, was, gone), window


def _is_late(both: pa.Table, held: Codes, places: Codes) -> Flags:
    """Which rows aren't behind the one that is held of their key."""
    segments, offsets = (both[name].to_numpy() for name in OWN)
    mine, other = segments[places], segments[held]
    late: Flags = (held != _NOBODY) & ((mine < other) | ((mine == other) & (offsets[places] <= offsets[held])))
    return late


def _previous(codes: Codes, places: Codes, holders: Codes) -> Codes:
    """Of each row, the one of its key before it."""
    order = np.argsort(codes, kind="stable")
    keys, mine = codes[order], places[order]
    found = np.empty(len(codes), np.int64)
    is_first = np.ones(len(codes), bool)
    is_first[1:] = keys[1:] != keys[:-1]
    before = np.concatenate([[_NOBODY], mine[:-1]]) if len(mine) else mine
    found[order] = np.where(is_first, holders[keys], before)
    return found


def _told(layout: Layout, both: pa.Table, places: Codes, previous: Codes, was: Flags, gone: Flags) -> pa.Table:
    """Up to two rows for each: with the values of the one before, and its own."""
    first = np.flatnonzero(was)  # what was: before an update, or deleted
    second = np.flatnonzero(~gone)  # what is
    rows = np.concatenate([first, second])
    order = np.argsort(rows, kind="stable")
    rows = rows[order]
    values = np.concatenate([previous[first], places[second]])[order]
    kinds = np.concatenate([np.where(gone[first], _DELETE, _BEFORE), np.where(was[second], _AFTER, _INSERT)])[order]
    found = both.take(pa.array(values))
    own = both.select(OWN).take(pa.array(places[rows]))  # where the change lies
    for name in (SEGMENT, OFFSET):
        found = found.set_column(found.schema.get_field_index(name), name, own[name])
    told = layout.tell(found)
    types = pa.array(_TYPES, pa.string())  # here, for the first array has PyArrow import pandas, which takes 0.2 s
    return pa.Table.from_arrays([types.take(pa.array(kinds)), *told.columns], schema=changes_schema(layout))
