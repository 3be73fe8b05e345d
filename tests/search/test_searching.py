"""Queries on a real server: hits, order, pages, cuts and counts; and regressions for each kind of value, key and
invalid argument."""

from __future__ import annotations

import asyncio
import base64
import math
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import numpy as np
import pytest

import nadi
from nadi.errors import InvalidArgumentError, RequestTimeoutError
from nadi.model.streamcut import StreamCut
from nadi.search import indexes
from nadi.search.fields import InvalidEventError, fields_of, reader_of
from nadi.search.query.bound import bind
from nadi.search.query.parser import parse
from nadi.search.searching.index_search import Excerpt, Words
from nadi.search.searching.pages import PageCursor
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


async def test_query_returns_matching_events(logs: Indexed) -> None:
    search = await logs.indexed(EVENTS)
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


async def test_pages_split_events_of_equal_order(logs: Indexed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.search.indexing.orders", lambda came, before: np.arange(len(came)) // 7 + 5)
    names = (f"{number:013d}-{'0' * 32}" for number in range(10**9, 0, -1))  # the newest shard is searched first
    monkeypatch.setattr("nadi.search.indexing.new_name", lambda: next(names))
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
    with pytest.raises(InvalidArgumentError):
        await search.query("_since:two", since="head")
    some = await all_hits(search, keys=["k3"])
    assert {3, 19} <= set(numbers(some))
    assert len(some) < 300


async def test_query_wait_for_sees_own_writes(logs: Indexed) -> None:
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
    assert sum((await search.count(by="_arrival_time", interval_s=60)).values()) == 60
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


async def test_hit_position_reads_its_event(logs: Indexed) -> None:
    search = await logs.indexed(map(event, range(100)))
    (hit,) = (await search.query("ms:57")).hits
    cut = await search.hit_cut(hit)
    assert cut.positions[hit.segment_id] == hit.offset
    found = [one async for one in logs.manager.read_events(logs.scope, "logs", start=cut, end=await search.reached())]
    assert next(one for one in found if one.segment_id == hit.segment_id).data == hit.data
    assert abs(hit.arrival_time - datetime.now(UTC)) < timedelta(minutes=5)
    assert hit.excerpt == Excerpt("request 57 of group7", ())
    (hit,) = (await search.query("group7 57")).hits
    assert hit.excerpt is not None
    assert hit.excerpt.highlighted("<", ">") == "request <57> of <group7>"


def test_excerpts() -> None:
    fields = fields_of("message:text,title:text")

    def marked(query: str, text: str) -> str:
        return Words(bind(parse(query).node, fields), 0).excerpt(text).highlighted("<", ">")

    assert marked("brown (fo* OR title:quick) -lazy", "The quick Brown fox, lazy") == "The quick <Brown> <fox>, lazy"
    assert marked('"Straße 7"', "grün\U0001f600 STRASSE straße 7") == "grün\U0001f600 STRASSE <straße> <7>"
    long = "word " * 200 + "here is a needle and here another needle " + "word " * 200
    found = marked("needle", long)
    assert found.count("<needle>") == 2
    assert len(found) < 220
    assert marked("absent", long).startswith("word word")


async def test_query_invalid_arguments_fail(logs: Indexed) -> None:
    await logs.create()
    search = await logs.search()
    page = await search.query()
    assert (page.hits, page.count, page.next) == ((), 0, None)
    await logs.write(map(event, range(10)))
    async with logs.running():
        await search.wait("tail")
    after = (await search.query("group1 OR group2", limit=1)).next
    other = await logs.manager.cuts(logs.scope, "unfit").tail()
    wrong: dict[str, list[Any]] = {
        "text": ["nothing:1", "ms:x", "level:[a TO b]", '"!!"', "a* ms:1*", " OR ".join(["a"] * 1_001), "\ud800", None],
        "order": ["worst"],
        "limit": [0, 1_001, True, 1.5],
        "after": ["abc", after, 7, "\ud800"],
        "since": [other, other.as_text(), 5, "\ud800"],
        "until": [other, b"x"],
        "wait_for": [other],
        "timeout": ["x", -1, math.nan],
        "keys": ["k", [1], ["\ud800"]],
    }
    for name, values in wrong.items():
        for value in values:
            with pytest.raises(InvalidArgumentError):
                await search.query(**{name: value})
    with pytest.raises(InvalidArgumentError):
        await search.query("_since:\ud800")
    options: dict[str, Any]
    for options in ({"since": other}, {"timeout": "x"}, {"limit": None}, {"interval_s": "x", "by": "ms"}, {"by": 7}):
        with pytest.raises(InvalidArgumentError):
            await search.count(**options)
    with pytest.raises(InvalidArgumentError):
        await search.wait(other)
    with pytest.raises(InvalidArgumentError):
        await search.hit_cut("x")  # type: ignore[arg-type]


async def test_blocking_api_returns_the_same_results(logs: Indexed) -> None:
    await logs.create()
    await logs.write(map(event, range(20)))

    def ask() -> list[int]:
        with nadi.StreamManager(logs.uri) as manager:
            found = indexes(manager, logs.scope)
            assert [one.stream for one in found.list()] == ["logs"]
            with found.open("logs", cache=logs.folder / "own") as search:
                search.wait("tail")
                assert search.reached() == found.status("logs").reached
                return numbers(search.query("group4").hits)

    async with logs.running():
        assert sorted(await asyncio.to_thread(ask)) == [4, 14]


async def test_query_distinguishes_similar_and_long_values(logs: Indexed) -> None:
    events = [
        event(0, load=-0.0, path="/a\\b/c", level=""),
        event(1, load=0.0, path="/ab", level="語" * 200),
        event(2, load=1, path="/a\\\\b", level="\\" * 600),
    ]
    search = await logs.indexed(events)
    for text, found in (
        ("load:0", [0, 1]),
        ("load:-0", [0, 1]),
        ("load:>=0", [0, 1, 2]),
        ("load:<0", []),
        ("load:{-0 TO 1]", [2]),
        ('path:"/ab"', [1]),
        ('path:"/a\\\\b"', [0]),
        ('path:"/a\\\\\\\\b"', [2]),
        ('level:""', [0]),
        ('-level:""', [1, 2]),
        ("level:" + "語" * 170 + "*", [1]),
        ("level:" + "\\\\" * 512 + "*", [2]),
    ):
        assert sorted(numbers(await all_hits(search, text))) == found, text


async def test_count_returns_the_most_frequent_values(logs: Indexed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.search.indexing._LEAST_MERGED", 100)
    await logs.create("level:keyword,at:date,ms:long")
    async with logs.running():
        for half in "ab":
            many = [f"{half}{number:05}" for number in range(5_100) for _ in range(2)]
            await logs.write(event(0, level=[*many, "rare"]) for _ in range(2))
            await logs.write(
                event(0, level=[f"{half}{number:05}" for number in range(5_100, 10_300)]) for _ in range(2)
            )
            search = await logs.caught_up()
    assert await search.count(by="level", limit=1) == {"rare": 4}


async def test_times_at_the_limits_are_indexed(logs: Indexed) -> None:
    fields = fields_of("at:date")
    read = reader_of("json", fields)
    for wrong in (1_795_000_000_000, 253_402_300_800, -62_135_596_801, 1 << 70):
        with pytest.raises(InvalidEventError):
            read(b'{"at": %d}' % wrong)
    await logs.create()
    moments = ["0001-01-01", "9999-12-31T23:59:59.999999", -62_135_596_800, 253_402_300_799]
    await logs.write(event(number, at=at) for number, at in enumerate(moments))
    async with logs.running():
        search = await logs.caught_up()
    first = datetime.min.replace(tzinfo=UTC)
    assert await search.count(by="at", interval_s=7 * 86_400) == {first: 2, datetime(9999, 12, 30, tzinfo=UTC): 2}
    await logs.write(event(number, level="many") for number in range(10_001))
    async with logs.running():
        await search.wait("tail")
    with pytest.raises(InvalidArgumentError, match="10,001"):
        await search.count("level:many", by="ms", interval_s=1)
    for wrong_interval in (math.inf, math.nan):
        with pytest.raises(InvalidArgumentError):
            await search.count(by="ms", interval_s=wrong_interval)


async def test_best_pages_continue_after_truncation(logs: Indexed) -> None:
    await logs.create()
    keys = ["one"] * 40
    await logs.write((event(number, message="reset " * (40 - number)) for number in range(20)), keys[:20])
    cut = (await logs.manager.stream_info(logs.scope, "logs")).tail
    await logs.write((event(number, message="reset " * (number - 10)) for number in range(20, 40)), keys[20:])
    async with logs.running():
        search = await logs.caught_up()
    first = await search.query("reset", order="best", limit=10)
    everything = numbers(await all_hits(search, "reset", order="best"))
    await logs.manager.truncate_stream(cut)
    expected = [number for number in everything[10:] if number >= 20]
    assert len(expected) >= 10
    for asked in (search, await logs.search()):
        rest = await asked.query("reset", order="best", limit=1000, after=first.next)
        assert numbers(rest.hits) == expected


async def test_page_is_limited_in_bytes(logs: Indexed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.search.searching.pages.SEARCH_PAGE_BYTES", 10_000)
    search = await logs.indexed(event(number, message="x" * (20_000 if number == 7 else 900)) for number in range(30))
    for order in ("newest", "oldest", "best"):
        page = await search.query("", order=order, limit=30)
        assert 1 <= len(page.hits) < 12
        assert sorted(numbers(await all_hits(search, "", order=order, limit=30))) == list(range(30))


async def test_hit_cut_can_be_read_from(logs: Indexed) -> None:
    manager, scope = logs.manager, logs.scope
    await logs.create()
    await logs.write(map(event, range(40)))
    first, second = sorted((await manager.stream_info(scope, "logs")).tail.positions)
    await manager.scale_stream(scope, "logs", [second], [(0.5, 0.75), (0.75, 1.0)])
    tail = (await manager.stream_info(scope, "logs")).tail
    async with logs.running():
        search = await logs.caught_up()
    hits = [hit for hit in await all_hits(search) if hit.segment_id == first]
    await manager.truncate_stream(StreamCut(scope, "logs", dict(tail.positions) | {first: 0}))
    assert len(hits) > 3
    cuts = manager.cuts(scope, "logs")
    head = await cuts.head()
    for hit in hits:
        cut = await search.hit_cut(hit)
        await cuts.check(cut)
        assert (await cuts.compare(head, cut)).is_at_or_before
        found = [one async for one in manager.read_events(scope, "logs", start=cut, end=tail)]
        assert found[0].data == hit.data


async def test_forged_pages(logs: Indexed) -> None:
    search = await logs.indexed(map(event, range(10)))
    for order in ("newest", "oldest", "best"):
        page = await search.query("", limit=3, order=order)
        assert page.next is not None
        raw = msgspec.msgpack.decode(base64.urlsafe_b64decode(page.next + "=" * (-len(page.next) % 4)), type=PageCursor)
        for number in (0, -1, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1):
            for name in ("order", "segment", "offset", "generation"):
                forged = msgspec.structs.replace(raw, **{name: number}).as_text()
                try:
                    found = await search.query("", limit=3, order=order, after=forged)
                    assert len(found.hits) <= 3
                except InvalidArgumentError:
                    assert not 0 <= number < 1 << 63
        for name, value in (("as_of", "x"), ("score", math.nan), ("score", math.inf)):
            forged = msgspec.structs.replace(raw, **{name: value}).as_text()
            if name == "as_of" and order == "best":
                with pytest.raises(InvalidArgumentError):
                    await search.query("", limit=3, order="best", after=forged)
            else:
                await search.query("", limit=3, order=order, after=forged)


@pytest.mark.parametrize(
    "text",
    [
        "level:" + "a" * 513 + "*",
        "level:" + "語" * 171 + "*",
        "a" * 257,
        'message:""',
    ],
)
def test_bind_too_long_words_fail(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        bind(parse(text).node, fields_of("message:text,level:keyword"))
