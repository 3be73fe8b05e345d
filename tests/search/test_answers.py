"""Answers that were once wrong, or no answers: each value, each key, each odd argument."""

from __future__ import annotations

import base64
import math
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from nadi.errors import InvalidArgumentError
from nadi.model.streamcut import StreamCut
from nadi.search.asking.pages import After
from nadi.search.fields import UnfitError, fields_of, reader_of
from nadi.search.query.bound import bind
from nadi.search.query.parser import parse
from tests.search.support import Indexed, all_hits, event, numbers

pytest.importorskip("tantivy", reason="search needs tantivy")


async def test_values_that_are_almost_others(logs: Indexed) -> None:
    await logs.create()
    await logs.write(
        [
            event(0, load=-0.0, path="/a\\b/c", level=""),
            event(1, load=0.0, path="/ab"),
            event(2, load=1, path="/a\\\\b"),
        ]
    )
    async with logs.running():
        search = await logs.caught_up()
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
    ):
        assert sorted(numbers(await all_hits(search, text))) == found, text


async def test_counts_have_the_most_frequent_of_all(logs: Indexed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.search.indexing.indexer._LEAST_MERGED", 100)
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


async def test_times_at_the_ends_of_time(logs: Indexed) -> None:
    fields = fields_of("at:date")
    read = reader_of("json", fields)
    for wrong in (1_795_000_000_000, 253_402_300_800, -62_135_596_801, 1 << 70):
        with pytest.raises(UnfitError, match="1 to 9999"):
            read(b'{"at": %d}' % wrong)
    await logs.create()
    moments = ["0001-01-01", "9999-12-31T23:59:59.999999", -62_135_596_800, 253_402_300_799]
    await logs.write(event(number, at=at) for number, at in enumerate(moments))
    async with logs.running():
        search = await logs.caught_up()
    first = datetime.min.replace(tzinfo=UTC)
    assert await search.count(by="at", interval_s=7 * 86_400) == {
        first: 2,
        datetime(9999, 12, 30, tzinfo=UTC): 2,
    }
    await logs.write(event(number, level="many") for number in range(10_001))
    async with logs.running():
        await search.wait("tail")
    with pytest.raises(InvalidArgumentError, match="10,001 buckets"):
        await search.count("level:many", by="ms", interval_s=1)
    for wrong_interval in (math.inf, math.nan):
        with pytest.raises(InvalidArgumentError, match="finite number"):
            await search.count(by="ms", interval_s=wrong_interval)


async def test_the_best_of_what_is_left(logs: Indexed) -> None:
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


async def test_a_page_has_so_many_bytes(logs: Indexed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.search.asking.pages.SEARCH_PAGE_BYTES", 10_000)
    await logs.create()
    await logs.write(event(number, message="x" * (20_000 if number == 7 else 900)) for number in range(30))
    async with logs.running():
        search = await logs.caught_up()
    for order in ("newest", "oldest", "best"):
        page = await search.query("", order=order, limit=30)
        assert 1 <= len(page.hits) < 12
        assert sorted(numbers(await all_hits(search, "", order=order, limit=30))) == list(range(30))


async def test_a_hits_cut_is_one_to_read_from(logs: Indexed) -> None:
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


async def test_odd_arguments_are_told(logs: Indexed) -> None:
    await logs.create()
    await logs.write(map(event, range(10)))
    async with logs.running():
        search = await logs.caught_up()
    other = await logs.manager.cuts(logs.scope, "unfit").tail()
    page = await search.query("", limit=3)
    assert page.next is not None
    options: dict[str, Any]
    for options in (
        {"since": other},
        {"until": other},
        {"wait_for": other},
        {"since": other.as_text()},
        {"since": 5},
        {"until": b"x"},
        {"timeout": "x"},
        {"timeout": -1},
        {"timeout": math.nan},
        {"limit": True},
        {"limit": 1.5},
        {"keys": "k"},
        {"keys": [1]},
        {"after": 7},
        {"text": "\ud800"},
        {"since": "\ud800"},
        {"after": "\ud800"},
        {"text": "_since:\ud800"},
        {"keys": ["\ud800"]},
        {"text": None},
    ):
        with pytest.raises(InvalidArgumentError):
            await search.query(**options)
    for options in ({"since": other}, {"timeout": "x"}, {"limit": None}, {"interval_s": "x", "by": "ms"}, {"by": 7}):
        with pytest.raises(InvalidArgumentError):
            await search.count(**options)
    with pytest.raises(InvalidArgumentError):
        await search.wait(other)
    with pytest.raises(InvalidArgumentError):
        await search.hit_cut("x")  # type: ignore[arg-type]


async def test_forged_pages(logs: Indexed) -> None:
    await logs.create()
    await logs.write(map(event, range(10)))
    async with logs.running():
        search = await logs.caught_up()
    for order in ("newest", "oldest", "best"):
        page = await search.query("", limit=3, order=order)
        assert page.next is not None
        raw = msgspec.msgpack.decode(base64.urlsafe_b64decode(page.next + "=" * (-len(page.next) % 4)), type=After)
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
    ("text", "word"),
    [
        ("level:" + "a" * 513 + "*", "more than 512 bytes"),
        ("level:" + "語" * 171 + "*", "more than 512 bytes"),
        ("a" * 257, "longer than the 256 bytes"),
        ('message:""', "no letter and no digit"),
    ],
)
def test_what_is_too_long(text: str, word: str) -> None:
    with pytest.raises(InvalidArgumentError, match=word):
        bind(parse(text).node, fields_of("message:text,level:keyword"))


async def test_the_longest_start(logs: Indexed) -> None:
    await logs.create()
    await logs.write([event(1, level="語" * 200), event(2, level="\\" * 600)])
    async with logs.running():
        search = await logs.caught_up()
    assert numbers((await search.query("level:" + "語" * 170 + "*")).hits) == [1]
    assert numbers((await search.query("level:" + "\\\\" * 512 + "*")).hits) == [2]
