"""One cluster per URL, with one number of containers and one key, whichever server is first."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nadi.errors import InvalidArgumentError, StoreError
from nadi.object_log.checksummed_lines import line_of
from nadi.object_log.engine import LogEngine
from nadi.object_log.identity import DEFAULT_CONTAINERS, open_cluster, signing_key
from nadi.object_log.opening import open_engines
from nadi.runtime import REAL
from tests.support.engines import PARAMS, Opener, kind_named
from tests.support.fake_s3 import FakeS3


@pytest.fixture(params=PARAMS)
async def opener(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Opener]:
    async with kind_named(request.param)(tmp_path) as opener:
        yield opener


@pytest.fixture
async def engine() -> LogEngine:
    return (await open_engines("memory:///", REAL))[0]


async def test_concurrent_starts_create_one_cluster(opener: Opener) -> None:
    engines = [(await opener())[0] for _ in range(4)]
    clusters = await asyncio.gather(*(open_cluster(engine, 5, REAL) for engine in engines * 3))
    assert len(set(clusters)) == 1
    assert clusters[0].containers == 5
    assert len(clusters[0].cluster) == 32
    assert abs(clusters[0].created_ms - REAL.now_ms()) < 60_000
    assert await open_cluster(engines[0], None, REAL) == clusters[0]
    keys = await asyncio.gather(*(signing_key(engine, REAL) for engine in engines * 3))
    assert len(set(keys)) == 1
    assert len(keys[0]) == 32


async def test_number_of_containers_is_fixed_by_the_first_server(engine: LogEngine) -> None:
    cluster = await open_cluster(engine, None, REAL)
    assert cluster.containers == DEFAULT_CONTAINERS
    with pytest.raises(InvalidArgumentError, match=f"--containers {DEFAULT_CONTAINERS}"):
        await open_cluster(engine, DEFAULT_CONTAINERS + 1, REAL)
    assert await open_cluster(engine, DEFAULT_CONTAINERS, REAL) == cluster
    for containers in (0, -1, 1_000_000):
        with pytest.raises(InvalidArgumentError, match="1 to 1,000"):
            await open_cluster(engine, containers, REAL)


async def test_prefix_with_other_objects_is_rejected(engine: LogEngine) -> None:
    await engine.create("proof/of/another", [b"x"])
    await engine.create("photos/cat.jpg", [b"x"])
    with pytest.raises(StoreError, match=r"photos/cat\.jpg"):
        await open_cluster(engine, None, REAL)
    assert await engine.get("cluster.json") is None


async def test_objects_of_consoles_and_file_systems_are_ignored(tmp_path: Path) -> None:
    async with FakeS3() as s3:
        await s3.objects.put("p/", b"", absent=False, etag=None, generation=None)
        engine, registry = await open_engines("s3://bucket/p", REAL, **s3.config())
        await open_cluster(engine, None, REAL)
        await s3.objects.put("p/servers/", b"", absent=False, etag=None, generation=None)
        assert await registry.list("servers") == {}
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "lost+found/#17").write_bytes(b"x")
    engine, _ = await open_engines(tmp_path.as_uri(), REAL)
    await open_cluster(engine, None, REAL)
    await engine.close()


async def test_cluster_created_meanwhile_is_opened(engine: LogEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another server was first, and has stored objects since."""
    made = await open_cluster(engine, 3, REAL)
    await engine.create("servers/a", [b"x"])
    get, calls = engine.get, 0

    async def get_late(name: str, position: int = 0, length: int | None = None) -> memoryview | None:
        nonlocal calls
        calls += 1
        return None if calls == 1 else await get(name, position, length)

    monkeypatch.setattr(engine, "get", get_late)
    assert await open_cluster(engine, 3, REAL) == made


@pytest.mark.parametrize(
    ("written", "data"),
    [
        (b"", "cluster.json"),
        (b"not json", "cluster.json"),
        (json.dumps({"format": 2, "cluster": "a", "containers": 3, "created_ms": 1}).encode(), "cluster.json"),
        (line_of(b"not json"), "cluster.json"),
        (line_of(json.dumps({"format": 2, "containers": 3}).encode()), "cluster.json"),
        (line_of(json.dumps({"format": 2, "cluster": "a", "containers": 0, "created_ms": 1}).encode()), "cluster.json"),
        (line_of(json.dumps({"format": 4, "new": "things"}).encode()), "format 4.*formats 2 and 3"),
    ],
)
async def test_damaged_or_other_version_is_rejected(engine: LogEngine, written: bytes, data: str) -> None:
    await engine.create("cluster.json", [written])
    with pytest.raises(StoreError, match=data):
        await open_cluster(engine, None, REAL)


async def test_flipped_digit_is_detected(engine: LogEngine) -> None:
    """With another number of containers, all segments would map to other containers."""
    await open_cluster(engine, 3, REAL)
    written = bytes(await engine.get("cluster.json") or b"")
    await engine.delete(["cluster.json"])
    await engine.create("cluster.json", [written.replace(b'"containers":3', b'"containers":7')])
    with pytest.raises(StoreError):
        await open_cluster(engine, None, REAL)


async def test_damaged_signing_key_is_rejected(engine: LogEngine) -> None:
    await engine.create("keys/tokens", [b"short"])
    with pytest.raises(StoreError, match="keys/tokens"):
        await signing_key(engine, REAL)


async def test_refusing_store_fails_at_once() -> None:
    async with FakeS3() as s3:
        s3.faults.denied = ["get"]
        engine, _ = await open_engines("s3://bucket/p", REAL, **s3.config())
        with pytest.raises(StoreError):
            await open_cluster(engine, None, REAL)
