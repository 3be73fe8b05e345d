"""How lakes are: what the store knows of them, and where their tables are."""

from __future__ import annotations

import time
from dataclasses import dataclass

from nadi.client import StreamManager
from nadi.client.blocking.face import inside
from nadi.client.control.arguments import checking
from nadi.client.places import cuts as places
from nadi.client.tables.catalog import Unreadable, readable
from nadi.errors import InvalidStreamCutError, NadiError
from nadi.lake.definition import LakeDefinition
from nadi.lake.marks import newest_mark
from nadi.lake.record import LakeRecord, StoredLake, WriterReport
from nadi.lake.table.catalogs import table_of
from nadi.model.streamcut import StreamCut


@dataclass(frozen=True, slots=True)
class LakeStatus:
    """cut: up to which the table has the stream; None if it has nothing yet, or isn't known: `trouble` says why.
    behind_bytes: of the stream, that aren't in the table; None if that isn't known. writers: those that are there."""

    lake: LakeDefinition
    is_wanted: bool
    writers: tuple[WriterReport, ...]
    cut: StreamCut | None
    behind_bytes: int | None
    snapshot_id: int | None
    rows: int | None
    files: int | None
    letters: int | None
    trouble: str


@checking
def lakes_of(manager: StreamManager, scope: str) -> dict[str, LakeRecord]:
    """The scope's lakes by name, as the store has them; without those that `unreadable` tells."""
    return lakes_with_unreadable(manager, scope)[0]


@checking
def unreadable(manager: StreamManager, scope: str) -> list[Unreadable]:
    """The scope's lakes whose records are damaged, or of a newer nadi; they can be forgotten."""
    return lakes_with_unreadable(manager, scope)[1]


def lakes_with_unreadable(manager: StreamManager, scope: str) -> tuple[dict[str, LakeRecord], list[Unreadable]]:
    """What `lakes_of` returns, and what `unreadable` does, by one walk."""
    thread, core = inside(manager)

    async def found() -> tuple[dict[str, LakeRecord], list[Unreadable]]:
        names = await core.reader_group_manager(scope).list_reader_groups()
        return await readable({name: StoredLake(core, scope, name).record for name in names})

    return thread.run(found())


def record_of(manager: StreamManager, scope: str, name: str) -> LakeRecord:
    """NotFoundError if there is no such lake."""
    thread, core = inside(manager)
    return thread.run(StoredLake(core, scope, name).record.get())


@checking
def status(manager: StreamManager, scope: str, name: str) -> LakeStatus:
    """How a lake is; NotFoundError if there is none of that name."""
    record = record_of(manager, scope, name)
    now_ms = int(time.time() * 1000)
    writers = tuple(one for one in record.writers.values() if not one.is_gone(now_ms))
    trouble = max(writers, key=lambda one: one.updated_ms).trouble if writers else ""
    lake = record.definition
    cut = behind = snapshot_id = rows = files = letters = None
    try:
        table = table_of(lake.catalog, lake.table)
        mark = None if table is None else newest_mark(table, lake.scope, lake.stream)
        cut = None if mark is None else mark.end_cut
        behind = _behind(manager, name, cut or StreamCut.from_text(record.start))
        snapshot = None if table is None else table.current_snapshot()
        if snapshot is not None and snapshot.summary is not None and mark is not None:
            totals = snapshot.summary.additional_properties
            snapshot_id, letters = snapshot.snapshot_id, mark.letters
            rows, files = int(totals["total-records"]), int(totals["total-data-files"])
    except NadiError as error:
        trouble = str(error)
    return LakeStatus(lake, record.is_wanted, writers, cut, behind, snapshot_id, rows, files, letters, trouble)


def _behind(manager: StreamManager, name: str, cut: StreamCut) -> int:
    thread, core = inside(manager)

    async def measured() -> int:
        cuts = core.cuts(cut.scope, cut.stream)
        try:
            return sum(one.size_bytes for one in await places.slices_between(cuts, cut, await cuts.tail()))
        except InvalidStreamCutError:
            await StoredLake(core, cut.scope, name).check_stream(cut)
            raise

    return thread.run(measured())
