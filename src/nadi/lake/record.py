"""What the store keeps of a lake: its definition, in the table of its reader group, and beside it what each of its
writers says of itself (`process.members`).

The group is the stream's subscriber for the lake: it publishes the table's cut, so retention keeps what isn't in the
table yet (`docs/retention.md`). It has no readers. How far the table is it doesn't say: the table's snapshot alone
does.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from nadi.client import StreamManager, aio
from nadi.client.blocking.face import inside
from nadi.client.control.arguments import checking
from nadi.client.manager.streams import stores_of
from nadi.client.places import cuts as places
from nadi.client.readergroup.group import made_anew, shared_state_of
from nadi.client.segments.info import what_became_of
from nadi.client.tables.catalog import Kind, Record, Unreadable, readable
from nadi.errors import (
    ConflictError,
    InvalidStreamCutError,
    NadiError,
    NotFoundError,
    StreamRemadeError,
    SubscriberNotFoundError,
)
from nadi.lake.definition import LakeDefinition
from nadi.lake.marks import newest_mark
from nadi.lake.table.catalogs import table_of
from nadi.model.readergroup import StreamDataRetention
from nadi.model.streamcut import StreamCut
from nadi.naming import READER_GROUP_PREFIX, segment_name
from nadi.process.members import Member, Members, live_members

_MEMBER_KEYS = "writer/"


class LakeRecord(msgspec.Struct, frozen=True):
    """A lake as others see it. table_id: of its table, once that was made. start: the cut at which a new one begins.
    is_wanted: whether its writers are to run, which `stop` ends. trouble: that one ended with, until one can write."""

    definition: LakeDefinition
    table_id: str = ""
    start: str = ""
    is_wanted: bool = True
    trouble: str = ""


class StoredLake:
    """The record of the lake `name` of a scope, and its reader group."""

    def __init__(self, manager: aio.StreamManager, scope: str, name: str) -> None:
        self._manager, self.name = manager, name
        self._groups = manager.reader_group_manager(scope)
        self._place = stores_of(manager), scope, READER_GROUP_PREFIX + name, _MEMBER_KEYS
        kind = Kind(
            "the record of lake",
            scope,
            lambda name: "delete the lake (`nadi lake delete`; its table stays)",
            lambda name: NotFoundError(f"there is no lake {scope}/{name}: see `nadi lake list {scope}`"),
            lambda name, value: msgspec.msgpack.decode(value, type=LakeRecord),
            msgspec.msgpack.encode,
            key=b"lake",
        )
        self.record: Record[LakeRecord] = Record(manager.table(scope, READER_GROUP_PREFIX + name), kind, name)

    def members(self) -> Members:
        return Members(*self._place)

    async def writers(self) -> list[Member]:
        """Those that are there. state: "writing", "level" with the stream when it last looked, or "waiting" to try
        again for the reason in `last_error`."""
        return await live_members(*self._place)

    async def define(self, lake: LakeDefinition) -> LakeRecord:
        """Keep the definition, with a group and a cut to begin at if the lake is new."""
        cuts = self._manager.cuts(lake.scope, lake.stream)
        record = await self.record.find()
        if record is None:
            start = await (cuts.head() if lake.start == "head" else cuts.tail())
            kind = StreamDataRetention
            await self._groups.create_reader_group(
                self.name,
                lake.full_name,
                starts=[start],
                retention=kind.MANUAL_RELEASE_AT_USER_STREAMCUT if lake.holds_back else kind.NONE,
            )
            streams = (await shared_state_of(await self._groups.get_reader_group(self.name)).read()).streams
            if streams != (lake.full_name,):
                raise ConflictError(
                    f"there is a reader group {self.name} of {', '.join(streams)}: give the lake another name (--name)"
                )
            record = LakeRecord(lake, start=start.as_text())
        elif record.definition.start != lake.start and not record.table_id:
            record = replace(record, start=(await (cuts.head() if lake.start == "head" else cuts.tail())).as_text())
        elif record.definition.holds_back != lake.holds_back:
            raise ConflictError(
                f"lake {self.name} {'holds' if record.definition.holds_back else 'does not hold'} back retention since "
                "it was made: delete it with `nadi lake delete`, and run it again, to change that"
            )
        await self.check_stream()
        first = record

        def defined(held: LakeRecord | None) -> LakeRecord:
            stays = held is not None and (held.table_id or held.definition.start == lake.start)
            start = held.start if held is not None and stays else first.start
            return replace(held or first, definition=lake, is_wanted=True, start=start)

        await self.record.put(defined)
        return self.record.newest

    async def check_stream(self, cut: StreamCut | None = None) -> None:
        """StreamRemadeError if the stream was deleted, and made anew under its name, since the lake was made, or since
        its table reached the cut."""
        stores = stores_of(self._manager)
        state = await shared_state_of(await self._groups.get_reader_group(self.name)).read()
        error: NadiError | None = await made_anew(stores, state)
        if error is None and cut is not None and cut.positions:
            error = await what_became_of(stores, segment_name(cut.scope, cut.stream, max(cut.positions)))
        if isinstance(error, StreamRemadeError):
            raise StreamRemadeError(
                error.scope,
                error.stream,
                "the lake's table has the old one. Delete the lake (`nadi lake delete`; the table stays), and run it "
                "again with a new table",
            )

    async def note(self, trouble: str) -> None:
        """Have the record say what a writer ended with, or "" for one that can write."""
        await self.record.change(lambda record: None if record.trouble == trouble else replace(record, trouble=trouble))

    async def release(self, cut: StreamCut) -> None:
        """Let retention have what lies before the cut."""
        group = await self._groups.get_reader_group(self.name)
        with suppress(
            InvalidStreamCutError, SubscriberNotFoundError
        ):  # another writer was further; or it doesn't hold back
            await group.update_retention_stream_cut([cut])

    async def forget(self) -> None:
        await self._groups.delete_reader_group(self.name)


@dataclass(frozen=True, slots=True)
class LakeStatus:
    """cut: up to which the table has the stream; None if it has nothing yet, or isn't known: `trouble` says why.
    behind_bytes: of the stream, that aren't in the table; None if that isn't known. writers: those that are there."""

    lake: LakeDefinition
    is_wanted: bool
    writers: tuple[Member, ...]
    cut: StreamCut | None
    behind_bytes: int | None
    snapshot_id: int | None
    rows: int | None
    files: int | None
    letters: int | None
    trouble: str


@checking
def lakes_of(manager: StreamManager, scope: str) -> tuple[dict[str, LakeRecord], list[Unreadable]]:
    """The scope's lakes by name, as the store has them; and those whose records are damaged, or of a newer nadi, which
    can be forgotten."""
    thread, core = inside(manager)

    async def listed() -> tuple[dict[str, LakeRecord], list[Unreadable]]:
        names = await core.reader_group_manager(scope).list_reader_groups()
        return await readable({name: StoredLake(core, scope, name).record for name in names})

    return thread.run(listed())


def writers_of(manager: StreamManager, scope: str, name: str) -> list[Member]:
    thread, core = inside(manager)
    return thread.run(StoredLake(core, scope, name).writers())


def record_of(manager: StreamManager, scope: str, name: str) -> LakeRecord:
    """NotFoundError if there is no such lake."""
    thread, core = inside(manager)
    return thread.run(StoredLake(core, scope, name).record.get())


@checking
def status(manager: StreamManager, scope: str, name: str) -> LakeStatus:
    """How a lake is; NotFoundError if there is none of that name."""
    thread, core = inside(manager)

    async def measured(cut: StreamCut) -> int:
        cuts = core.cuts(cut.scope, cut.stream)
        try:
            return sum(piece.size_bytes for piece in await places.slices_between(cuts, cut, await cuts.tail()))
        except InvalidStreamCutError:
            await StoredLake(core, scope, name).check_stream(cut)
            raise

    record = record_of(manager, scope, name)
    writers = tuple(writers_of(manager, scope, name))
    trouble = next((writer.last_error for writer in writers if writer.last_error), record.trouble)
    lake = record.definition
    cut = behind = snapshot_id = rows = files = letters = None
    try:
        table = table_of(lake.catalog, lake.table)
        mark = None if table is None else newest_mark(table, lake.scope, lake.stream)
        cut = None if mark is None else mark.end_cut
        behind = thread.run(measured(cut or StreamCut.from_text(record.start)))
        snapshot = None if table is None else table.current_snapshot()
        if snapshot is not None and snapshot.summary is not None and mark is not None:
            totals = snapshot.summary.additional_properties
            snapshot_id, letters = snapshot.snapshot_id, mark.letters
            rows, files = int(totals["total-records"]), int(totals["total-data-files"])
    except NadiError as error:
        trouble = str(error)
    return LakeStatus(lake, record.is_wanted, writers, cut, behind, snapshot_id, rows, files, letters, trouble)
