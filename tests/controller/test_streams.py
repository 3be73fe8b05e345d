"""Scopes and streams through the controller, over an in-memory store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nadi.controller.controller import Controller
from nadi.controller.engine.workflows import seal_and_measure
from nadi.controller.state.history import PreconditionError
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import StreamConfigRecord, StreamState
from nadi.controller.workflows import seal
from nadi.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    InvalidNameError,
    InvalidStreamCutError,
    NotEmptyError,
    NotOwnerError,
    ScopeNotFoundError,
    StreamNotFoundError,
    StreamNotSealedError,
    StreamSealedError,
)
from nadi.model.load import ScaleType
from nadi.model.segments import tiles
from nadi.naming import segment_id, segment_number
from nadi.wire import commands as wire
from nadi.wire.commands import Command

from .fake_store import FakeStore
from .support import STREAM, FakeClock, running, scaled, settle, with_stream


async def test_a_stream_is_ready_when_create_returns() -> None:
    async with with_stream(3) as (controller, store, _):
        segments = await controller.current_segments(STREAM)
        assert tiles(segments)
        assert [s.id for s in segments] == [0, 1, 2]
        assert all(STREAM.segment(s.id) in store.segments for s in segments)
        assert [s.id for s in await controller.current_segments(STREAM.mark)] == [0]
        names, token = await controller.list_streams("home", "")
        assert sorted(names) == ["_MARKmeters", "meters"]
        assert (await controller.list_streams("home", token))[0] == []
        with pytest.raises(AlreadyExistsError):
            await controller.create_stream(STREAM, StreamConfigRecord())
        with pytest.raises(ScopeNotFoundError):
            await controller.create_stream(StreamName("nowhere", "x"), StreamConfigRecord())
        with pytest.raises(InvalidNameError):
            await controller.create_stream(StreamName("home", "a_b"), StreamConfigRecord())
        with pytest.raises(InvalidArgumentError):
            await controller.create_stream(StreamName("home", "x"), StreamConfigRecord(min_segments=0))
        with pytest.raises(NotEmptyError):
            await controller.delete_scope("home")


async def test_a_scope_can_be_deleted_as_soon_as_its_last_stream_is() -> None:
    class HoldingStore(FakeStore):
        """A store that delays the removal of finished work's records until released."""

        release: asyncio.Event | None = None

        async def exchange(self, command: wire.Command) -> wire.Command:
            if (
                isinstance(command, wire.RemoveTableKeys)
                and command.segment.endswith("/work")
                and self.release is not None
            ):
                await self.release.wait()
            return await super().exchange(command)

    store = HoldingStore()
    async with running(store, FakeClock()) as controller:
        await controller.create_scope("home")
        await controller.create_stream(STREAM, StreamConfigRecord())
        await controller.seal_stream(STREAM)
        await settle()
        store.release = asyncio.Event()
        await controller.delete_stream(STREAM)
        deletion = asyncio.create_task(controller.delete_scope("home"))
        await settle()
        store.release.set()
        await deletion
        assert not await controller.scope_exists("home")


async def test_create_needs_few_commands() -> None:
    async with with_stream() as (controller, store, _):
        store.log.clear()
        await controller.create_stream(StreamName("home", "other"), StreamConfigRecord(min_segments=1))
        kinds = [type(command).__name__ for command in store.log]
        assert kinds.count("CreateSegment") == 2
        assert len(kinds) <= 9, kinds


async def test_many_creations_at_once() -> None:
    async with with_stream() as (controller, _, _clock):
        names = [StreamName("home", f"s{i}") for i in range(40)]
        results = await asyncio.gather(
            *(
                controller.create_stream(n, StreamConfigRecord(tags=("even",) if i % 2 == 0 else ()))
                for i, n in enumerate(names)
            ),
            *(controller.create_stream(n, StreamConfigRecord()) for n in names),
            return_exceptions=True,
        )
        assert sum(r is None for r in results) == 40
        assert sum(isinstance(r, AlreadyExistsError) for r in results) == 40
        found: list[str] = []
        token = ""
        while True:
            page, token = await controller.list_streams("home", token, tag="even")
            if not page:
                break
            found += page
        assert sorted(found) == sorted(f"s{i}" for i in range(0, 40, 2))


async def test_split_and_merge() -> None:
    async with with_stream(2) as (controller, store, _):
        assert await controller.successors(STREAM, 0) == []
        await scaled(controller, [1], [(0.5, 0.75), (0.75, 1.0)])
        segments = await controller.current_segments(STREAM)
        assert tiles(segments)
        two, three = segment_id(2, 1), segment_id(3, 1)
        assert [s.id for s in segments] == [0, two, three]
        assert store.segments[STREAM.segment(1)].sealed
        found = await controller.successors(STREAM, 1)
        assert [(s.id, before) for s, before in found] == [(two, [1]), (three, [1])]
        await scaled(controller, [0, two], [(0.0, 0.75)])
        merged = segment_id(4, 2)
        assert [(s.id, b) for s, b in await controller.successors(STREAM, 0)] == [(merged, [0, two])]
        assert [s.id for s in await controller.current_segments(STREAM)] == [merged, three]
        assert await controller.head(STREAM) == {0: 0, 1: 0}
        assert [s.id for s in await controller.epoch_segments(STREAM, 1)] == [0, two, three]
        with pytest.raises(PreconditionError):
            await controller.scale(STREAM, [0], [(0.0, 0.5)])
        with pytest.raises(InvalidArgumentError):
            await controller.scale(STREAM, [three], [(0.75, 0.9)])
        with pytest.raises(PreconditionError):  # below two segments
            await controller.scale(STREAM, [merged, three], [(0.0, 1.0)])


