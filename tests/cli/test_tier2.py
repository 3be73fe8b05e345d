"""`nadi tier2`, `nadi check` and `nadi repair` of a folder whose chunks are in a fake S3, which is a process."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from nadi.cli.app import app
from nadi.errors import DataFolderError
from nadi.segmentstore.data_dir import Tier2, has_chunks
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.write_freeze import Hold
from nadi.wire import commands as wire
from tests.object_log.test_fake_s3 import KEYS, running
from tests.segmentstore.harness import Peer
from tests.segmentstore.tier2.elsewhere import SEGMENT, URL, append, expected, move, opened_as


def command(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Path]]:
    """Its endpoint, and the folder with its objects."""
    for name, value in KEYS.items():
        monkeypatch.setenv(f"AWS_{name.upper()}", value)
    with running(tmp_path / "s3") as (_, endpoint):
        yield endpoint, tmp_path / "s3"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with two chunks of its own, and something in the log."""

    async def write() -> None:
        async with opened_as(tmp_path / "data", None) as (store, peer):
            for first, last in ((1, 3), (4, 6), (7, 8)):
                await append(peer, first, last)
                if last < 8:
                    await move(store)

    asyncio.run(write())
    return tmp_path / "data"


def read(folder: Path, tier2: Tier2 | None) -> bytes:
    async def all_of_it() -> bytes:
        async with opened_as(folder, tier2) as (_, peer):
            return await peer.read_all(SEGMENT)

    return asyncio.run(all_of_it())


def moved(data: Path, endpoint: str) -> Tier2:
    """The data is in a folder of that name then, and its chunks in the fake S3."""
    old = data.with_name("before")
    data.rename(old)
    told = command("migrate", old, data, "--tier2", URL, "--tier2-option", f"endpoint={endpoint}")
    assert told.exit_code == 0, told.output
    assert f"nadi up --data {data} --tier2 {URL}" in told.output.replace("\n", "")
    return Tier2(URL, {"endpoint": endpoint})


async def _first(peer: Peer, length: int) -> bytes:
    data = b""
    while len(data) < length:
        data += bytes((await peer.ask(wire.ReadSegment(SEGMENT, len(data), length - len(data), "", 1))).data)
    return data


def objects(s3: Path) -> list[Path]:
    return [path for path in s3.iterdir() if path.name.startswith("chunks%2Fcontainer-0")]


def test_there_and_back(data: Path, fake: tuple[str, Path]) -> None:
    endpoint, s3 = fake
    tier2 = moved(data, endpoint)
    assert not has_chunks(data)
    assert len(objects(s3)) == 3
    assert command("check", data).exit_code == 0
    assert read(data, tier2) == expected(8)
    assert command("check", data).exit_code == 0
    assert f"chunks in {URL}" in command("check", data).output
    told = command("migrate", data, "s3://b/p", "--tier2", "s3://b/q")
    assert told.exit_code == 1
    assert "is for a new data folder" in told.output.replace("\n", "")
    told = command("migrate", data, data.with_name("back"))
    assert told.exit_code == 0, told.output
    assert read(data.with_name("back"), None) == expected(8)
    with pytest.raises(DataFolderError, match="was moved to"):
        read(data, tier2)


def test_damage_is_named_by_its_stream_and_repaired(data: Path, fake: tuple[str, Path]) -> None:
    tier2 = moved(data, fake[0])

    async def damage() -> None:
        chunks = ChunkStore.from_url(tier2.url, **tier2.options)
        flipped, gone, _ = sorted(await chunks.listed("container-0"))
        body = bytearray(await chunks.read(flipped, 0, 1 << 20))
        body[10] ^= 1
        await chunks.replace(flipped, [body])
        await chunks.delete(gone)

    asyncio.run(damage())
    told = command("check", data)
    assert told.exit_code == 1
    assert "stream scope/stream" in told.output
    assert "has a wrong checksum" in told.output
    assert "is missing" in told.output
    told = command("repair", data, "--yes")
    assert "a server can be started; readers of what is LOST get an error" in told.output, told.output

    async def rest() -> bytes:
        async with opened_as(data, tier2) as (_, peer):
            at = len(expected(6))
            return bytes((await peer.ask(wire.ReadSegment(SEGMENT, at, 10_000, "", 1))).data)

    assert asyncio.run(rest())[:8] == expected(8)[len(expected(6)) :][:8]


def test_a_lost_folder_is_had_back_as_far_as_tier_2_knows(data: Path, fake: tuple[str, Path]) -> None:
    """What had been moved when the last snapshot was stored; what only the log had is gone."""
    tier2 = moved(data, fake[0])

    async def write() -> None:
        async with opened_as(data, tier2) as (store, peer):
            store.storage_writers[0].start()
            await Hold(store).refresh()
            await store.storage_writers[0].stop()
            await append(peer, 9, 9)

    asyncio.run(write())
    shutil.rmtree(data)
    there = "--tier2", URL, "--tier2-option", f"endpoint={fake[0]}"
    told = command("tier2", "claim", data, *there)
    assert told.exit_code == 0, told.output
    assert command("tier2", "claim", data, *there).exit_code == 0
    told = command("repair", data, "--yes")
    assert "a server can be started" in told.output, told.output

    async def read_on() -> None:
        async with opened_as(data, tier2) as (_, peer):
            assert await _first(peer, len(expected(8))) == expected(8)
            told = await peer.ask(wire.ReadSegment(SEGMENT, len(expected(8)), 1_000, "", 1))
            assert told.error_code == wire.DAMAGED_DATA  # the snapshot knew of it

    asyncio.run(read_on())


def test_a_copy_is_claimed_once_the_other_is_gone(data: Path, fake: tuple[str, Path]) -> None:
    tier2 = moved(data, fake[0])
    assert read(data, tier2) == expected(8)
    copy = data.with_name("copy")
    shutil.copytree(data, copy)
    assert read(data, tier2) == expected(8)
    shutil.rmtree(data)
    told = command("tier2", "claim", copy)
    assert told.exit_code == 0, told.output
    assert read(copy, tier2) == expected(8)


def test_a_store_without_chunks_isnt_claimed(data: Path, fake: tuple[str, Path]) -> None:
    tier2 = moved(data, fake[0])
    told = command("tier2", "claim", data, "--tier2", f"{URL}-2", "--tier2-option", f"endpoint={fake[0]}")
    assert told.exit_code == 1
    assert f"{URL}-2" in told.output
    assert read(data, tier2) == expected(8)


def test_where_nothing_is_mounted_no_chunk_is_called_lost(data: Path, tmp_path: Path) -> None:
    """The folder of the chunks is there, and empty."""
    place, away = tmp_path / "mounted", tmp_path / "away"
    data.rename(tmp_path / "before")
    assert command("migrate", tmp_path / "before", data, "--tier2", place.as_uri()).exit_code == 0
    assert read(data, Tier2(place.as_uri())) == expected(8)
    place.rename(away)
    place.mkdir()
    for asked in (("check", data), ("repair", data, "--yes")):
        told = command(*asked)
        assert told.exit_code == 1
        assert "isn't mounted" in told.output
        assert "LOST" not in told.output
    assert not list(place.iterdir())
    place.rmdir()
    away.rename(place)
    assert command("check", data).exit_code == 0
    assert read(data, Tier2(place.as_uri())) == expected(8)
