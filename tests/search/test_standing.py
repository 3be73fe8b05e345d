"""Standing queries on a real server: each hit once, in order per key, from any cut, despite crashes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from nadi.client.tables.catalog import entries_of
from nadi.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError
from nadi.naming import segment_name
from nadi.search.percolate.records import NoStandingQueriesError
from tests.search.standing import Standing, check, write
from tests.search.support import Indexed, event

pytest.importorskip("tantivy", reason="search needs tantivy")


async def test_matcher_writes_hits_of_new_events(watched: Standing) -> None:
    logs = watched.logs
    await write(logs, 0, 10)  # before
    await watched.create({"threes": "group3", "high": "ms:>=25 -group3", "none": "absent"})
    async with watched.running():
        await write(logs, 10, 40)
        await logs.write([b"{", event(40, message="group3 too", ms=43)])
        await watched.matched()
    check(await watched.found("threes"), [13, 23, 33, 43])
    check(await watched.found("high"), [number for number in range(25, 40) if number % 10 != 3])
    (one,) = [hit for hit in await watched.hits() if hit["event"]["ms"] == 43]
    assert one["query"] == "threes"
    assert one["segment"].startswith(f"{logs.scope}/logs/")
    status = await watched.queries.status("logs")
    assert (status.queries, status.events, status.hits, status.invalid) == (3, 32, len(await watched.hits()), 1)
    assert status.field_counts == {"message": 31, "level": 31, "ms": 31}


@pytest.mark.parametrize("step", ["begun", "written", "done"])
async def test_matcher_killed_between_steps_matches_once(watched: Standing, step: str) -> None:
    logs = watched.logs
    await watched.create({"threes": "group3", "all": "*"})
    ends: dict[str, dict[str, int]] = {}  # by query, the begun position of each segment when it joined
    for first in range(0, 150, 50):
        await write(logs, first, first + 50)
        await watched.crash(step)
        await watched.queries.add("logs", {f"late{first}": "group4"})  # in a later version than the begun batches
        segments = (await watched.progress()).segments.values()
        ends[f"late{first}"] = {
            segment_name(logs.scope, "logs", segment.segment_id): segment.reached for segment in segments
        }
    async with watched.running():
        await write(logs, 150, 200)
        await watched.matched()
    check(await watched.found("all"), list(range(200)))
    check(await watched.found("threes"), list(range(3, 200, 10)))
    fours = [hit for hit in await watched.hits() if hit["query"] == "all" and hit["event"]["ms"] % 10 == 4]
    for name, begun in ends.items():
        check(
            await watched.found(name), [hit["event"]["ms"] for hit in fours if hit["offset"] >= begun[hit["segment"]]]
        )


async def test_splits_and_merges(watched: Standing) -> None:
    logs, manager, scope = watched.logs, watched.logs.manager, watched.logs.scope
    await watched.create({"all": "*"})
    async with watched.running(2):
        await write(logs, 0, 100)
        await manager.scale_stream(scope, "logs", [0], [(0.0, 0.25), (0.25, 0.5)])
        await write(logs, 100, 200)
        for ranges in ([(0.0, 0.6), (0.6, 1.0)], [(0.0, 0.1), (0.1, 0.5), (0.5, 1.0)]):
            await logs.scale(ranges)
            await write(logs, 200 if len(ranges) == 2 else 300, 300 if len(ranges) == 2 else 400)
        await watched.matched()
    check(await watched.found("all"), list(range(400)))


async def test_a_query_from_the_past_passes_into_the_live_stream(watched: Standing) -> None:
    logs, manager, scope = watched.logs, watched.logs.manager, watched.logs.scope
    cuts = manager.cuts(scope, "logs")
    await write(logs, 0, 100)
    middle = await cuts.tail()
    await write(logs, 100, 200)
    await watched.create({"live": "*"})
    async with watched.running(2):
        writing = asyncio.create_task(_write_slowly(logs, 200, 600))
        await watched.queries.add("logs", {"head": "*", "head3": "group3"}, since="head")
        await watched.queries.add("logs", {"middle": "*"}, since=middle)
        await manager.scale_stream(scope, "logs", [0], [(0.0, 0.25), (0.25, 0.5)])
        await watched.queries.add("logs", {"again": "group3"}, since="head")
        await writing
        await watched.queries.add("logs", {"last": "*"}, since="tail")
        await watched.matched()
        await write(logs, 600, 650)
        await watched.matched()
    check(await watched.found("live"), list(range(200, 650)))
    check(await watched.found("head"), list(range(650)))
    check(await watched.found("middle"), list(range(100, 650)))
    for name in ("head3", "again"):
        check(await watched.found(name), list(range(3, 650, 10)))
    check(await watched.found("last"), list(range(600, 650)))
    assert (await watched.progress()).held == []


async def _write_slowly(logs: Indexed, first: int, last: int) -> None:
    for number in range(first, last, 20):
        await write(logs, number, number + 20)
        await asyncio.sleep(0)


async def test_matcher_killed_during_catch_up_repeats_no_hits(watched: Standing) -> None:
    logs = watched.logs
    await write(logs, 0, 300)
    await watched.create()
    await watched.queries.add("logs", {"head": "*"}, since="head")
    for _ in range(3):
        stop, task = watched.start()
        await watched.until_hits(10)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not stop.is_set() or task.done()
    async with watched.running():
        await write(logs, 300, 320)
        await watched.matched()
    check(await watched.found("head"), list(range(320)))


async def test_queries_are_removed(watched: Standing) -> None:
    logs = watched.logs
    await watched.create({"one": "*", "two": "*"})
    async with watched.running():
        await write(logs, 0, 20)
        await watched.matched()
        await watched.queries.remove("logs", ["one"])
        assert [query.name for query in await watched.queries.list("logs")] == ["two"]
        await write(logs, 20, 40)
        await watched.matched()
        await watched.queries.add("logs", {"one": "group3"})  # another query of that name
        await write(logs, 40, 60)
        await watched.matched()
    check(await watched.found("two"), list(range(60)))
    check(await watched.found("one"), [*range(20), 43, 53])
    assert (await watched.progress()).removed == {}
    await watched.queries.remove("logs", ["one", "two"])
    assert (await watched.progress()).groups == {}
    with pytest.raises(NotFoundError, match="'one'"):
        await watched.queries.remove("logs", "one")


async def test_a_sealed_stream_is_matched_to_its_end(watched: Standing) -> None:
    logs = watched.logs
    await watched.create({"threes": "group3"})
    await write(logs, 0, 30)
    await logs.manager.seal_stream(logs.scope, "logs")
    await asyncio.wait_for(watched.start()[1], 60)
    check(await watched.found("threes"), [3, 13, 23])
    await watched.queries.add("logs", {"fours": "group4"}, since="head")
    await asyncio.wait_for(asyncio.gather(watched.start()[1], watched.start()[1]), 60)
    check(await watched.found("fours"), [4, 14, 24])


async def test_stop_ends_workers_and_delete_removes_all(watched: Standing) -> None:
    await watched.create({"threes": "group3"})
    _, task = watched.start()
    await write(watched.logs, 0, 10)
    await watched.matched()
    await watched.queries.stop("logs")
    await asyncio.wait_for(task, 60)
    _, task = watched.start()
    await write(watched.logs, 10, 20)
    await watched.matched()
    await watched.queries.delete("logs")
    await asyncio.wait_for(task, 60)
    check(await watched.found("threes"), [3, 13])
    with pytest.raises(NoStandingQueriesError):
        await watched.queries.status("logs")
    definitions = watched.queries._definitions
    left = entries_of(definitions.stores, definitions.scope, definitions.table, b"standing")
    assert [entry async for entry in left] == []


async def test_large_events_and_many_hits(watched: Standing) -> None:
    await watched.create({f"q{number}": "group3" for number in range(1_200)})
    large = event(3, message="group3 " + "x" * 1_000_000)
    async with watched.running():
        await watched.logs.write([large, event(13)])
        await watched.matched()
    hits = await watched.hits()
    assert len(hits) == 2_400
    assert {hit["event"] is None for hit in hits if hit["offset"] == 0 and hit["query"] == "q1"} <= {True, False}
    assert sum(hit["event"] is None for hit in hits) == 1_200


async def test_create_invalid_standing_query_fails(watched: Standing) -> None:
    queries = watched.queries
    with pytest.raises(NoStandingQueriesError):
        await queries.add("logs", {"a": "b"})
    options: dict[str, Any]
    for options in ({}, {"format": "json"}, {"fields": "a:b"}, {"fields": "a:text", "format": "xml"}):
        with pytest.raises(InvalidArgumentError):
            await queries.create("logs", "unfit", **options)
    with pytest.raises(InvalidArgumentError):
        await queries.create("logs", "logs", fields="a:text")
    with pytest.raises(NotFoundError):
        await queries.create("logs", "nothing", fields="a:text")
    await watched.create()
    with pytest.raises(AlreadyExistsError):
        await queries.create("logs", "hits", fields="a:text")
    await queries.add("logs", {"a": "group3"})
    with pytest.raises(AlreadyExistsError):
        await queries.add("logs", {"b": "x", "a": "y"})
    for name, text in (("x", "("), ("x", "nothing:5"), ("x", "_since:head a"), ("x y", "a"), ("", "a")):
        with pytest.raises(InvalidArgumentError):
            await queries.add("logs", {name: text})
    assert [query.name for query in await queries.list("logs")] == ["a"]
    assert await queries.add("logs", {}) == []
