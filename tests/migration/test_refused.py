"""Rejected migrations, and undo."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path

import pytest

import nadi
from nadi.cli.admin.migrate import _ask_at, _ProgressBar
from nadi.client import StreamManager
from nadi.errors import ConflictError, DataFolderError, NadiError, StoreError
from nadi.migration.migrate import Migration
from nadi.migration.sources import ServedFolder
from nadi.migration.targets import NewCluster
from tests.migration.support import LIMITS, PATIENT, Store, Written, files, migrate, refused

pytestmark = pytest.mark.timeout(300)


def test_nonempty_target_is_rejected(data: Path, tmp_path: Path) -> None:
    store = Store(f"file://{tmp_path}/store")
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "mine").write_text("mine")
    assert "mine" in refused(str(data), store.url, store=store)
    (tmp_path / "store" / "mine").unlink()
    store.server().stop()
    assert "already belongs to a cluster" in refused(str(data), store.url, store=store)
    assert "already a data folder" in refused(store.url, str(data), store=store)
    with nadi.embedded(data):
        pass


def test_target_of_another_migration_is_rejected(data: Path, tmp_path: Path) -> None:
    other, store = tmp_path / "other", Store(f"file://{tmp_path}/store")
    nadi.embedded(other).stop()
    migrate(str(other), store.url, "--ahead", store=store)
    assert "is unfinished" in refused(str(data), store.url, store=store)
    output = refused(str(other), store.url, "--containers", "3", store=store)
    assert "8 containers" in output


def test_overlapping_source_and_target_are_rejected(data: Path) -> None:
    store = Store(f"file://{data}")
    assert "itself" in refused(str(data), store.url, store=store)
    inner = Store(f"file://{data}/store")
    assert "inside the other" in refused(str(data), inner.url, store=inner)
    assert "inside the other" in refused(inner.url, str(data), store=inner)
    assert not (data / "store").exists()


def test_a_dry_run_writes_nothing(data: Path, tmp_path: Path) -> None:
    store, back = Store(f"file://{tmp_path}/store"), tmp_path / "back"
    to, back_again = (str(data), store.url), (store.url, str(back))
    before = files(data)
    output = migrate(*to, "--dry-run", store=store)
    assert "segments in 1 container, " in output, output
    assert files(data) == before
    assert not (tmp_path / "store").exists()
    migrate(*to, "--ahead", store=store)
    migrate(*to, "--dry-run", store=store)
    refused(*to, "--dry-run", "--ahead", store=store)
    migrate(*to, store=store)
    assert store.url in refused(*to, "--dry-run", store=store)
    with store.server():
        migrate(*back_again, "--dry-run", store=store, environment=PATIENT)
    assert "segments in 8 containers" in migrate(*back_again, "--dry-run", store=store)
    assert not back.exists()
    assert "already a data folder" in refused(store.url, str(data), "--dry-run", store=store)


def test_missing_or_unreachable_source_is_rejected(data: Path, tmp_path: Path) -> None:
    store = Store(f"file://{tmp_path}/store")
    plain = tmp_path / "plain"
    plain.mkdir()
    assert str(tmp_path / "no") in refused(str(tmp_path / "no"), store.url, store=store)
    assert str(plain) in refused(str(plain), store.url, store=store)
    refused(str(data), store=store)
    refused(store.url, store=store)
    with nadi.embedded(data), nadi.embedded(tmp_path / "other", rest_port=0) as other:
        arguments = str(data), store.url, "--rest"
        assert "127.0.0.1:9" in refused(*arguments, "http://127.0.0.1:9", store=store)
        assert "doesn't serve" in refused(*arguments, other.rest_uri, store=store)
    with nadi.embedded(data) as server, StreamManager(server.controller_uri) as manager:
        assert manager.list_streams("home") == ["meters"]


async def test_short_pause_limit_resumes_writers(data: Path, tmp_path: Path) -> None:
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
                await asyncio.to_thread(manager.create_stream, "home", "later")  # once writers resume
                await put(number, state, sequence, epoch)

            target.put = slow  # type: ignore[method-assign]
            with pytest.raises(ConflictError):
                await Migration(source, target, _ProgressBar()).run()
    with nadi.embedded(data) as server, StreamManager(server.controller_uri) as manager:
        assert "later" in manager.list_streams("home")
    with pytest.raises(StoreError, match="migration"):
        nadi.embedded(store=url)


@pytest.mark.slow
def test_undo_returns_data_to_the_source(tmp_path: Path) -> None:
    data, store = tmp_path / "data", Store(f"file://{tmp_path}/store")
    with nadi.embedded(data, environment=LIMITS) as server, StreamManager(server.controller_uri) as manager:
        written = Written(manager)
    assert "wasn't moved" in refused("--undo", str(data), store=store)
    to = str(data), store.url, "--containers", "2"
    migrate(*to, store=store)
    assert "still has the data" in refused("--undo", str(data), store=store)
    with pytest.raises(DataFolderError, match=re.escape(store.url)):
        nadi.embedded(data)
    shutil.rmtree(tmp_path / "store")
    migrate("--undo", str(data), store=store)
    with nadi.embedded(data, environment=LIMITS) as server, StreamManager(server.controller_uri) as manager:
        written.write(manager, 30)
    migrate(*to, store=store)  # again, with the additional events
    with store.server() as server, StreamManager(server.controller_uri) as manager:
        written.check(manager)
    assert "still has the data" in refused("--undo", str(data), store=store)
    back = tmp_path / "back"
    migrate(store.url, str(back), store=store)
    assert f"nadi migrate {back} TO" in refused("--undo", store.url, store=store)
    for path in sorted(back.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    migrate("--undo", store.url, store=store)
    with store.server() as server, StreamManager(server.controller_uri) as manager:
        written.check(manager)
    with pytest.raises(DataFolderError, match=re.escape(store.url)):
        nadi.embedded(data)


def test_incomplete_target_folder_is_not_served(data: Path, tmp_path: Path) -> None:
    """Wherever its store is."""
    store = Store("")  # no cluster
    (tmp_path / "chunks").mkdir()
    chunks = (tmp_path / "chunks").as_uri()
    for new, tier2 in ((tmp_path / "inside", ""), (tmp_path / "outside", chunks)):
        options = ("--tier2", tier2) if tier2 else ()
        migrate(str(data), str(new), *options, "--ahead", store=store)
        migrate(str(data), str(new), *options, "--dry-run", store=store)
        for tier2_given in ("", chunks):
            with pytest.raises(NadiError, match="migration"), nadi.embedded(new, tier2=tier2_given):
                pass
    migrate(str(data), str(new), *options, store=store)
    with nadi.embedded(new, tier2=chunks):
        pass


def test_malformed_url_is_rejected(data: Path, tmp_path: Path) -> None:
    store = Store("")
    for place in ("file:/there", "s3:bucket/there"):
        assert f"{place[: place.index(':')]}://" in refused(str(data), place, store=store)
    assert "600 s" in refused(str(data), str(tmp_path / "new"), "--pause-limit", "nan", store=store)
