"""Requirements on every `Registry`, run on each kind in `tests/support/engines.py`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nadi.errors import InvalidNameError, UnavailableError
from nadi.object_log.engine import Registry
from nadi.runtime import REAL
from tests.support.engines import PARAMS, Opener, kind_named, known, late_writes, was_set, written

NAME = "containers/3"
RACERS = 50


@pytest.fixture(params=PARAMS)
async def opener(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Opener]:
    async with kind_named(request.param)(tmp_path) as opener:
        yield opener


@pytest.fixture
async def registry(opener: Opener) -> Registry:
    return (await opener())[1]


async def value_of(registry: Registry, name: str) -> bytes | None:
    entry = await known(lambda: registry.get(name))
    return None if entry is None else entry.value


async def test_a_value_is_set_if_it_has_the_version(registry: Registry) -> None:
    assert await known(lambda: registry.get(NAME)) is None
    first = await was_set(registry, NAME, b"1", None)
    assert first is not None
    assert await known(lambda: registry.get(NAME)) == first
    assert await was_set(registry, NAME, b"2", None) is None
    second = await was_set(registry, NAME, b"3", first.version)
    assert second is not None
    assert second.version != first.version
    assert await was_set(registry, NAME, b"4", first.version) is None
    assert await known(lambda: registry.get(NAME)) == second
    third = await was_set(registry, NAME, b"", second.version)
    assert third is not None
    assert await value_of(registry, NAME) == b""


async def test_set_with_a_version_of_a_missing_value_fails(registry: Registry) -> None:
    entry = await was_set(registry, NAME, b"1", None)
    assert entry is not None
    assert await was_set(registry, "containers/4", b"1", entry.version) is None
    assert await known(lambda: registry.get("containers/4")) is None
    await late_writes()
    await known(lambda: registry.delete(NAME))
    assert await known(lambda: registry.get(NAME)) is None
    assert await was_set(registry, NAME, b"2", entry.version) is None
    assert await was_set(registry, NAME, b"3", None) is not None
    await known(lambda: registry.delete("containers/5"))


@pytest.mark.parametrize("is_new", [True, False])
async def test_of_many_racers_one_wins(opener: Opener, is_new: bool) -> None:
    registries = [(await opener())[1] for _ in range(3)]
    before = None if is_new else await was_set(registries[0], NAME, b"before", None)
    version = before.version if before else None

    async def race(racer: int) -> bool:
        return await was_set(registries[racer % 3], NAME, b"%d" % racer, version) is not None

    won = await asyncio.gather(*map(race, range(RACERS)))
    assert won.count(True) == 1
    assert await value_of(registries[0], NAME) == b"%d" % won.index(True)


async def test_concurrent_counter_loses_no_increment(opener: Opener) -> None:
    async def count(counter: int) -> None:
        registry, done = (await opener())[1], 0
        while done < 5:
            entry = await known(lambda: registry.get(NAME))
            so_far = entry.value.split()[0] if entry else b"0"
            value = b"%d %s" % (int(so_far) + 1, REAL.unique().encode())
            if await was_set(registry, NAME, value, entry.version if entry else None) is not None:
                done += 1

    async with asyncio.timeout(60):
        await asyncio.gather(*map(count, range(8)))
    value = await value_of((await opener())[1], NAME)
    assert value is not None
    assert int(value.split()[0]) >= 40  # more if a delayed set was replaced by the next value unseen


async def test_unconditional_put_replaces_any_value(opener: Opener) -> None:
    (_, one), (_, other) = await opener(), await opener()
    versions = set()
    for beat in range(10):
        value = b"beat %d" % beat
        versions.add(await written(lambda value=value: one.put("servers/a", value)))  # type: ignore[misc]
        entry = await known(lambda: other.get("servers/a"))
        assert entry is not None
        assert entry.value == value
        assert entry.version in versions
    assert len(versions) == 10
    entry = await known(lambda: other.get("servers/a"))
    assert entry is not None
    assert await was_set(other, "servers/a", b"by condition", entry.version) is not None
    assert await value_of(one, "servers/a") == b"by condition"


async def test_a_folder_s_versions_are_those_of_its_values(registry: Registry) -> None:
    for number in range(20):
        await written(lambda number=number: registry.put(f"servers/{number}", b"%d" % number))  # type: ignore[misc]
    await written(lambda: registry.put("serversx", b"x"))
    await written(lambda: registry.put("containers/1", b"x"))
    await written(lambda: registry.put("servers/3", b"another"))
    await known(lambda: registry.delete("servers/4"))
    expected = {}
    for number in range(20):
        entry = await known(lambda number=number: registry.get(f"servers/{number}"))  # type: ignore[misc]
        if entry is not None:
            expected[f"servers/{number}"] = entry.version
    assert len(expected) == 19
    async with asyncio.timeout(60):
        while await known(lambda: registry.list("servers")) != expected:
            await REAL.sleep(0.02)
    assert await known(lambda: registry.list("servers/")) == expected
    assert await known(lambda: registry.list("absent")) == {}


@pytest.mark.parametrize("name", ["", "a/", "../a", ".nadi/lock"])
async def test_unportable_names_are_refused(registry: Registry, name: str) -> None:
    for work in (
        registry.get(name),
        registry.put(name, b""),
        registry.compare_and_set(name, b"", None),
        registry.delete(name),
    ):
        with pytest.raises((InvalidNameError, UnavailableError)):
            await work
