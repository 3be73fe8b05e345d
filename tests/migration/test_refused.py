"""What a migration refuses, and taking one back."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

import nadi
from nadi.cli.admin.migrate import _ask_at, _Shown
from nadi.client import StreamManager
from nadi.errors import ConflictError, DataFolderError, NadiError, StoreError
from nadi.migration.migrate import Migration
from nadi.migration.sources import ServedFolder
from nadi.migration.targets import NewCluster
from tests.migration.support import LIMITS, PATIENT, Store, Written, files, migrate, refused

pytestmark = pytest.mark.timeout(300)


def test_a_target_that_is_not_empty(data: Path, tmp_path: Path) -> None:
    store = Store(f"file://{tmp_path}/store")
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "mine").write_text("mine")
    assert "holds mine" in refused(str(data), store.url, store=store)
    (tmp_path / "store" / "mine").unlink()
    store.server().stop()
    assert "a cluster already" in refused(str(data), store.url, store=store)
    assert "is a data folder already" in refused(store.url, str(data), store=store)
    with nadi.embedded(data):
        pass


def test_a_target_that_another_source_is_moved_to(data: Path, tmp_path: Path) -> None:
    other, store = tmp_path / "other", Store(f"file://{tmp_path}/store")
    nadi.embedded(other).stop()
    migrate(str(other), store.url, "--ahead", store=store)
    assert "hasn't ended" in refused(str(data), store.url, store=store)
    said = refused(str(other), store.url, "--containers", "3", store=store)
    assert "begun with 8 containers" in said


def test_the_same_place(data: Path) -> None:
    store = Store(f"file://{data}")
    assert "moved to itself" in refused(str(data), store.url, store=store)
    inner = Store(f"file://{data}/store")
    assert "within each other" in refused(str(data), inner.url, store=inner)
    assert "within each other" in refused(inner.url, str(data), store=inner)
    assert not (data / "store").exists()


def test_a_dry_run_writes_nothing(data: Path, tmp_path: Path) -> None:
    store, back = Store(f"file://{tmp_path}/store"), tmp_path / "back"
    to, there = (str(data), store.url), (store.url, str(back))
    before = files(data)
    said = migrate(*to, "--dry-run", store=store)
    assert "segments in 1 containers" in said, said
    assert files(data) == before
    assert not (tmp_path / "store").exists()
    migrate(*to, "--ahead", store=store)
    assert "unfinished migration" in migrate(*to, "--dry-run", store=store)
    assert "--ahead" in refused(*to, "--dry-run", "--ahead", store=store)
    migrate(*to, store=store)
    assert "was moved to" in refused(*to, "--dry-run", store=store)
    with store.server():
        assert "its servers must be stopped" in migrate(*there, "--dry-run", store=store, environment=PATIENT)
    assert "segments in 8 containers" in migrate(*there, "--dry-run", store=store)
    assert not back.exists()
    assert "is a data folder already" in refused(store.url, str(data), "--dry-run", store=store)


def test_what_is_not_there_or_not_reached(data: Path, tmp_path: Path) -> None:
    store = Store(f"file://{tmp_path}/store")
    plain = tmp_path / "plain"
    plain.mkdir()
    assert str(tmp_path / "no") in refused(str(tmp_path / "no"), store.url, store=store)
    assert "isn't a data folder" in refused(str(plain), store.url, store=store)
    assert "TO is" in refused(str(data), store=store)
    assert "TO is" in refused(store.url, store=store)
    with nadi.embedded(data), nadi.embedded(tmp_path / "other", rest_port=0) as other:
        arguments = str(data), store.url, "--rest"
        assert "http://127.0.0.1:9/" in refused(*arguments, "http://127.0.0.1:9", store=store)
        assert "doesn't serve" in refused(*arguments, other.rest_uri, store=store)
    with nadi.embedded(data) as server, StreamManager(server.controller_uri) as manager:
        assert manager.list_streams("home") == ["meters"]


async def test_a_pause_that_is_too_short_lets_writers_go_on(data: Path, tmp_path: Path) -> None:
    url, limit_s = f"file://{tmp_path}/store", 3.0
    with (
        nadi.embedded(data, rest_port=0, environment=LIMITS) as server,
        StreamManager(server.controller_uri) as manager,
    ):
        async with (
            ServedFolder(data, _ask_at(server.rest_uri, None), limit_s) as source,
            NewCluster(url, {}, 1) as target,
        ):
            put = target.put

            async def slow(number: int, state: Path, sequence: int, epoch: int) -> None:
                await asyncio.to_thread(manager.create_stream, "home", "later")  # as soon as writers go on
                await put(number, state, sequence, epoch)

            target.put = slow  # type: ignore[method-assign]
            with pytest.raises(ConflictError, match="the writers aren't held any more, and went on"):
                await Migration(source, target, _Shown()).run()
    with nadi.embedded(data) as server, StreamManager(server.controller_uri) as manager:
        assert "later" in manager.list_streams("home")
    with pytest.raises(StoreError, match="hasn't ended"):
        nadi.embedded(store=url)


@pytest.mark.slow
def test_taking_it_back(tmp_path: Path) -> None:
    data, store = tmp_path / "data", Store(f"file://{tmp_path}/store")
    with nadi.embedded(data, environment=LIMITS) as server, StreamManager(server.controller_uri) as manager:
        written = Written(manager)
    assert "wasn't moved" in refused("--undo", str(data), store=store)
    to = str(data), store.url, "--containers", "2"
    migrate(*to, store=store)
    assert "has the data" in refused("--undo", str(data), store=store)
    with pytest.raises(DataFolderError, match="was moved to"):
        nadi.embedded(data)
    shutil.rmtree(tmp_path / "store")
    assert "can be served again" in migrate("--undo", str(data), store=store)
    with nadi.embedded(data, environment=LIMITS) as server, StreamManager(server.controller_uri) as manager:
        written.write(manager, 30)
    migrate(*to, store=store)  # once more: with what has come since
    with store.server() as server, StreamManager(server.controller_uri) as manager:
        written.check(manager)
    assert "has the data" in refused("--undo", str(data), store=store)
    back = tmp_path / "back"
    migrate(store.url, str(back), store=store)
    assert "has the data" in refused("--undo", store.url, store=store)
    for path in sorted(back.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    migrate("--undo", store.url, store=store)
    with store.server() as server, StreamManager(server.controller_uri) as manager:
        written.check(manager)
    with pytest.raises(DataFolderError):
        nadi.embedded(data)


def test_a_folder_that_is_filled_is_not_served(data: Path, tmp_path: Path) -> None:
    """Wherever its store is to be."""
    store = Store("")  # of no cluster
    (tmp_path / "chunks").mkdir()
    chunks = (tmp_path / "chunks").as_uri()
    for new, tier2 in ((tmp_path / "inside", ""), (tmp_path / "outside", chunks)):
        options = ("--tier2", tier2) if tier2 else ()
        migrate(str(data), str(new), *options, "--ahead", store=store)
        assert "unfinished migration" in migrate(str(data), str(new), *options, "--dry-run", store=store)
        for given in ("", chunks):
            with pytest.raises(NadiError, match=r"a migration to .* hasn't ended"), nadi.embedded(new, tier2=given):
                pass
    migrate(str(data), str(new), *options, store=store)
    with nadi.embedded(new, tier2=chunks):
        pass


def test_what_looks_like_a_url(data: Path, tmp_path: Path) -> None:
    store = Store("")
    for place in ("file:/there", "s3:bucket/there"):
        assert f"{place} isn't a URL: use {place[: place.index(':')]}://" in refused(str(data), place, store=store)
    assert "600 s" in refused(str(data), str(tmp_path / "new"), "--pause-limit", "nan", store=store)