async def test_successors_are_published_before_a_segment_is_sealed() -> None:
    async with with_stream(1) as (controller, store, _):
        await scaled(controller, [0], [(0.0, 0.5), (0.5, 1.0)])
        kinds = [(type(c).__name__, getattr(c, "segment", "")) for c in store.log]
        seal = kinds.index(("SealSegment", STREAM.segment(0)))
        publish = kinds.index(("UpdateTableEntries", f"_system/_tables/stream/{STREAM.key}"))
        created = max(kinds.index(("CreateSegment", STREAM.segment(segment_id(i, 1)))) for i in (1, 2))
        assert created < publish < seal


async def test_update_replaces_the_whole_configuration_and_scales_a_fixed_stream() -> None:
    async with with_stream(2, tags=("a",)) as (controller, store, _):
        await controller.update_stream(STREAM, StreamConfigRecord(min_segments=5))
        assert (await controller.stream(STREAM)).config == StreamConfigRecord(min_segments=5)
        segments = await controller.current_segments(STREAM)
        assert len(segments) == 5
        assert tiles(segments)
        by_rate = StreamConfigRecord(ScaleType.EVENTS_PER_SECOND, 10, 2, 3)
        await controller.update_stream(STREAM, by_rate)
        assert len(await controller.current_segments(STREAM)) == 5
        assert all(store.segments[STREAM.segment(s.id)].target_rate == 10 for s in segments)
        with pytest.raises(StreamNotFoundError):
            await controller.update_stream(StreamName("home", "none"), StreamConfigRecord())


async def test_truncate_moves_the_head_and_deletes_earlier_segments() -> None:
    async with with_stream(2) as (controller, store, _):
        store.append(STREAM.segment(0), b"x" * 100)
        store.append(STREAM.segment(1), b"y" * 50)
        await controller.truncate_stream(STREAM, {0: 10, 1: 0})
        assert store.segments[STREAM.segment(0)].start == 10
        await controller.truncate_stream(STREAM, {0: 10, 1: 0})  # repeating it is fine
        with pytest.raises(InvalidStreamCutError):
            await controller.truncate_stream(STREAM, {0: 5, 1: 0})
        with pytest.raises(InvalidStreamCutError):
            await controller.truncate_stream(STREAM, {0: 50})
        with pytest.raises(InvalidStreamCutError):
            await controller.truncate_stream(STREAM, {0: 10, 1: 51})  # past the end
        await scaled(controller, [0], [(0.0, 0.25), (0.25, 0.5)])
        left, right = segment_id(2, 1), segment_id(3, 1)
        await controller.truncate_stream(STREAM, {left: 0, right: 0, 1: 20})
        assert STREAM.segment(0) not in store.segments
        assert await controller.head(STREAM) == {left: 0, right: 0, 1: 20}
        assert [s.id for s in await controller.epoch_segments(STREAM, 0)] == [0, 1]


async def test_seal_delete_and_create_again() -> None:
    async with with_stream(2) as (controller, store, _):
        await scaled(controller, [0, 1], [(0.0, 0.5), (0.5, 1.0)])
        with pytest.raises(StreamNotSealedError):
            await controller.delete_stream(STREAM)
        await controller.seal_stream(STREAM)
        await controller.seal_stream(STREAM)
        assert await controller.current_segments(STREAM) == ()
        assert await controller.head(STREAM) == {0: 0, 1: 0}
        assert all(s.sealed for n, s in store.segments.items() if "_MARK" not in n)
        for call in (
            controller.update_stream(STREAM, StreamConfigRecord()),
            controller.truncate_stream(STREAM, {0: 0, 1: 0}),
        ):
            with pytest.raises(StreamSealedError):
                await call
        await controller.delete_stream(STREAM)
        assert not store.segments
        assert not any("stream/" in table for table in store.tables)
        with pytest.raises(StreamNotFoundError):
            await controller.delete_stream(STREAM)
        assert not await controller.stream_exists(STREAM.mark)
        await controller.create_stream(STREAM, StreamConfigRecord(min_segments=2))
        numbers = [segment_number(s.id) for s in await controller.current_segments(STREAM)]
        assert numbers == [4, 5]


