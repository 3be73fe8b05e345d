"""Claims by copies of a folder, by the wrong folder, and killed halfway: no chunk of anybody's is lost."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from nadi.cli.admin.migrate import _Shown
from nadi.engines import outcomes
from nadi.errors import DataFolderError, StoreError, UnavailableError
from nadi.migration.moving import Migration
from nadi.migration.sources import StoppedFolder
from nadi.migration.targets import NewFolder
from nadi.runtime import REAL
from nadi.segmentstore.datafolder import TIER2, Tier2, has_chunks
from nadi.segmentstore.holding import Hold
from nadi.segmentstore.store import SegmentStore
from nadi.segmentstore.tier1.writer import FrameWriter
from nadi.segmentstore.tier2.opening import claim_anew
from tests.segmentstore.tier2.elsewhere import SEGMENT, URL, append, expected, move, opened, opened_as
from tests.support.fake_s3.server import FakeS3
from tests.support.folders import as_a_kill_leaves_it

pytestmark = pytest.mark.uvloop


async def written(folder: Path) -> None:
    """A folder with two chunks of its own."""
    async with opened_as(folder, None) as (store, peer):
        for first, last in ((1, 3), (4, 6)):
            await append(peer, first, last)
            await move(store)


async def moved_out(folder: Path, fake: FakeS3, url: str = URL) -> None:
    """Its data is in a folder of that name then, and its chunks there."""
    old = folder.with_name(f"{folder.name}-before")
    await asyncio.to_thread(folder.rename, old)
    async with StoppedFolder(old) as source, NewFolder(folder, None, Tier2(url, fake.config())) as target:
        await Migration(source, target, _Shown()).run()


async def claimed(folder: Path, fake: FakeS3, url: str = URL) -> None:
    await claim_anew(folder, Tier2(url, fake.config()), REAL)


async def killed(*_: object) -> None:
    raise UnavailableError("killed")


async def test_a_first_start_that_was_killed_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the store knows of it, and after: the folder doesn't."""
    real = outcomes.was_set

    async def killed_afterwards(*arguments: object) -> None:
        await real(*arguments)  # type: ignore[arg-type]
        raise StoreError("killed")

    async def killed_before(*_: object) -> None:
        raise StoreError("killed")

    async with FakeS3() as fake:
        for stop in (killed_before, killed_afterwards):
            with monkeypatch.context() as patched:
                patched.setattr(outcomes, "was_set", stop)
                with pytest.raises(StoreError, match="killed"):
                    async with opened(tmp_path, fake):
                        pass
        async with opened(tmp_path, fake) as (store, peer):
            await append(peer, 1, 3)
            await move(store)
            assert await peer.read_all(SEGMENT) == expected(3)


