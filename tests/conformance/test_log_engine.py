"""Requirements on every `LogEngine`, run on each kind in `tests/support/engines.py`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from nadi.errors import InvalidNameError
from nadi.object_log.engine import LogEngine
from nadi.runtime import REAL
from nadi.wire.fields import Buffer
from tests.support.engines import LOG_PARAMS, PARAMS, Opener, created, kind_named, known, late_writes

NAME = "log/0/3/17"
RACERS = 50


@pytest.fixture(params=[*PARAMS, *LOG_PARAMS])
async def opener(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Opener]:
    async with kind_named(request.param)(tmp_path) as opener:
        yield opener


@pytest.fixture
async def engine(opener: Opener) -> LogEngine:
    return (await opener())[0]


async def got(engine: LogEngine, name: str, position: int = 0, length: int | None = None) -> bytes | None:
    found = await known(lambda: engine.get(name, position, length))
    return None if found is None else bytes(found)


async def listing(engine: LogEngine, prefix: str) -> dict[str, int]:
    async def once() -> dict[str, int]:
        found: dict[str, int] = {}
        async for page in engine.listed(prefix):
            assert not found.keys() & page.keys()
            found |= page
        return found

    return await known(once)


async def eventually(look: Callable[[], Awaitable[object]], expected: object) -> None:
    for _ in range(200):
        found = await look()
        if found == expected:
            return
        await REAL.sleep(0.02)
    assert found == expected


async def test_object_is_read_completely_and_in_parts(engine: LogEngine) -> None:
    parts: list[Buffer] = [b"ab", memoryview(b"cd"), bytearray(b""), b"efgh"]
    while not await known(lambda: engine.create(NAME, parts)) and await got(engine, NAME) is None:
        pass  # a 409
    assert await got(engine, NAME) == b"abcdefgh"
    assert await got(engine, NAME, 3) == b"defgh"
    assert await got(engine, NAME, 3, 2) == b"de"
    assert await got(engine, NAME, 0, 3) == b"abc"
    assert await got(engine, NAME, 6, 100) == b"gh"
    assert await got(engine, NAME, 8) == b""
    assert await got(engine, NAME, 8, 1) == b""
    assert await got(engine, NAME, 100, 5) == b""
    assert await got(engine, NAME, 2, 0) == b""


async def test_empty_and_large_objects_are_read(engine: LogEngine) -> None:
    large = bytes(range(256)) * (4 * 4096)
    assert await created(engine, "log/empty", b"")
    assert await created(engine, "log/large", large)
    assert await got(engine, "log/empty") == b""
    assert await got(engine, "log/empty", 0, 10) == b""
    assert await got(engine, "log/large") == large
    assert await got(engine, "log/large", 1_000_003, 300_000) == large[1_000_003:1_300_003]


async def test_create_never_replaces_an_object(opener: Opener) -> None:
    (one, _), (other, _) = await opener(), await opener()
    assert await created(one, NAME, b"first")
    for engine in (one, other):
        assert not await created(engine, NAME, b"second")
        assert await got(engine, NAME) == b"first"


async def test_one_that_is_not_there(engine: LogEngine) -> None:
    for position, length in ((0, None), (3, None), (3, 4), (0, 0)):
        assert await got(engine, NAME, position, length) is None
    assert await got(engine, "log") is None
    await known(lambda: engine.delete([NAME, "log/other"]))
    assert await listing(engine, "log/") == {}


async def test_of_many_racers_one_wins(opener: Opener) -> None:
    engines = [(await opener())[0] for _ in range(3)]

    async def race(racer: int) -> bool:
        return await created(engines[racer % 3], NAME, b"%04d" % racer * 500)

    won = await asyncio.gather(*map(race, range(RACERS)))
    assert won.count(True) == 1
    winner = b"%04d" % won.index(True) * 500
    assert [await got(engine, NAME) for engine in engines] == [winner] * 3


async def test_listing_eventually_shows_all_objects(engine: LogEngine) -> None:
    names = [f"log/1/{number % 3}/{number}" for number in range(40)]
    others = ["log/10/1", "log/1x", "logs/1"]
    await asyncio.gather(*(created(engine, name, b"x" * number) for number, name in enumerate(names + others)))
    sizes = {name: number for number, name in enumerate(names)}
    for prefix in ("log/1", "log/1/"):
        await eventually(lambda prefix=prefix: listing(engine, prefix), sizes)  # type: ignore[misc]
    await eventually(lambda: listing(engine, "log/1/2"), {name: sizes[name] for name in names if "/2/" in name})
    everything = sizes | {name: 40 + number for number, name in enumerate(others)}
    await eventually(lambda: listing(engine, ""), everything)
    await late_writes()
    await known(lambda: engine.delete(names[5:]))
    await eventually(lambda: listing(engine, "log/1"), {name: sizes[name] for name in names[:5]})
    assert await got(engine, names[5]) is None
    assert await got(engine, names[4]) == b"xxxx"


async def test_deleted_objects_can_be_recreated(engine: LogEngine) -> None:
    names = [f"log/0/1/{number}" for number in range(60)]
    await asyncio.gather(*(created(engine, name, b"old") for name in names))
    await late_writes()
    await known(lambda: engine.delete([*names, "log/none"]))
    assert [await got(engine, name) for name in names] == [None] * 60
    await known(lambda: engine.delete(names))
    assert await created(engine, names[7], b"new")
    assert await got(engine, names[7]) == b"new"


async def test_stored_object_is_visible_to_other_processes(opener: Opener) -> None:
    (one, _), (other, _) = await opener(), await opener()
    for number in range(30):
        name, body = f"log/2/{number}", b"%d" % number
        assert await created(one, name, body)
        assert await got(other, name) == body


@pytest.mark.parametrize("name", ["", "/", "/a", "a/", "a//b", "../a", "a/./b", ".a", "a/.b", "a b", "ä", "a" * 201])
async def test_unportable_names_are_refused(engine: LogEngine, name: str) -> None:
    for work in (engine.create(name, [b"x"]), engine.get(name), engine.delete([name])):
        with pytest.raises(InvalidNameError):
            await work
