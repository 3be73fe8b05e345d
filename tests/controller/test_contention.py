"""Records changed concurrently by several controllers: no change is lost, and an impossible one raises an error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from nadi.controller.event_time import MarkEntry, MarkStream
from nadi.controller.state.records import StreamConfigRecord
from nadi.controller.state.segments import ABSENT, RecordTable, Segments, Store, Versioned
from nadi.errors import (
    ContentionError,
    InvalidArgumentError,
    NadiError,
    ProtocolError,
    SegmentNotFoundError,
    StorageFullError,
)
from nadi.limits import CHANGE_TRIES
from nadi.runtime import Runtime
from nadi.wire import commands as wire

from .fake_store import FakeStore
from .support import FakeClock

NAME = "_system/_tables/numbers"


class ShortClock(Runtime):
    """A clock whose pauses are turns of the loop."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


def controller(store: FakeStore) -> RecordTable[int]:
    """Return the table with its own cache."""
    return Store(Segments(store.exchange, ShortClock())).table(NAME, int)


async def one_more(current: int | None) -> int:
    return (current or 0) + 1


async def test_no_change_of_two_tables_views_is_lost() -> None:
    store = FakeStore()
    tables = [controller(store) for _ in range(2)]
    await tables[0].create()

    async def count(table: RecordTable[int]) -> None:
        for _ in range(100):
            await table.change("n", "the number", one_more)

    await asyncio.gather(*(count(table) for table in tables))
    assert await tables[0].get("n", fresh=True) == await tables[1].get("n", fresh=True)
    assert (await tables[0].change("n", "the number", one_more, fresh=True)).value == 201
    puts = sum(isinstance(command, wire.UpdateTableEntries) for command in store.log)
    assert puts > 201, "they met"


async def test_known_record_is_not_read_again() -> None:
    store = FakeStore()
    table = controller(store)
    await table.create()
    known = await table.change("n", "the number", one_more)
    store.log.clear()
    stored = await controller(store).change("n", "the number", one_more, known=known)
    assert (stored.value, len(store.log)) == (2, 1)
    stored = await controller(store).change("n", "the number", one_more, known=known)
    assert stored.value == 3, "the change was applied to the newest record, not the outdated one"


async def test_record_returned_unchanged_is_not_stored() -> None:
    async def same(current: int | None) -> int:
        assert current is not None
        return current

    store = FakeStore()
    table = controller(store)
    await table.create()
    current = await table.change("n", "the number", one_more)
    assert await table.change("n", "the number", same) == current
    assert await table.get("n", fresh=True) == current


async def test_change_that_always_conflicts_raises_contention_error() -> None:
    store = FakeStore()
    table, other = controller(store), controller(store)
    await table.create()
    tries: list[int | None] = []

    async def late(current: int | None) -> int:
        tries.append(current)
        await other.change("n", "the number", one_more, fresh=True)
        return -1

    with pytest.raises(ContentionError, match=f"{CHANGE_TRIES}"):
        await table.change("n", "the number", late)
    assert tries == [None, *range(1, CHANGE_TRIES)], "each attempt used the newest record"


async def test_error_in_change_ends_the_attempts() -> None:
    store = FakeStore()
    table = controller(store)
    await table.create()

    async def refuse(held: int | None) -> Any:
        raise InvalidArgumentError("not this")

    with pytest.raises(InvalidArgumentError):
        await table.change("n", "the number", refuse, known=Versioned(1, 0))
    assert not [command for command in store.log if isinstance(command, wire.UpdateTableEntries)]


# --- a segment store that sends nonsensical replies: each call raises ProtocolError -----------------


SEGMENT = "home/meters/0.#epoch.0"
Act = Callable[[Segments], Awaitable[Any]]


def table(segments: Segments) -> RecordTable[Any]:
    return Store(segments).table(SEGMENT, int)


CALLS: dict[str, Act] = {
    "CreateSegment": lambda s: s.create_segment(SEGMENT, StreamConfigRecord()),
    "UpdateSegmentPolicy": lambda s: s.update_policy(SEGMENT, StreamConfigRecord()),
    "SealSegment": lambda s: s.seal(SEGMENT),
    "TruncateSegment": lambda s: s.truncate(SEGMENT, 8),
    "DeleteSegment": lambda s: s.delete(SEGMENT),
    "CreateTableSegment": lambda s: s.create_table(SEGMENT, 8, 0),
    "DeleteTableSegment": lambda s: s.delete_table(SEGMENT),
    "GetStreamSegmentInfo": lambda s: s.length(SEGMENT),
    "LocateMoment": lambda s: s.locate_moment(SEGMENT, 1),
    "MergeSegmentsBatch": lambda s: s.merge(SEGMENT, ["home/meters/1.#epoch.0"]),
    "UpdateTableEntries": lambda s: table(s).put("key", 1, ABSENT),
    "ReadTable": lambda s: table(s).get("key"),
    "RemoveTableKeys": lambda s: table(s).remove_if(("key", 1)),
    "ReadTableEntries": lambda s: table(s).page(),
}


def run(act: Act, reply: Callable[[Any], wire.Command]) -> None:
    async def exchange(command: Any) -> wire.Command:
        return reply(command)

    asyncio.run(_of(act(Segments(exchange, FakeClock()))))


async def _of(call: Awaitable[Any]) -> None:
    await call


@pytest.mark.parametrize("asked", CALLS)
def test_nonsensical_reply_raises_protocol_error(asked: str) -> None:
    with pytest.raises(ProtocolError, match=rf"{asked}\(.* StorageFlushed"):
        run(CALLS[asked], lambda command: wire.StorageFlushed(command.request_id))


def test_nonsensical_mark_stream_reply_raises_protocol_error() -> None:
    with pytest.raises(ProtocolError, match=r"GetStreamSegmentInfo\(.* StorageFlushed"):
        run(lambda s: MarkStream(s, SEGMENT).extent(), lambda command: wire.StorageFlushed(command.request_id))


def test_truncated_mark_stream_raises_protocol_error() -> None:
    async def read(segments: Segments) -> list[MarkEntry]:
        return [entry async for entry in MarkStream(segments, SEGMENT).entries(0, 10)]

    def nothing(command: Any) -> wire.Command:
        return wire.SegmentRead(SEGMENT, 0, True, False, b"", command.request_id)

    with pytest.raises(ProtocolError, match="10"):
        run(read, nothing)


def test_reply_for_other_keys_raises_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="ReadTable"):
        run(lambda s: table(s).get("key"), lambda command: wire.TableRead(command.request_id, SEGMENT, ()))
    with pytest.raises(ProtocolError, match="UpdateTableEntries"):
        run(CALLS["UpdateTableEntries"], lambda command: wire.TableEntriesUpdated(command.request_id, (1, 2)))


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (wire.NoSuchSegment(1, SEGMENT), SegmentNotFoundError),
        (wire.ErrorMessage(1, SEGMENT, "no room", wire.STORAGE_FULL), StorageFullError),
        # a reply to a malformed command is the controller's fault, not its caller's
        (wire.ErrorMessage(1, SEGMENT, "an illegal argument", wire.ILLEGAL_ARGUMENT), ProtocolError),
        (wire.AuthTokenCheckFailed(1), ProtocolError),
    ],
    ids=str,
)
def test_refusals(reply: wire.Command, kind: type[NadiError]) -> None:
    with pytest.raises(NadiError) as caught:
        run(lambda s: table(s).get("key"), lambda command: reply)
    assert type(caught.value) is kind
