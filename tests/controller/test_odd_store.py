"""A segment store that answers the controller with what answers nothing: each call says so, and names both."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from nadi.controller.event_time import Entry, MarkStream
from nadi.controller.state.records import Config
from nadi.controller.state.segments import ABSENT, RecordTable, Segments, Store
from nadi.errors import NadiError, ProtocolError, SegmentNotFoundError, StorageFullError
from nadi.wire import commands as wire

from .support import FakeClock

SEGMENT = "home/meters/0.#epoch.0"
Act = Callable[[Segments], Awaitable[Any]]


def table(segments: Segments) -> RecordTable[Any]:
    return Store(segments).table(SEGMENT, int)


CALLS: dict[str, Act] = {
    "CreateSegment": lambda s: s.create_segment(SEGMENT, Config()),
    "UpdateSegmentPolicy": lambda s: s.update_policy(SEGMENT, Config()),
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
    async def read(segments: Segments) -> list[Entry]:
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
