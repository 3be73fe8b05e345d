"""What the store keeps of a lake: its definition, and what its writers last said, in the table of its reader group.

The group is the stream's subscriber for the lake: it publishes the table's cut, so retention keeps what isn't in the
table yet (`docs/retention.md`). It has no readers. How far the table is it doesn't say: the table's snapshot alone
does.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Literal

import msgspec
from msgspec.structs import replace

from nadi.client.aio import StreamManager
from nadi.client.manager.streams import stores_of
from nadi.client.readergroup.group import made_anew, shared_state_of
from nadi.client.segments.info import what_became_of
from nadi.client.tables.catalog import Kind, Record
from nadi.errors import (
    ConflictError,
    InvalidStreamCutError,
    NadiError,
    NotFoundError,
    StreamRemadeError,
    SubscriberNotFoundError,
)
from nadi.lake.definition import LakeDefinition
from nadi.lake.table.secrets import without_secrets
from nadi.limits import LAKE_GONE_S
from nadi.model.readergroup import StreamDataRetention
from nadi.model.streamcut import StreamCut
from nadi.naming import READER_GROUP_PREFIX, segment_name

State = Literal["writing", "level", "waiting", "stopped"]


class WriterReport(msgspec.Struct, frozen=True):
    """What a running writer said: "writing", "level" with the stream when it last looked, "waiting" to try again for
    the reason in `trouble`, or "stopped" for it. rows, letters, commits: since it was started."""

    host: str
    pid: int
    started_ms: int
    updated_ms: int
    state: State
    rows: int = 0
    letters: int = 0
    commits: int = 0
    trouble: str = ""

    def is_gone(self, now_ms: int) -> bool:
        """Whether it has not reported for so long that it must have died."""
        return now_ms - self.updated_ms > LAKE_GONE_S * 1000


class LakeRecord(msgspec.Struct, frozen=True):
    """A lake as others see it. table_id: of its table, once that was made. start: the cut at which a new one begins.
    is_wanted: whether its writers are to run, which `stop` ends. writers: by their names."""

    definition: LakeDefinition
    table_id: str = ""
    start: str = ""
    is_wanted: bool = True
    writers: dict[str, WriterReport] = {}


class StoredLake:
    """The record of the lake `name` of a scope, and its reader group."""

    def __init__(self, manager: StreamManager, scope: str, name: str) -> None:
        self.scope, self.name = scope, name
        self._manager = manager
        self._groups = manager.reader_group_manager(scope)
        self.record: Record[LakeRecord] = Record(manager.table(scope, READER_GROUP_PREFIX + name), _kind(scope), name)

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

    async def report(self, writer: str, now: WriterReport | None) -> LakeRecord:
        """Store what a writer says, None if it ends well; the record then says whether it is still wanted. What those
        said who have stopped is over once another one writes; and all trouble, once one has ended well: who still has
        it says so again."""

        def changed(held: LakeRecord | None) -> LakeRecord:
            if held is None:
                raise NotFoundError(f"lake {self.scope}/{self.name} was forgotten, or its stream's scope deleted")
            writers = dict(held.writers)
            writers.pop(writer, None)
            if now is None or now.state in ("level", "writing"):
                writers = {name: one for name, one in writers.items() if one.state != "stopped"}
            if now is None:
                writers = {name: one for name, one in writers.items() if not one.trouble}
            if now is not None:
                writers = {name: one for name, one in writers.items() if not one.is_gone(now.updated_ms)}
                writers[writer] = now
            return replace(held, writers=writers)

        await self.record.put(changed)
        return self.record.newest

    async def release(self, cut: StreamCut) -> None:
        """Let retention have what lies before the cut."""
        group = await self._groups.get_reader_group(self.name)
        with suppress(
            InvalidStreamCutError, SubscriberNotFoundError
        ):  # another writer was further; or it doesn't hold back
            await group.update_retention_stream_cut([cut])

    async def forget(self) -> None:
        """Delete group and record. The table stays as it is."""
        await self._groups.delete_reader_group(self.name)


def _kind(scope: str) -> Kind[LakeRecord]:
    def decode(name: str, value: bytes) -> LakeRecord:
        record = msgspec.msgpack.decode(value, type=LakeRecord)
        writers = {key: replace(one, trouble=without_secrets(one.trouble)) for key, one in record.writers.items()}
        return replace(record, writers=writers)

    return Kind(
        "the record of lake",
        scope,
        lambda name: "delete the lake (`nadi lake delete`; its table stays)",
        lambda name: NotFoundError(f"there is no lake {scope}/{name}: see `nadi lake list {scope}`"),
        decode,
        msgspec.msgpack.encode,
        key=b"lake",
    )
