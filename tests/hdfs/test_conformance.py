"""Conformance suites of chunk store, engine and registry on a real HDFS, and a check that the fake client behaves
alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from nadi.object_log.engine import LogEngine, Registry
from nadi.object_log.hdfs import files as client
from nadi.object_log.hdfs.engine import open_hdfs
from nadi.object_log.hdfs.files import Client, error_for
from nadi.object_log.hdfs.location import where
from nadi.object_log.store_probe import prove
from nadi.runtime import REAL
from nadi.segmentstore.tier2.chunks import ChunkStore
from tests.conformance import test_chunk_store, test_log_engine, test_registry
from tests.support.hdfs.fake import FakeHdfs

test_parts = test_chunk_store.test_chunk_is_read_in_parts
test_none = test_chunk_store.test_one_that_is_not_there
test_gone = test_chunk_store.test_deleted_or_renamed_chunk_is_missing
test_damaged = test_chunk_store.test_damaged_blocks_are_reported
test_mark = test_chunk_store.test_a_store_has_a_mark_of_its_own
test_listed = test_chunk_store.test_listing_includes_modification_times
test_whole_and_in_parts = test_log_engine.test_object_is_read_completely_and_in_parts
test_set_by_version = test_registry.test_a_value_is_set_if_it_has_the_version

# the cluster takes ten seconds to start, and more on a busy machine
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def chunks(url: str) -> ChunkStore:
    return ChunkStore.from_url(url)


@pytest.fixture
def engine(url: str) -> LogEngine:
    return open_hdfs(url, REAL)[0]


@pytest.fixture
def registry(url: str) -> Registry:
    return open_hdfs(url, REAL)[1]


async def test_store_honours_conditions_of_a_claim(url: str) -> None:
    await prove(*open_hdfs(url, REAL), REAL)


async def _refused(call: Awaitable[object]) -> tuple[type[BaseException], str]:
    try:
        await call
    except (FileNotFoundError, FileExistsError) as error:
        return type(error), ""
    except Exception as error:
        return type(error), str(error_for("do it", error)).partition(":")[2].partition("(")[0].partition(";")[0]
    raise AssertionError("the call succeeded")


async def test_fake_client_raises_the_same_errors(url: str) -> None:
    location = where(url)
    loop = client._thread.running()
    real, fake = client.connect(location), FakeHdfs().connect(location)
    real_errors, fake_errors = [
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_refusals(hdfs, location.root), loop))
        for hdfs in (real, fake)
    ]
    assert real_errors == fake_errors


async def _refusals(hdfs: Client, root: str) -> list[tuple[type[BaseException], str]]:
    for name in ("a/x", "a/y"):
        await (await hdfs.create_file(f"{root}/{name}", 1 << 20, None)).close()
    await hdfs.make_folder(f"{root}/b")

    async def listed(path: str) -> list[str]:
        return sorted([entry.path async for entry in hdfs.list_status(path, True)])

    calls: list[Awaitable[object]] = [
        hdfs.get_file_info(f"{root}/none"),
        hdfs.read(f"{root}/none"),
        hdfs.read(f"{root}/a"),
        listed(f"{root}/none"),
        hdfs.create_file(f"{root}/a/x", 1 << 20, None),
        hdfs.create_file(f"{root}/a/x/z", 1 << 20, None),
        hdfs.make_folder(f"{root}/a/x/z"),
        hdfs.rename(f"{root}/a/x", f"{root}/a/y"),
        hdfs.rename(f"{root}/a/x", f"{root}/none/y"),
        hdfs.rename(f"{root}/none", f"{root}/a/z"),
        hdfs.rename(f"{root}/a", f"{root}/b"),
        hdfs.rename(f"{root}/a/x", f"{root}/b"),
        hdfs.delete(f"{root}/a"),
    ]
    refusals = [await _refused(call) for call in calls]
    assert await hdfs.delete(f"{root}/none") is False
    assert await listed(root) == [f"{root}/{name}" for name in ("a", "a/x", "a/y", "b")]
    return [(kind, message.replace(root, "")) for kind, message in refusals]
