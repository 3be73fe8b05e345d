"""Queries on a real server: what is found, in which order, page by page, as of which cut, and how many there are."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

import nadi
from nadi.errors import InvalidArgumentError, RequestTimeoutError
from nadi.search import indexes
from nadi.search.asking.excerpts import Excerpt, Words
from nadi.search.fields import fields_of
from nadi.search.query.bound import bind
from nadi.search.query.parser import parse
from nadi.testing import RestartableServer
from tests.search.support import Indexed, all_hits, event, numbers

pytest.importorskip("tantivy", reason="search needs tantivy")

EVENTS = [
    event(0, message="Connection reset by peer", level="error", ok=False, load=0.5, path="/net/tcp", at="2026-01-01"),
    event(1, message="connection timed out", level="error", path="/net/tcp/slow", at="2026-01-02T12:00Z"),
    event(2, message="reset of the connection", level="warning", load=-2, path="/net", at="2026-01-02T13:00Z"),
    event(3, message="all is well", ok=True, load=1e9, path="/disk", at="2026-01-03"),
    event(4, message="naïve_user-id 10.0.0.1", level=["x y", "z"]),
    event(5, message="peer [reset] peer.", level="e.r*"),
    event(6, message="line\nbreak", level="two\nlines"),
]


FOUND = [
    ("", [0, 1, 2, 3, 4, 5, 6]),
    ("connection", [0, 1, 2]),
    ("CONNECTION Reset", [0, 2]),
    ('"connection reset"', [0]),
    ('message:"reset by"', [0]),
    ("connection -reset", [1]),
    ("-connection", [3, 4, 5, 6]),
    ("-connection -well", [4, 5, 6]),
    ("NOT (connection OR well)", [4, 5, 6]),
    ("peer OR well", [0, 3, 5]),
    ("level:error", [0, 1]),
    ("level:(error OR warning) reset", [0, 2]),
    ("level:err*", [0, 1]),
    ('level:"x y"', [4]),
    (r"level:e.r\*", [5]),
    (r"level:e.*", [5]),
    ("level:two*", [6]),
    ("con*", [0, 1, 2]),
    ("naïve", [4]),
    ("user-id", [4]),
    ("10.0.0.1", [4]),
    ("10.0.1.0", []),
    ("ms:3", [3]),
    ("ms:[1 TO 3}", [1, 2]),
    ("ms:>=5", [5, 6]),
    ("ms:<1", [0]),
    ("ms:{* TO 1}", [0]),
    ("ms:{0 TO *]", [1, 2, 3, 4, 5, 6]),
    ("load:<0", [2]),
    ("load:0.5", [0]),
    ("load:[0 TO 1e9]", [0, 3]),
    ("ok:true", [3]),
    ("-ok:true ok:false", [0]),
    ("path:/net", [0, 1, 2]),
    ("path:/net/tcp", [0, 1]),
    ("path:/ne", []),
    ("at:2026-01-01", [0]),
    ("at:[2026-01-02T12:30Z TO *]", [2, 3]),
    ("at:<2026-01-02T13:00+01:00", [0]),
]


async def test_what_is_found(logs: Indexed) -> None:
    await logs.create()
    await logs.write(EVENTS)
    async with logs.running():
        search = await logs.caught_up()
    for text, found in FOUND:
        assert sorted(numbers(await all_hits(search, text))) == found, text
        assert (await search.count(text))["all"] == len(found), text


async def test_pages(logs: Indexed) -> None:
    await logs.create()
    await logs.write(map(event, range(230)))
    async with logs.running():
        search = await logs.caught_up()
        newest = await all_hits(search, limit=7)
        assert sorted(numbers(newest)) == list(range(230))
        assert await all_hits(search, limit=500, order="oldest") == newest[::-1]
        for order in ("newest", "oldest", "best"):
            found = await all_hits(search, "group3", limit=5, order=order)
            assert sorted(numbers(found)) == list(range(3, 230, 10))
        first = await search.query("group3", limit=5)
        best = await search.query("group3", order="best", limit=5)
        await logs.write(map(event, range(230, 300)))
        await search.wait("tail")
        rest = await search.query("group3", limit=1000, after=first.next)
        assert sorted(numbers([*first.hits, *rest.hits])) == list(range(3, 230, 10))
        rest = await search.query("group3", order="best", limit=1000, after=best.next)
        assert sorted(numbers([*best.hits, *rest.hits])) == list(range(3, 230, 10))
        assert best.count == rest.count == 23
        elsewhere = await (await logs.search()).query("group3", order="best", limit=1000, after=best.next)
        assert len(elsewhere.hits) == 18


async def test_pages_end_anywhere_among_events_of_one_order(logs: Indexed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.search.shards.building.orders", lambda came, before: np.arange(len(came)) // 7 + 5)
    names = (f"{number:013d}-{'0' * 32}" for number in range(10**9, 0, -1))  # the newest shard is searched first
    monkeypatch.setattr("nadi.search.indexing.indexer.new_name", lambda: next(names))
    await logs.create()
    async with logs.running():
        for first in range(0, 100, 25):
            await logs.write(map(event, range(first, first + 25)))
            search = await logs.caught_up()
    for order, limits in (("newest", (1, *range(8, 40, 5))), ("oldest", (3,)), ("best", (1, 3, 10))):
        for limit in limits:
            found = numbers(await all_hits(search, limit=limit, order=order))
            assert Counter(found) == Counter(range(100)), (order, limit)


async def test_best_first(logs: Indexed) -> None:
    await logs.create()
    texts = ["reset", "reset and much else that makes this a long text", "reset peer", "peer", "nothing"]
    await logs.write(event(number, message=text) for number, text in enumerate(texts))
    async with logs.running():
        search = await logs.caught_up()
    page = await search.query("reset OR peer", order="best")
    assert (numbers(page.hits)[0], page.count) == (2, 4)
    scores = [hit.score or 0.0 for hit in page.hits]
    assert scores == sorted(scores, reverse=True)
    assert numbers((await search.query("reset", order="best")).hits) == [0, 2, 1]


async def test_between_cuts(logs: Indexed) -> None:
    await logs.create()
    cuts = logs.manager.cuts(logs.scope, "logs")
    borders = [await cuts.tail()]
    for first in range(0, 300, 100):
        await logs.write(map(event, range(first, first + 100)))
        if first == 100:
            await logs.manager.scale_stream(logs.scope, "logs", [0], [(0.0, 0.2), (0.2, 0.5)])
        borders.append(await cuts.tail())
    await logs.manager.bookmarks(logs.scope).create("two", borders[2])
    async with logs.running():
        search = await logs.caught_up()
    for low in range(4):
        for high in range(low, 4):
            found = await all_hits(search, since=borders[low], until=borders[high])
            assert sorted(numbers(found)) == list(range(low * 100, high * 100)), (low, high)
    assert sorted(numbers(await all_hits(search, "_since:two"))) == list(range(200, 300))
    assert (await search.count("_until:two"))["all"] == 200
    assert (await search.count(since="2020-01-01T00:00Z"))["all"] == 300
    assert (await search.count(until="2020-01-01T00:00Z"))["all"] == 0
    with pytest.raises(InvalidArgumentError, match="says _since: already"):
        await search.query("_since:two", since="head")
    some = await all_hits(search, keys=["k3"])
    assert {3, 19} <= set(numbers(some))
    assert len(some) < 300


async def test_reading_ones_own_writes(logs: Indexed) -> None:
    await logs.create()
    cuts = logs.manager.cuts(logs.scope, "logs")
    search = await logs.search()
    await logs.write([event(1)])
    with pytest.raises(RequestTimeoutError):
        await search.query(wait_for="tail", timeout=0.2)
    async with logs.running():
        for number in range(2, 5):
            await logs.write([event(number)])
            assert number in numbers((await search.query(wait_for=await cuts.tail())).hits)
    assert await search.reached() == await cuts.tail()


async def test_counts(logs: Indexed) -> None:
    await logs.create()
    start = datetime(2026, 1, 1, tzinfo=UTC)
    await logs.write(
        event(number, level=f"l{number % 3}", ok=number % 4 == 0, at=(start + timedelta(hours=number)).isoformat())
        for number in range(60)
    )
    async with logs.running():
        search = await logs.caught_up()
    assert await search.count("group1", by="level") == {"l0": 2, "l1": 2, "l2": 2}
    assert list(await search.count(by="level", limit=1)) == ["l0"]
    assert await search.count(by="ok") == {False: 45, True: 15}
    days = await search.count(by="at", interval_s=86_400)
    assert days == {start: 24, start + timedelta(days=1): 24, start + timedelta(days=2): 12}
    assert await search.count(by="ms", interval_s=25) == {0.0: 25, 25.0: 25, 50.0: 10}
    assert sum((await search.count(by="_came", interval_s=60)).values()) == 60
    wrong: dict[str, Any]
    for wrong in (
        {"by": "message"},
        {"by": "path"},
        {"by": "nothing"},
        {"by": "at"},
        {"by": "level", "interval_s": 5},
        {"by": "ms", "interval_s": 0},
        {"interval_s": 5},
        {"by": "level", "limit": 0},
    ):
        with pytest.raises(InvalidArgumentError):
            await search.count(**wrong)


async def test_a_hit_is_where_it_says(logs: Indexed) -> None:
    await logs.create()
    await logs.write(map(event, range(100)))
    async with logs.running():
        search = await logs.caught_up()
    (hit,) = (await search.query("ms:57")).hits
    cut = await search.hit_cut(hit)
    assert cut.positions[hit.segment_id] == hit.offset
    found = [one async for one in logs.manager.read_events(logs.scope, "logs", start=cut, end=await search.reached())]
    assert next(one for one in found if one.segment_id == hit.segment_id).data == hit.data
    assert abs(hit.came - datetime.now(UTC)) < timedelta(minutes=5)
    assert hit.excerpt == Excerpt("request 57 of group7", ())
    (hit,) = (await search.query("group7 57")).hits
    assert hit.excerpt is not None
    assert hit.excerpt.marked("<", ">") == "request <57> of <group7>"


def test_excerpts() -> None:
    fields = fields_of("message:text,title:text")

    def marked(query: str, text: str) -> str:
        return Words(bind(parse(query).node, fields), 0).excerpt(text).marked("<", ">")

    assert marked("brown (fo* OR title:quick) -lazy", "The quick Brown fox, lazy") == "The quick <Brown> <fox>, lazy"
    assert marked('"Straße 7"', "grün\U0001f600 STRASSE straße 7") == "grün\U0001f600 STRASSE <straße> <7>"
    long = "word " * 200 + "here is a needle and here another needle " + "word " * 200
    found = marked("needle", long)
    assert found.count("<needle>") == 2
    assert len(found) < 220
    assert marked("absent", long).startswith("word word")


async def test_what_can_not_be_asked(logs: Indexed) -> None:
    await logs.create()
    search = await logs.search()
    page = await search.query()
    assert (page.hits, page.count, page.next) == ((), 0, None)
    await logs.write(map(event, range(10)))
    async with logs.running():
        await search.wait("tail")
    after = (await search.query("group1 OR group2", limit=1)).next
    options: dict[str, Any]
    for options in ({"order": "worst"}, {"limit": 0}, {"limit": 1001}, {"after": "abc"}, {"after": after}):
        with pytest.raises(InvalidArgumentError):
            await search.query(**options)
    for text in ("nothing:1", "ms:x", "level:[a TO b]", '"!!"', "a* ms:1*", " OR ".join(["a"] * 1_001)):
        with pytest.raises(InvalidArgumentError):
            await search.query(text)


async def test_the_blocking_face(logs: Indexed, nadi_server: RestartableServer) -> None:
    await logs.create()
    await logs.write(map(event, range(20)))

    def ask() -> list[int]:
        with nadi.StreamManager(nadi_server.controller_uri) as manager:
            found = indexes(manager, logs.scope)
            assert [one.stream for one in found.list()] == ["logs"]
            with found.open("logs", cache=logs.folder / "own") as search:
                search.wait("tail")
                assert search.reached() == found.status("logs").reached
                return numbers(search.query("group4").hits)

    async with logs.running():
        assert sorted(await asyncio.to_thread(ask)) == [4, 14]


async def test_a_damaged_shard_is_told(logs: Indexed) -> None:
    await logs.create()
    await logs.write(map(event, range(20)))
    async with logs.running():
        await logs.caught_up()
    shard, *_ = [path for path in (logs.folder / "shards" / "search").rglob("*") if path.is_file()]
    data = bytearray(shard.read_bytes())
    data[-10] ^= 1
    shard.write_bytes(data)
    with pytest.raises(nadi.errors.StoreError, match="damaged"):
        await (await logs.search()).query("group1")
