"""Standing queries under faults: concurrent catch-up, crashes, truncation, damage and recreated streams."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from nadi.client.reading import segment_range
from nadi.errors import (
    AlreadyExistsError,
    ConflictError,
    DamagedDataError,
    NotFoundError,
    StreamRecreatedError,
    UnavailableError,
)
from nadi.naming import segment_name
from nadi.process.members import Members
from nadi.search.percolate import matcher, query_index
from nadi.search.percolate import records as adding
from nadi.search.percolate.records import MatcherRecords, StandingQuery
from tests.search.standing import Standing, check, until_true, write
from tests.support.waiting import until_async

pytest.importorskip("tantivy", reason="search needs tantivy")
LIMIT_S = 60


class Killed(BaseException):
    """An error that isn't caught anywhere."""


async def test_two_workers_catch_up_a_group_once(watched: Standing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both workers own all segments: one matches a batch that the other has begun."""
    logs = watched.logs
    monkeypatch.setattr(Members, "own_segments", lambda _, segments: list(segments))
    reached, resume, calls = threading.Event(), threading.Event(), 0
    match = query_index.Matcher.match

    def slow_at_first(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            reached.set()
            assert resume.wait(LIMIT_S)
        return match(*args)

    monkeypatch.setattr(query_index.Matcher, "match", slow_at_first)
    await write(logs, 0, 100)
    await watched.create()
    await watched.queries.add("logs", {"head": "*"}, since="head")
    async with watched.running():
        await until_async(reached.is_set)
        async with watched.running():
            await watched.matched()  # by the second worker
            await write(logs, 100, 200)
            await watched.matched()
        resume.set()
        await watched.queries.add("logs", {"next": "*"}, since="head")  # caught up by the first worker afterwards
        await watched.matched()
        await write(logs, 200, 220)
        await watched.matched()
    check(await watched.found("head"), list(range(220)))
    check(await watched.found("next"), list(range(220)))


@pytest.mark.parametrize("is_truncated", [False, True])
async def test_events_during_catch_up_are_matched_too(
    watched: Standing, monkeypatch: pytest.MonkeyPatch, is_truncated: bool
) -> None:
    """Events between the group's position, after events or a gap, and where the live stream is held for it."""
    logs, near, turns = watched.logs, matcher.BackfillMatcher._is_near, 0

    async def live_goes_on(self: Any, newest: Any) -> bool:
        nonlocal turns
        turns += 1
        if turns == 1:
            await write(logs, 50, 100)
            await until_true(lambda: _are_matched(watched, 50))
        return await near(self, newest)

    monkeypatch.setattr(matcher.BackfillMatcher, "_is_near", live_goes_on)
    await write(logs, 0, 50)
    await watched.create()
    await watched.queries.add("logs", {"head": "*"}, since="head")
    if is_truncated:
        await logs.truncate()
    async with watched.running():
        await watched.matched()
        await write(logs, 100, 120)
        await watched.matched()
    assert turns >= 1
    check(await watched.found("head"), list(range(50 if is_truncated else 0, 120)))


async def _are_matched(watched: Standing, events: int) -> bool:
    return (await watched.progress()).events >= events


async def test_a_group_that_begins_ahead_of_the_live_stream_waits_for_it(
    watched: Standing, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, complete, caught_up, turns = (
        matcher.LiveMatcher._handle,
        matcher.BackfillMatcher._is_complete,
        asyncio.Event(),
        0,
    )

    async def handle_late(self: Any, *args: Any) -> None:
        await caught_up.wait()
        await handle(self, *args)

    async def is_complete(self: Any) -> bool:
        nonlocal turns
        turns += 1
        is_done = await complete(self)
        if is_done or turns > 2:
            caught_up.set()
        return is_done

    monkeypatch.setattr(matcher.LiveMatcher, "_handle", handle_late)
    monkeypatch.setattr(matcher.BackfillMatcher, "_is_complete", is_complete)
    monkeypatch.setattr(matcher, "_ROUNDS", 0)  # at any distance
    await write(watched.logs, 0, 50)
    await watched.create({"all": "*"}, start="head")
    await watched.queries.add("logs", {"late": "*"}, since="tail")
    await write(watched.logs, 50, 80)
    await watched.match()
    check(await watched.found("all"), list(range(80)))
    check(await watched.found("late"), list(range(50, 80)))


async def test_slow_sweep_keeps_a_query_of_the_same_name(watched: Standing, monkeypatch: pytest.MonkeyPatch) -> None:
    await watched.create({"one": "absent", "two": "*"})
    records, changes = await watched.records(), await watched.changes()
    (one, _) = await watched.queries.list("logs")
    await changes.change(lambda newest: newest.without([one.id]))
    forget, is_first = MatcherRecords.forget, True

    async def slow_at_first(self: MatcherRecords, what: Any) -> None:
        nonlocal is_first
        if is_first:
            is_first = False
            await adding.sweep(records, others)
            await watched.queries.add("logs", {"one": "*"})
        await forget(self, what)

    others = await watched.changes()
    await others.get()
    monkeypatch.setattr(MatcherRecords, "forget", slow_at_first)
    await adding.sweep(records, changes)
    assert [query.text for query in await watched.queries.list("logs")] == ["*", "*"]
    async with watched.running():
        await write(watched.logs, 0, 20)
        await watched.matched()
    check(await watched.found("one"), list(range(20)))


async def test_removed_name_is_reusable_while_a_batch_needs_it(
    watched: Standing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nadi.search.percolate.catalog._SWEEP_S", 0.0)
    await watched.create({"one": "group3"})
    await write(watched.logs, 0, 50)
    await watched.crash("begun")
    await watched.queries.remove("logs", ["one"])
    await watched.queries.add("logs", {"one": "*"})
    assert await watched.stored() == ["one", "one"]
    progress = await watched.progress()
    scope = watched.logs.scope
    ends = {segment_name(scope, "logs", segment): progress.segments[segment].reached for segment in progress.begun}
    async with watched.running():
        await write(watched.logs, 50, 70)
        await watched.matched()
        await until_true(lambda: _is_stored_alone(watched, "one"))
    hits = await watched.hits()
    early = [hit for hit in hits if hit["offset"] < ends.get(hit["segment"], 0)]
    assert {hit["event"]["ms"] % 10 for hit in early} == {3}
    late = [hit["event"]["ms"] for hit in hits if hit not in early]
    assert len(late) == len(set(late))
    assert set(late) >= set(range(50, 70))


async def _is_stored_alone(watched: Standing, name: str) -> bool:
    return await watched.stored() == [name]


async def test_add_killed_before_the_change_adds_nothing(watched: Standing, monkeypatch: pytest.MonkeyPatch) -> None:
    await watched.create()
    put = MatcherRecords.put
    with monkeypatch.context() as patched:

        async def put_and_die(self: MatcherRecords, queries: Sequence[StandingQuery]) -> None:
            await put(self, queries)
            raise Killed

        patched.setattr(MatcherRecords, "put", put_and_die)
        for since in (None, "head"):
            with pytest.raises(Killed):
                await watched.queries.add("logs", {f"q{since}": "*"}, since=since)
    assert await watched.stored() == ["qNone", "qhead"]
    assert await watched.queries.list("logs") == []
    assert (await watched.queries.status("logs")).queries == 0
    with pytest.raises(NotFoundError):
        await watched.queries.remove("logs", ["qNone"])
    await watched.queries.add("logs", {"qNone": "*"})
    monkeypatch.setattr(adding, "_ABANDONED_S", 0.0)
    async with watched.running():
        await write(watched.logs, 0, 20)
        await watched.matched()
        await until_true(lambda: _is_stored_alone(watched, "qNone"))
    check(await watched.found("qNone"), list(range(20)))
    assert await watched.found("qhead") == []
    assert (await watched.progress()).removed == {}


async def test_add_same_name_between_batches_fails(watched: Standing, monkeypatch: pytest.MonkeyPatch) -> None:
    await watched.create()
    monkeypatch.setattr(adding, "SEARCH_RECORDS_AT_ONCE", 2)
    put, calls = MatcherRecords.put, 0

    async def other_before_second(self: MatcherRecords, queries: Sequence[StandingQuery]) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            await watched.queries.add("logs", {"c": "*"})
        await put(self, queries)

    monkeypatch.setattr(MatcherRecords, "put", other_before_second)
    with pytest.raises(AlreadyExistsError):
        await watched.queries.add("logs", dict.fromkeys("abcd", "group3"))
    assert await watched.stored() == ["c"]
    assert (await watched.progress()).removed == {}
    await watched.queries.add("logs", dict.fromkeys("abd", "group3"))
    assert [query.name for query in await watched.queries.list("logs")] == ["a", "b", "c", "d"]


async def test_add_same_name_concurrently_fails(watched: Standing, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other query is added between the check of the name and the change."""
    await watched.create()
    check_names, calls = adding._check, 0

    async def other_after_check(*args: Any, **more: Any) -> None:
        nonlocal calls
        await check_names(*args, **more)
        calls += 1
        if calls == 2:  # when all are stored
            await watched.queries.add("logs", {"a": "*"})

    monkeypatch.setattr(adding, "_check", other_after_check)
    with pytest.raises(AlreadyExistsError):
        await watched.queries.add("logs", {"a": "group3", "b": "group3"})
    assert [(query.name, query.text) for query in await watched.queries.list("logs")] == [("a", "*")]
    assert await watched.stored() == ["a"]


@pytest.mark.parametrize("is_swept", [True, False])
async def test_add_too_slow_raises_conflict_error(
    watched: Standing, monkeypatch: pytest.MonkeyPatch, is_swept: bool
) -> None:
    """Its records are deleted by then, or about to be."""
    await watched.create()
    put, sweep = MatcherRecords.put, adding.sweep

    async def slow(self: MatcherRecords, queries: Sequence[StandingQuery]) -> None:
        await put(self, queries[:1])
        monkeypatch.setattr(adding, "_ABANDONED_S", -60.0)
        monkeypatch.setattr(adding, "sweep", sweep if is_swept else later)
        await adding.abandon_old(await watched.records(), await watched.changes())
        monkeypatch.setattr(adding, "sweep", sweep)
        await put(self, queries[1:] if is_swept else queries)

    async def later(*args: Any) -> None: ...

    monkeypatch.setattr(MatcherRecords, "put", slow)
    with pytest.raises(ConflictError):
        await watched.queries.add("logs", {"a": "group3", "b": "group3"})
    assert await watched.queries.list("logs") == []
    monkeypatch.undo()
    await watched.queries.add("logs", {"a": "*"})
    assert [(query.name, query.text) for query in await watched.queries.list("logs")] == [("a", "*")]
    assert await watched.stored() == ["a"]


async def test_a_batch_that_was_begun_is_truncated(watched: Standing) -> None:
    logs = watched.logs
    await watched.create({"all": "*"})
    await write(logs, 0, 50)
    await watched.crash("begun")
    info, cuts = await logs.manager.stream_info(logs.scope, "logs"), logs.manager.cuts(logs.scope, "logs")
    status = await watched.queries.status("logs")
    assert status.lag_bytes == await cuts.bytes_between(info.head, info.tail)
    await logs.manager.truncate_stream(info.tail)
    await write(logs, 50, 70)
    await watched.match()
    check(await watched.found("all"), list(range(50, 70)))
    assert (await watched.queries.status("logs")).gaps >= 1


async def test_a_batch_that_was_begun_is_damaged(watched: Standing, monkeypatch: pytest.MonkeyPatch) -> None:
    await watched.create({"all": "*"})
    await write(watched.logs, 0, 50)
    await watched.crash("begun")
    read = segment_range.read_segment_range

    async def damaged(stores: Any, segment: str, start: int, end: int) -> Any:
        async for block in read(stores, segment, start, end):
            if start == 0:
                raise DamagedDataError(segment, 0, int(block.offset) + int(block.starts[1]), "flipped")
            yield block

    monkeypatch.setattr(matcher, "read_segment_range", damaged)
    begun = len((await watched.progress()).begun)
    await watched.match()
    found = await watched.found("all")
    assert len(found) == len(set(found)) == 50 - begun
    assert (await watched.queries.status("logs")).gaps == begun


async def test_forgotten_start_affects_only_its_group(watched: Standing) -> None:
    logs, manager, scope = watched.logs, watched.logs.manager, watched.logs.scope
    await watched.create(start="head")
    await write(logs, 0, 50)
    await watched.queries.add("logs", {"early": "*"}, since="head")
    for count in (3, 2, 3, 2):
        current = await manager.current_segments(scope, "logs")
        ranges = [(number / count, (number + 1) / count) for number in range(count)]
        await manager.scale_stream(scope, "logs", [one.segment_id for one in current], ranges)
        await write(logs, 50, 100)
    await logs.truncate()
    await write(logs, 100, 120)
    await watched.queries.add("logs", {"late": "*"}, since="head")
    async with watched.running():
        await watched.matched()
        await write(logs, 120, 140)
        await watched.matched()
    for name in ("early", "late"):
        check(await watched.found(name), list(range(100, 140)))
    assert (await watched.queries.status("logs")).gaps >= 1


async def test_failing_group_does_not_delay_others(
    watched: Standing, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await write(watched.logs, 0, 20)
    await watched.create()
    await watched.queries.add("logs", {"bad": "*"}, since="head")
    (bad,) = (await watched.progress()).led
    of, failed = MatcherRecords.past, 0

    def failing(self: MatcherRecords, group: str) -> Any:
        nonlocal failed
        if group == bad:
            failed += 1
            raise UnavailableError("not now")
        return of(self, group)

    with monkeypatch.context() as patched:
        patched.setattr(MatcherRecords, "past", failing)
        async with watched.running():
            await watched.queries.add("logs", {"good": "*"}, since="head")
            await watched.until_hits(20)
            await until_async(lambda: failed > 2)
    check(await watched.found("good"), list(range(20)))
    assert caplog.text.count("retrying: not now") == 1
    await watched.match()
    check(await watched.found("bad"), list(range(20)))


async def test_truncation_while_a_group_is_held_continues(watched: Standing, monkeypatch: pytest.MonkeyPatch) -> None:
    logs, manager, scope = watched.logs, watched.logs.manager, watched.logs.scope
    await write(logs, 0, 20)
    await watched.create({"live": "*"})
    await watched.queries.add("logs", {"late": "*"}, since="head")
    group, changes = (await watched.progress()).led[0], await watched.changes()
    await write(logs, 20, 40)
    await changes.change(lambda newest: newest.joined_from_past(group))  # then killed
    current = await manager.current_segments(scope, "logs")
    for count in (3, 2, 3):
        ranges = [(number / count, (number + 1) / count) for number in range(count)]
        await manager.scale_stream(scope, "logs", [one.segment_id for one in current], ranges)
        current = await manager.current_segments(scope, "logs")
    await logs.truncate()
    async with watched.running():
        await write(logs, 40, 60)
        await watched.matched()
    for name in ("live", "late"):
        check(await watched.found(name), list(range(40, 60)))


async def test_overtaken_matcher_ends_without_error(watched: Standing, monkeypatch: pytest.MonkeyPatch) -> None:
    await watched.create({"all": "*"})
    finish = matcher.LiveMatcher._finish
    others = await watched.changes()
    overtaken = 0

    async def finish_late(self: Any) -> None:
        nonlocal overtaken
        if done := list(self._done):
            await others.change(lambda newest: newest.stepped(done, []))
            overtaken += 1
        await finish(self)

    def resume(step: str) -> None:
        if step == "written":
            stop.set()

    monkeypatch.setattr(matcher.LiveMatcher, "_finish", finish_late)
    stop, task = watched.start(on_step=resume)
    await write(watched.logs, 0, 20)
    await asyncio.wait_for(task, LIMIT_S)
    assert overtaken == 1
    await watched.match()
    check(await watched.found("all"), list(range(20)))


async def test_recreated_stream_stops_queries(watched: Standing) -> None:
    logs, manager, scope = watched.logs, watched.logs.manager, watched.logs.scope
    await watched.create({"all": "*"})
    await write(logs, 0, 20)
    _, task = watched.start()
    await watched.matched()
    await manager.seal_stream(scope, "logs")
    await asyncio.wait_for(task, LIMIT_S)
    await watched.queries.status("logs")
    await manager.delete_stream(scope, "logs")
    await manager.create_stream(scope, "logs", 2)
    await write(logs, 20, 40)
    for refused in (watched.start()[1], watched.queries.status("logs"), watched.queries.add("logs", {"more": "*"})):
        with pytest.raises(StreamRecreatedError):
            await asyncio.wait_for(refused, LIMIT_S)
    await watched.queries.delete("logs")
    await watched.queries.create("logs", "hits", fields="ms:long", start="head")
    await watched.queries.add("logs", {"all": "*"})
    await watched.match()
    check(await watched.found("all"), list(range(40)))


async def test_stream_recreated_under_a_matcher_stops_it(watched: Standing, monkeypatch: pytest.MonkeyPatch) -> None:
    logs, _manager, _scope = watched.logs, watched.logs.manager, watched.logs.scope
    await watched.create()
    await write(logs, 0, 20)
    report, is_lost = matcher.LiveMatcher._report, False

    async def report_and_recreate(self: Any) -> None:
        nonlocal is_lost
        await report(self)
        if is_lost:
            return
        is_lost = True
        await logs.remake()

    monkeypatch.setattr(matcher.LiveMatcher, "_report", report_and_recreate)
    with pytest.raises(StreamRecreatedError):
        await asyncio.wait_for(watched.start()[1], LIMIT_S)


async def test_the_stream_for_hits_is_deleted(watched: Standing) -> None:
    logs, manager, scope = watched.logs, watched.logs.manager, watched.logs.scope
    await watched.create({"all": "*"})
    _, task = watched.start()
    await write(logs, 0, 20)
    await watched.matched()
    await manager.seal_stream(scope, "hits")
    await manager.delete_stream(scope, "hits")
    await write(logs, 20, 40)
    for work in (task, watched.start()[1]):
        with pytest.raises(NotFoundError, match=f"{scope}/hits"):
            await asyncio.wait_for(work, LIMIT_S)
    await manager.create_stream(scope, "hits", 1)
    await watched.match()
    check(await watched.found("all"), list(range(20, 40)))
