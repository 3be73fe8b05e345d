"""A segment store that answers with what answers nothing: each call says so with an error that names both."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from nadi.client.control.policy import KeyValueTableConfiguration
from nadi.client.manager.streams import stores_of
from nadi.client.segments.conditional_append import SegmentAppender
from nadi.client.state_sync.revisioned_stream import open_revisioned_stream
from nadi.client.tables.key_value_table import KeyValueTable
from nadi.client.tables.table import Table
from nadi.errors import ProtocolError
from nadi.limits import MAX_EVENT_BYTES
from nadi.model.segments import SegmentRange
from nadi.wire import commands as wire

from .fake_server import FakeConnection
from .world import World, world

SEGMENT = "sc/st/0.#epoch.0"
Act = Callable[[World], Awaitable[Any]]


def table(w: World) -> Table:
    return Table(stores_of(w.manager), "sc", "table")


async def write(w: World, data: bytes = b"event") -> None:
    writer = await w.manager.create_writer("sc", "st")
    await writer.write_event(data)


async def append(w: World) -> None:
    await SegmentAppender(stores_of(w.manager), SEGMENT).append(b"record", 0)


async def read(w: World) -> None:
    async for _ in w.manager.read_events("sc", "st"):
        pass


async def keys(w: World) -> None:
    only = [SegmentRange(0, 0.0, 1.0)]
    async for _ in KeyValueTable(stores_of(w.manager), "sc", "t", KeyValueTableConfiguration(1), only).key_pages():
        pass


async def mark(w: World) -> None:
    await (await open_revisioned_stream(stores_of(w.manager), "sc", "st")).set_mark(0, None)


CASES: list[tuple[type[wire.Command], Act]] = [
    (wire.GetStreamSegmentInfo, lambda w: w.manager.segment_info(SEGMENT)),
    (wire.GetStreamSegmentInfo, lambda w: w.manager.create_byte_writer("sc", "st")),
    (wire.Scrub, lambda w: w.manager.scrub()),
    (wire.UpdateSegmentAttribute, mark),
    (wire.CreateTableSegment, lambda w: table(w).create()),
    (wire.DeleteTableSegment, lambda w: table(w).delete()),
    (wire.ReadTable, lambda w: table(w).get(b"key")),
    (wire.UpdateTableEntries, lambda w: table(w).put(b"key", b"value")),
    (wire.RemoveTableKeys, lambda w: table(w).remove(b"key")),
    (wire.ReadTableKeys, keys),
    (wire.ReadSegment, read),
    (wire.SetupAppend, write),
    (wire.SetupAppend, append),
    (wire.CreateTransientSegment, lambda w: write(w, bytes(MAX_EVENT_BYTES + 1))),
    (wire.ConditionalBlockEnd, lambda w: write(w, bytes(MAX_EVENT_BYTES + 1))),
    (wire.MergeSegments, lambda w: write(w, bytes(MAX_EVENT_BYTES + 1))),
]


def odd_kind(asked: Any) -> wire.Command:
    return wire.SegmentPolicyUpdated(asked.request_id, "odd")


def with_odd_answers(
    monkeypatch: pytest.MonkeyPatch,
    kind: type[wire.Command],
    act: Act,
    answer: Callable[[Any], wire.Command] = odd_kind,
) -> None:
    handle = FakeConnection.handle

    def odd(self: FakeConnection, command: wire.Command) -> None:
        if isinstance(command, kind):
            self.send(answer(command))
        else:
            handle(self, command)

    async def run() -> None:
        async with world() as w, asyncio.timeout(60):
            w.store.append(SEGMENT, bytes(8))
            await act(w)

    monkeypatch.setattr(FakeConnection, "handle", odd)
    asyncio.run(run())


@pytest.mark.parametrize(("kind", "act"), CASES)
def test_an_odd_answer_is_named(monkeypatch: pytest.MonkeyPatch, kind: type[wire.Command], act: Act) -> None:
    with pytest.raises(ProtocolError, match=f"answered {kind.__name__} with SegmentPolicyUpdated"):
        with_odd_answers(monkeypatch, kind, act)


@pytest.mark.parametrize(("kind", "act"), [(wire.AppendBlockEnd, write), (wire.ConditionalAppend, append)])
def test_an_odd_answer_to_an_append_is_named(
    monkeypatch: pytest.MonkeyPatch, kind: type[wire.Command], act: Act
) -> None:
    with pytest.raises(ProtocolError, match=f"an append to {SEGMENT} was answered with SegmentPolicyUpdated"):
        with_odd_answers(monkeypatch, kind, act)


@pytest.mark.parametrize(
    ("kind", "act", "answer"),
    [
        (wire.ReadTable, lambda w: table(w).get(b"key"), lambda asked: wire.TableRead(asked.request_id, "", ())),
        (
            wire.UpdateTableEntries,
            lambda w: table(w).put(b"key", b"value"),
            lambda asked: wire.TableEntriesUpdated(asked.request_id, ()),
        ),
    ],
)
def test_an_answer_for_other_keys_is_named(
    monkeypatch: pytest.MonkeyPatch, kind: type[wire.Command], act: Act, answer: Callable[[Any], wire.Command]
) -> None:
    with pytest.raises(ProtocolError, match=f"{kind.__name__} for sc/table.* was answered with Table"):
        with_odd_answers(monkeypatch, kind, act, answer)
