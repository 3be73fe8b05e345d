"""`nadi tier2`, `nadi check` and `nadi repair` of a folder whose chunks are in a fake S3 process."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from nadi.cli.app import app
from nadi.errors import DataFolderError
from nadi.segmentstore.data_dir import Tier2, has_chunks
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.write_freeze import WriteFreeze
from nadi.wire import commands as wire
from tests.object_log.test_fake_s3 import KEYS, running
from tests.segmentstore.harness import Peer
from tests.segmentstore.tier2.elsewhere import SEGMENT, URL, append, expected, move, opened_as


def command(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Path]]:
    """Run a fake S3; yield its endpoint and the folder with its objects."""
    for name, value in KEYS.items():
        monkeypatch.setenv(f"AWS_{name.upper()}", value)
    with running(tmp_path / "s3") as (_, endpoint):
        yield endpoint, tmp_path / "s3"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with two local chunks, and data in the log."""

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
    """Migrate the folder's chunks to the fake S3."""
    old = data.with_name("before")
    data.rename(old)
    result = command("migrate", old, data, "--tier2", URL, "--tier2-option", f"endpoint={endpoint}")
    assert result.exit_code == 0, result.output
    assert f"nadi up --data {data} --tier2 {URL}" in result.output.replace("\n", "")
    return Tier2(URL, {"endpoint": endpoint})


async def _first(peer: Peer, length: int) -> bytes:
    data = b""
    while len(data) < length:
        data += bytes((await peer.ask(wire.ReadSegment(SEGMENT, len(data), length - len(data), "", 1))).data)
    return data


def objects(s3: Path) -> list[Path]:
    return [path for path in s3.iterdir() if path.name.startswith("chunks%2Fcontainer-0")]


def test_migrate_to_tier2_and_back(data: Path, fake: tuple[str, Path]) -> None:
    endpoint, s3 = fake
    tier2 = moved(data, endpoint)
    assert not has_chunks(data)
    assert len(objects(s3)) == 3
    assert command("check", data).exit_code == 0
    assert read(data, tier2) == expected(8)
    assert command("check", data).exit_code == 0
    assert f"chunks in {URL}" in command("check", data).output
    result = command("migrate", data, "s3://b/p", "--tier2", "s3://b/q")
    assert result.exit_code == 2
    assert "--tier2" in result.output.replace("\n", "")
    result = command("migrate", data, data.with_name("back"))
    assert result.exit_code == 0, result.output
    assert read(data.with_name("back"), None) == expected(8)
    with pytest.raises(DataFolderError, match=re.escape(str(data.with_name("back")))):
        read(data, tier2)


def test_check_and_repair_of_damaged_chunks_name_the_stream(data: Path, fake: tuple[str, Path]) -> None:
    tier2 = moved(data, fake[0])

    async def damage() -> None:
        chunks = ChunkStore.from_url(tier2.url, **tier2.options)
        flipped, deleted, _ = sorted(await chunks.listed("container-0"))
        body = bytearray(await chunks.read(flipped, 0, 1 << 20))
        body[10] ^= 1
        await chunks.replace(flipped, [body])
        await chunks.delete(deleted)

    asyncio.run(damage())
    result = command("check", data)
    assert result.exit_code == 1
    assert result.output.count("scope/stream") >= 2
    result = command("repair", data, "--yes")
    assert "a server can be started; reading LOST data raises an error" in result.output, result.output

    async def read_rest() -> bytes:
        async with opened_as(data, tier2) as (_, peer):
            at = len(expected(6))
            return bytes((await peer.ask(wire.ReadSegment(SEGMENT, at, 10_000, "", 1))).data)

    assert asyncio.run(read_rest())[:8] == expected(8)[len(expected(6)) :][:8]


def test_claim_and_repair_rebuild_a_lost_folder_from_tier_2(data: Path, fake: tuple[str, Path]) -> None:
    """Data tiered before the last snapshot is restored; data only in the log is lost."""
    tier2 = moved(data, fake[0])

    async def write() -> None:
        async with opened_as(data, tier2) as (store, peer):
            store.storage_writers[0].start()
            await WriteFreeze(store).refresh()
            await store.storage_writers[0].stop()
            await append(peer, 9, 9)

    asyncio.run(write())
    shutil.rmtree(data)
    options = "--tier2", URL, "--tier2-option", f"endpoint={fake[0]}"
    result = command("tier2", "claim", data, *options)
    assert result.exit_code == 0, result.output
    assert command("tier2", "claim", data, *options).exit_code == 0
    result = command("repair", data, "--yes")
    assert "a server can be started" in result.output, result.output

    async def read_restored() -> None:
        async with opened_as(data, tier2) as (_, peer):
            assert await _first(peer, len(expected(8))) == expected(8)
            reply = await peer.ask(wire.ReadSegment(SEGMENT, len(expected(8)), 1_000, "", 1))
            assert reply.error_code == wire.DAMAGED_DATA  # the snapshot refers to it

    asyncio.run(read_restored())


def test_claim_for_a_copied_folder_succeeds(data: Path, fake: tuple[str, Path]) -> None:
    tier2 = moved(data, fake[0])
    assert read(data, tier2) == expected(8)
    copy = data.with_name("copy")
    shutil.copytree(data, copy)
    assert read(data, tier2) == expected(8)
    shutil.rmtree(data)
    result = command("tier2", "claim", copy)
    assert result.exit_code == 0, result.output
    assert read(copy, tier2) == expected(8)


def test_claim_of_a_store_without_chunks_fails(data: Path, fake: tuple[str, Path]) -> None:
    tier2 = moved(data, fake[0])
    result = command("tier2", "claim", data, "--tier2", f"{URL}-2", "--tier2-option", f"endpoint={fake[0]}")
    assert result.exit_code == 1
    assert f"{URL}-2" in result.output.replace("\n", "")
    assert read(data, tier2) == expected(8)


def test_check_without_the_mounted_tier_2_reports_no_loss(data: Path, tmp_path: Path) -> None:
    """The chunks' folder exists, but is empty."""
    mount, unmounted = tmp_path / "mounted", tmp_path / "unmounted"
    data.rename(tmp_path / "before")
    assert command("migrate", tmp_path / "before", data, "--tier2", mount.as_uri()).exit_code == 0
    assert read(data, Tier2(mount.as_uri())) == expected(8)
    mount.rename(unmounted)
    mount.mkdir()
    for arguments in (("check", data), ("repair", data, "--yes")):
        result = command(*arguments)
        assert result.exit_code == 1
        assert "mounted" in result.output
        assert "LOST" not in result.output
    assert not list(mount.iterdir())
    mount.rmdir()
    unmounted.rename(mount)
    assert command("check", data).exit_code == 0
    assert read(data, Tier2(mount.as_uri())) == expected(8)
