"""A folder's data is moved to a cluster and back while a writer is active: all events are there, once and in order."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from unittest import mock

import pytest

import nadi
from nadi.cli.admin.migrate import _ask_at, _ProgressBar
from nadi.client import StreamManager
from nadi.cluster.admin import cluster_view as looking
from nadi.cluster.membership_view import MembershipPace
from nadi.errors import DataFolderError, StoreError
from nadi.limits import MIGRATION_REMAINDER_BYTES
from nadi.migration.migrate import Migration
from nadi.migration.sources import ServedFolder
from nadi.migration.targets import NewCluster
from tests.migration.support import KEYS, LIMITS, Written, event, migrate, refused, run, store_of
from tests.support.ports import free_port

pytestmark = pytest.mark.timeout(300)


class Writing:
    """Writer that keeps writing while its server changes."""

    def __init__(self, uri: str, first: int) -> None:
        self.count, self._first, self._stop = first, first, threading.Event()
        self._manager = StreamManager(uri)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with self._manager.create_writer("home", "meters") as writer:
            while not self._stop.is_set():
                writer.write_event(event(self.count), routing_key=str(self.count % KEYS))
                self.count += 1
                time.sleep(0.005)

    def end(self) -> int:
        """Stop once everything is acknowledged; return the number of events."""
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "still waiting for an acknowledgement"
        self._manager.close()
        return self.count


@pytest.mark.parametrize("kind", ["folder", pytest.param("s3", marks=pytest.mark.slow)])
def test_migration_to_cluster_and_back_under_writes(kind: str, tmp_path: Path) -> None:
    data, back, port = tmp_path / "data", tmp_path / "back", free_port()
    with store_of(kind, tmp_path) as store:
        server = nadi.embedded(data, port=port, rest_port=0, environment=LIMITS)
        with StreamManager(server.controller_uri) as manager:
            written = Written(manager)
            writing = Writing(server.controller_uri, written.count)
            time.sleep(2)
            migrate(str(data), store.url, "--containers", "4", "--rest", server.rest_uri, store=store)
            count_at_pause = writing.count
            manager.create_reader("home", "meters").close()  # reads continue
            time.sleep(0.5)
            server.stop()
            with pytest.raises(DataFolderError, match=re.escape(store.url)):
                nadi.embedded(data)
            with store.server(port=port) as one, store.server() as two:
                time.sleep(1)
                written.count = writing.end()
                assert written.count > count_at_pause
                with StreamManager(two.controller_uri) as other:
                    written.check(other)
                    written.check_group(other)
                    written.commit(other)
                    written.write(other, 50)
                patient = MembershipPace(dead_s=60)  # watches live servers for long
                with mock.patch.object(looking, "MembershipPace", return_value=patient):
                    refusal = refused(store.url, str(back), store=store)
                assert "servers of the cluster are running" in refusal, refusal
                one.stop()
        migrate(store.url, str(back), "--verify", store=store)
        with pytest.raises(StoreError, match=re.escape(str(back))):
            store.server()
        checked = run("check", str(back))
        assert checked.returncode == 0, checked.stdout
        with nadi.embedded(back) as server, StreamManager(server.controller_uri) as manager:
            written.check(manager)
            written.check_group(manager)
            written.write(manager, 50)
            written.check(manager)
        checked = run("check", str(back))
        assert checked.returncode == 0, checked.stdout


async def test_recent_writes_are_copied_before_writers_are_held(tmp_path: Path) -> None:
    """Copying it during the pause would take seconds per gigabyte."""
    data, count = tmp_path / "data", 2_000
    with nadi.embedded(data, rest_port=0) as server, StreamManager(server.controller_uri) as manager:
        manager.create_scope("home")
        manager.create_stream("home", "meters", segments=3)
        with manager.create_writer("home", "meters") as writer:
            for number in range(count):
                writer.write_event(bytes(1_000), routing_key=str(number))
        source = ServedFolder(data, _ask_at(server.rest_uri, None), 60)
        async with source, NewCluster(f"file://{tmp_path}/store", {}, 2) as target:
            report = await Migration(source, target, _ProgressBar()).run(only_ahead=True)
        assert report.stored_bytes >= count * 1_000
        assert report.passes == 1 + (report.stored_bytes > MIGRATION_REMAINDER_BYTES)
