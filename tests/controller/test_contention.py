"""Records that several controllers change at the same time: no change is lost, and one that can't be made says so."""

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
    """One whose pauses are turns of the loop."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


def controller(store: FakeStore) -> RecordTable[int]:
    """The table with a cache of its own."""
    return Store(Segments(store.exchange, ShortClock())).table(NAME, int)


async def one_more(held: int | None) -> int:
    return (held or 0) + 1


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


async def test_a_record_known_before_is_not_read_again() -> None:
    store = FakeStore()
    table = controller(store)
    await table.create()
    known = await table.change("n", "the number", one_more)
    store.log.clear()
    stored = await controller(store).change("n", "the number", one_more, known=known)
    assert (stored.value, len(store.log)) == (2, 1)
    stored = await controller(store).change("n", "the number", one_more, known=known)
    assert stored.value == 3, "it was old, and made anew of the newest"


async def test_what_is_given_back_is_not_stored() -> None:
    async def same(held: int | None) -> int:
        assert held is not None
        return held

    store = FakeStore()
    table = controller(store)
    await table.create()
    held = await table.change("n", "the number", one_more)
    assert await table.change("n", "the number", same) == held
    assert await table.get("n", fresh=True) == held


async def test_a_change_that_is_always_lost_is_given_up() -> None:
    store = FakeStore()
    table, other = controller(store), controller(store)
    await table.create()
    tries: list[int | None] = []

    async def late(held: int | None) -> int:
        tries.append(held)
        await other.change("n", "the number", one_more, fresh=True)
        return -1

    with pytest.raises(ContentionError, match=f"{CHANGE_TRIES} .*the number"):
        await table.change("n", "the number", late)
    assert tries == [None, *range(1, CHANGE_TRIES)], "each of the newest"


async def test_a_refusal_ends_the_tries() -> None:
    store = FakeStore()
    table = controller(store)
    await table.create()

    async def refuse(held: int | None) -> Any:
        raise InvalidArgumentError("not this")

    with pytest.raises(InvalidArgumentError):
        await table.change("n", "the number", refuse, known=Versioned(1, 0))
    assert not [command for command in store.log if isinstance(command, wire.UpdateTableEntries)]


# --- a segment store that answers the controller with what answers nothing: each call says so, and ----


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
def test_an_odd_answer_is_named(asked: str) -> None:
    with pytest.raises(ProtocolError, match=rf"answered {asked}\(.* with StorageFlushed"):
        run(CALLS[asked], lambda command: wire.StorageFlushed(command.request_id))


def test_an_odd_answer_of_a_mark_stream_is_named() -> None:
    with pytest.raises(ProtocolError, match=r"answered GetStreamSegmentInfo\(.* with StorageFlushed"):
        run(lambda s: MarkStream(s, SEGMENT).extent(), lambda command: wire.StorageFlushed(command.request_id))


def test_a_mark_stream_that_ends_before_what_was_known_of_it_is_named() -> None:
    async def read(segments: Segments) -> list[MarkEntry]:
        return [entry async for entry in MarkStream(segments, SEGMENT).entries(0, 10)]

    def nothing(command: Any) -> wire.Command:
        return wire.SegmentRead(SEGMENT, 0, True, False, b"", command.request_id)

    with pytest.raises(ProtocolError, match="it ends before 10"):
        run(read, nothing)


def test_an_answer_for_other_keys_is_odd() -> None:
    with pytest.raises(ProtocolError, match="answered ReadTable"):
        run(lambda s: table(s).get("key"), lambda command: wire.TableRead(command.request_id, SEGMENT, ()))
    with pytest.raises(ProtocolError, match="answered UpdateTableEntries"):
        run(CALLS["UpdateTableEntries"], lambda command: wire.TableEntriesUpdated(command.request_id, (1, 2)))


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (wire.NoSuchSegment(1, SEGMENT), SegmentNotFoundError),
        (wire.ErrorMessage(1, SEGMENT, "no room", wire.STORAGE_FULL), StorageFullError),
        # what only a wrong command gets is the controller's own fault, and not that of who asked it
        (wire.ErrorMessage(1, SEGMENT, "an illegal argument", wire.ILLEGAL_ARGUMENT), ProtocolError),
        (wire.AuthTokenCheckFailed(1), ProtocolError),
    ],
    ids=str,
)
def test_refusals(reply: wire.Command, kind: type[NadiError]) -> None:
    with pytest.raises(NadiError) as caught:
        run(lambda s: table(s).get("key"), lambda command: reply)
    assert type(caught.value) is kind
