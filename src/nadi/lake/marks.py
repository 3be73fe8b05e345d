"""What a snapshot's summary says of the stream: the one record of how far a table is.

Every snapshot that the lake commits has the cut up to which the table holds the stream, also one that only joins files.
Others' snapshots have none: the newest one before them that has counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from nadi.errors import InvalidStreamCutError
from nadi.lake.table.reaching import LakeStoppedError
from nadi.model.streamcut import StreamCut

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

CUT = "nadi.cut"
_MARK = "nadi.mark"


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What events were read as: format and, of these, the schema's number in the store or the fields given."""

    format: str
    version: int | None = None
    ddl: str | None = None


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """cut: up to which the table has the stream. start: the cut at which the snapshot's own rows begin; rows: how many
    it has. letters: of all snapshots so far, these rows' included, events that were no rows; own_letters: of these.
    reading: how they were read. segments: ids and key ranges of those in which the rows lay."""

    cut: str
    start: str
    rows: int = 0
    letters: int = 0
    own_letters: int = 0
    reading: Reading | None = None
    segments: tuple[tuple[int, float, float], ...] = ()

    @property
    def end_cut(self) -> StreamCut:
        return StreamCut.from_text(self.cut)

    @property
    def start_cut(self) -> StreamCut:
        return StreamCut.from_text(self.start)


def without_rows(mark: Mark, segments: tuple[tuple[int, float, float], ...]) -> Mark:
    """Of a snapshot at the same cut that has no rows of its own; it says what `segments_told` found."""
    return Mark(cut=mark.cut, start=mark.cut, letters=mark.letters, reading=mark.reading, segments=segments)


def summary_of(mark: Mark) -> dict[str, str]:
    """For the snapshot: the cut by itself, for whoever looks, and the whole mark."""
    return {CUT: mark.cut, _MARK: msgspec.json.encode(mark).decode()}


def mark_of(snapshot: Snapshot) -> Mark | None:
    """What the snapshot says; None if it is another's."""
    text = snapshot.summary.additional_properties.get(_MARK) if snapshot.summary is not None else None
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=Mark)
    except msgspec.MsgspecError as error:
        raise LakeStoppedError(
            f"snapshot {snapshot.snapshot_id} has a mark that can't be read ({error}): use the nadi that wrote it"
        ) from error


def newest_mark(table: Table, scope: str, stream: str) -> Mark | None:
    """How far the table is; None if it has no snapshot yet. LakeStoppedError if that isn't known, or it is
    another's."""
    snapshot = table.current_snapshot()
    name = ".".join(table.name())
    if snapshot is None:
        return None
    while snapshot is not None:
        mark = mark_of(snapshot)
        if mark is not None:
            try:
                cut = mark.end_cut
            except InvalidStreamCutError as error:
                raise LakeStoppedError(f"the cut that table {name} stands at can't be read: {error}") from error
            if (cut.scope, cut.stream) != (scope, stream):
                raise LakeStoppedError(
                    f"table {name} has stream {cut.scope}/{cut.stream}, not {scope}/{stream}: give the lake a table of "
                    "its own"
                )
            return mark
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.snapshot_by_id(parent)
    raise LakeStoppedError(
        f"no snapshot of table {name} says how far it has the stream: its rows are others', or the snapshots that said "
        "it were expired behind others'. Give the lake a table of its own, or roll the table back to a snapshot with "
        f"{CUT} in its summary"
    )


def segments_told(table: Table, snapshots: Iterable[Snapshot] | None = None) -> tuple[tuple[int, float, float], ...]:
    """All segments of which the table has rows, with their keys, as far as its snapshots say: one that joins files says
    what those before it did, and so does one before which others are expired. snapshots: what these say alone."""
    found: set[tuple[int, float, float]] = set()
    for snapshot in table.snapshots() if snapshots is None else snapshots:
        mark = mark_of(snapshot)
        found |= set(mark.segments) if mark is not None else set()
    return tuple(sorted(found))