async def test_a_claim_of_another_store_that_is_killed_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All objects were copied there."""
    async with FakeS3() as fake:
        await written(tmp_path / "data")
        await moved_out(tmp_path / "data", fake)
        for key, found in list(fake.objects.now.items()):
            copy = key.replace("chunks/", "copied/", 1)
            await fake.objects.put(copy, found.body, absent=False, etag=None, generation=None)
        with monkeypatch.context() as patched:
            patched.setattr(outcomes, "was_set", killed)
            with pytest.raises(UnavailableError, match="killed"):
                await claimed(tmp_path / "data", fake, "s3://bucket/copied")
        await claimed(tmp_path / "data", fake, "s3://bucket/copied")
        async with opened(tmp_path / "data", fake, "s3://bucket/copied") as (_, peer):
            assert await peer.read_all(SEGMENT) == expected(6)


async def test_the_store_of_another_folder_isnt_claimed(tmp_path: Path) -> None:
    async with FakeS3() as fake:
        for name in ("a", "b"):
            await written(tmp_path / name)
            await moved_out(tmp_path / name, fake, f"s3://bucket/{name}")
        with pytest.raises(StoreError, match="the chunks of another data folder: see whether the URL is right"):
            await claimed(tmp_path / "a", fake, "s3://bucket/b")
        for name in ("a", "b"):
            async with opened(tmp_path / name, fake, f"s3://bucket/{name}") as (_, peer):
                assert await peer.read_all(SEGMENT) == expected(6)


async def test_a_folder_with_chunks_of_its_own_claims_none(tmp_path: Path) -> None:
    """They would be deleted when the others are moved back."""
    async with FakeS3() as fake:
        for name in ("a", "b"):
            await written(tmp_path / name)
        await moved_out(tmp_path / "b", fake)
        with pytest.raises(DataFolderError, match=r"has its chunks in .*: `nadi migrate` moves them"):
            await claimed(tmp_path / "a", fake)
        assert has_chunks(tmp_path / "a")
        async with opened(tmp_path / "b", fake) as (_, peer):
            assert await peer.read_all(SEGMENT) == expected(6)


async def test_a_folder_that_isnt_there_isnt_claimed(tmp_path: Path) -> None:
    await written(tmp_path / "data")
    shutil.rmtree(tmp_path / "data" / TIER2)
    with pytest.raises(StoreError, match="see whether the URL is right"):
        await claim_anew(tmp_path / "data", Tier2((tmp_path / "typo").as_uri()), REAL)
    assert not (tmp_path / "typo").exists()


async def test_a_claim_that_is_killed_once_the_store_knows_of_it_keeps_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = outcomes.was_set

    async def killed_afterwards(*arguments: object) -> None:
        await real(*arguments)  # type: ignore[arg-type]
        await killed()

    async with FakeS3() as fake:
        await written(tmp_path / "data")
        await moved_out(tmp_path / "data", fake)
        with monkeypatch.context() as patched:
            patched.setattr(outcomes, "was_set", killed_afterwards)
            with pytest.raises(UnavailableError, match="killed"):
                await claimed(tmp_path / "data", fake)
        async with opened(tmp_path / "data", fake) as (_, peer):
            assert await peer.read_all(SEGMENT) == expected(6)


async def test_a_copy_that_has_lost_the_store_leaves_the_others_snapshot_alone(tmp_path: Path) -> None:
    """Both number theirs alike; the store is all there is if the folder is lost."""

    async def keep(store: SegmentStore) -> None:
        store.storage_writers[0].start()
        await Hold(store).refresh()
        await store.storage_writers[0].stop()

    async with FakeS3() as fake, opened(tmp_path / "a", fake) as (first, peer):
        await append(peer, 1, 3)
        await keep(first)
        as_a_kill_leaves_it(tmp_path / "a", tmp_path / "b")
        async with opened(tmp_path / "b", fake) as (second, second_peer):
            await append(second_peer, 4, 5)
            await keep(second)
        there = {key: found.body for key, found in fake.objects.now.items() if "/snapshots/" in key}
        await append(peer, 6, 6)
        keeping = asyncio.create_task(keep(first))
        async with asyncio.timeout(60):
            await first.taken.wait()
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        now = {key: found.body for key, found in fake.objects.now.items()}
        assert {key: now.get(key) for key in there} == there


async def test_a_store_in_another_folder_is_not_claimed(tmp_path: Path) -> None:
    """Its folder may have it open, and its lock is all that guards it."""
    await written(tmp_path / "own")
    url = (tmp_path / "own" / TIER2).as_uri()
    with pytest.raises(StoreError, match="is in a data folder"):
        await claim_anew(tmp_path / "other", Tier2(url), REAL)
    with pytest.raises(StoreError, match="is in a data folder"):
        async with opened_as(tmp_path / "third", Tier2(url)):
            pass
    async with opened_as(tmp_path / "own", None) as (_, peer):
        assert await peer.read_all(SEGMENT) == expected(6)


async def test_a_claim_of_a_lost_folder_that_was_killed_is_no_new_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It isn't served without its chunks, and the claim is done again."""
    folder = tmp_path / "data"
    async with FakeS3() as fake:
        async with opened(folder, fake) as (_, peer):
            await append(peer, 1, 3)
        await asyncio.to_thread(shutil.rmtree, folder)
        folder.mkdir()
        with monkeypatch.context() as patched:
            patched.setattr(outcomes, "was_set", killed)
            with pytest.raises(UnavailableError, match="killed"):
                await claimed(folder, fake)
        with pytest.raises(DataFolderError, match="start it with --tier2 s3://bucket/chunks"):
            async with opened_as(folder, None):
                pass
        await claimed(folder, fake)


async def test_a_store_whose_records_were_put_back_is_refused(tmp_path: Path) -> None:
    """Nobody has opened a copy of the folder, and the error says so."""
    async with FakeS3() as fake:
        async with opened(tmp_path, fake):
            before = dict(fake.objects.now)
        async with opened(tmp_path, fake):
            pass
        name = next(key for key in before if key.endswith("containers/0"))
        fake.objects.now[name] = before[name]
        with pytest.raises(StoreError, match=r"containers/0 in .* is older than what"):
            async with opened(tmp_path, fake):
                pass


async def test_a_link_to_the_store_is_refused(tmp_path: Path) -> None:
    """Two folders could have it, each with a lock of its own."""
    await written(tmp_path / "data")
    (tmp_path / "data" / TIER2).rename(tmp_path / "large-disk")
    (tmp_path / "data" / TIER2).symlink_to(tmp_path / "large-disk")
    with pytest.raises(DataFolderError, match="tier2 is a link"):
        async with opened_as(tmp_path / "data", None):
            pass


async def test_a_first_start_after_a_migration_that_is_killed_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the log's first file is there, and no frame is in it."""

    class KilledError(Exception):
        pass

    def dies(*_: object) -> None:
        raise KilledError

    async with FakeS3() as fake:
        await written(tmp_path / "data")
        await moved_out(tmp_path / "data", fake)
        with monkeypatch.context() as patched:
            patched.setattr(FrameWriter, "write", dies)
            with pytest.raises(KilledError):
                async with opened(tmp_path / "data", fake):
                    pass
        assert list((tmp_path / "data" / "container-0" / "log").glob("log-*.nadi"))
        async with opened(tmp_path / "data", fake) as (_, peer):
            assert await peer.read_all(SEGMENT) == expected(6)