async def test_a_stream_is_not_created_in_a_scope_deleted_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise its creation could never end."""

    async with running(FakeStore()) as controller:
        await controller.create_scope("home")
        first_numbers = controller.metadata.first_numbers

        async def slowly(names: Any) -> list[int]:
            monkeypatch.setattr(controller.metadata, "first_numbers", first_numbers)
            await controller.delete_scope("home")
            return await first_numbers(names)

        monkeypatch.setattr(controller.metadata, "first_numbers", slowly)
        with pytest.raises(ScopeNotFoundError):
            await controller.create_stream(StreamName("home", "late"), StreamConfigRecord())
        assert controller.unfinished["workflows"] == 0


async def test_a_stream_is_not_deleted_while_its_mark_stream_is_being_sealed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(FakeStore(), FakeClock()) as controller:
        await controller.create_scope("home")
        owner = StreamName("home", "gone")
        await controller.create_stream(owner, StreamConfigRecord())
        await controller.seal_stream(owner)
        is_sealing, may_seal = asyncio.Event(), asyncio.Event()

        async def slowly(*arguments: Any) -> None:
            is_sealing.set()
            await may_seal.wait()
            await seal_and_measure(*arguments)

        monkeypatch.setattr(seal, "seal_and_measure", slowly)
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            tasks.create_task(controller.seal_stream(owner.mark))
            await is_sealing.wait()
            tasks.create_task(controller.delete_stream(owner))
            for _ in range(100):
                await asyncio.sleep(0)
            may_seal.set()
        with pytest.raises(StreamNotFoundError):
            await controller.seal_stream(owner.mark)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def listed(controller: Controller, tag: str) -> list[str]:
    names: list[str] = []
    token = ""
    while True:
        page, token = await controller.list_streams("home", token, tag=tag)
        if not page:
            return names
        names += page


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "c"]),
            st.one_of(st.none(), st.frozensets(st.sampled_from(["", "x", "x/", "x/y", "xa", "\0", "ä"]))),
        ),
        max_size=12,
    )
)
async def test_tag_index_matches_the_streams(steps: list[tuple[str, frozenset[str] | None]]) -> None:
    """None deletes the stream; tags create it, or replace its tags."""
    async with running(FakeStore(), FakeClock()) as controller:
        await controller.create_scope("home")
        streams: dict[str, frozenset[str]] = {}
        for name, tags in steps:
            stream = StreamName("home", name)
            if tags is None:
                if streams.pop(name, None) is not None:
                    await controller.seal_stream(stream)
                    await controller.delete_stream(stream)
            elif name in streams:
                await controller.update_stream(stream, StreamConfigRecord(tags=tuple(tags)))
                streams[name] = tags
            else:
                await controller.create_stream(stream, StreamConfigRecord(tags=tuple(tags)))
                streams[name] = tags
        for tag in ("", "x", "x/", "x/y", "xa", "\0", "ä", "none"):
            assert sorted(await listed(controller, tag)) == sorted(n for n, tags in streams.items() if tag in tags)


async def test_listing_by_tag_costs_only_its_results() -> None:
    async with with_stream(1) as (controller, store, _):
        for number in range(60):
            tags = ("rare",) if number == 30 else ("common",)
            await controller.create_stream(StreamName("home", f"s{number}"), StreamConfigRecord(tags=tags))
        store.log.clear()
        assert await listed(controller, "rare") == ["s30"]
        assert len(store.log) == 2


async def test_scope_name_is_taken_during_deletion() -> None:
    async with with_stream(1) as (controller, store, clock):
        started = asyncio.Event()

        async def note(command: object) -> None:
            started.set()

        store.before = note
        deleting = asyncio.create_task(controller.delete_scope("home", recursive=True))
        await started.wait()
        with pytest.raises(AlreadyExistsError):
            await controller.create_scope("home")
        with pytest.raises(ScopeNotFoundError):
            await controller.create_stream(StreamName("home", "late"), StreamConfigRecord())
        while not deleting.done():
            await clock.advance(100)
        await deleting
        await controller.create_scope("home")


# --- workflows while a container is between two servers of a cluster ---------------------------------


_AWAY_MS, _STEP_MS = 22_000, 250
_SOON_MS = 2_000


async def test_workflows_continue_soon_after_the_container_arrives() -> None:
    """They continue soon after the container arrives, not only after the longest pause of ten seconds."""
    async with with_stream() as (controller, store, clock):
        is_away = True

        async def before(command: Command) -> None:
            if is_away and isinstance(command, wire.SealSegment):
                raise NotOwnerError(command.segment)

        store.before = before
        sealing = asyncio.create_task(controller.seal_stream(STREAM))
        for _ in range(_AWAY_MS // _STEP_MS):
            await clock.advance(_STEP_MS)
        assert not sealing.done()
        is_away = False
        for _ in range(_SOON_MS // _STEP_MS):
            await clock.advance(_STEP_MS)
        await settle()
        assert sealing.done(), "it is still waiting although the container has arrived"
        await sealing
        assert (await controller.stream(STREAM)).state is StreamState.SEALED
