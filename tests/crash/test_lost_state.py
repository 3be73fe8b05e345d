"""The state is lost after kills under load: log and tier 2 alone must restore it, record by record."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from urllib.request import urlopen

import msgspec
import pytest

import nadi
from nadi.client import StreamManager
from nadi.errors import StreamNotFoundError
from nadi.standalone.embedded import EmbeddedServer
from tests.crash.load import SCOPE, STREAM, TABLE, Digests
from tests.crash.test_kills import KILLS, SMALL_LIMITS, running
from tests.segmentstore.state_tables import apart, copy_of, recovered
from tests.support.waiting import until


def killed_folder(folder: Path, seed: int, containers: int, kills: int) -> None:
    """Create the folder of a server that was killed `kills` times under load, and then once more."""
    with running(folder, seed, containers) as run:
        for number in range(kills):
            if number % 3 == 0:
                run.scaler.start()
            time.sleep(run.random.uniform(0.3, 1.2))
            run.kill_and_restart()
        run.scaler.join()
        records = folder / "tier2" / "containers"
        deadline = time.monotonic() + 60
        while (
            sum(b"/base-" in path.read_bytes() for path in records.glob("*")) < containers
            and time.monotonic() < deadline
        ):
            time.sleep(0.05)
        time.sleep(1.0)  # deltas follow the bases
        run.server.kill()


def is_settled(server: EmbeddedServer) -> bool:
    """Return whether operations in flight at the kill, such as a deletion, are finished."""
    with urlopen(f"{server.rest_uri}/v1/health/details/controller") as reply:
        return bool(msgspec.json.decode(reply.read())["unfinished"]["workflows"] == 0)


def what_readers_see(folder: Path) -> dict[str, str]:
    """Return head, tail and all events of every stream, and the table."""
    seen = {}
    with nadi.embedded(folder, rest_port=0) as server, StreamManager(server.controller_uri) as manager:
        until(lambda: is_settled(server))
        with manager.create_transaction_writer(SCOPE, STREAM) as writer:
            writer.begin_txn().commit(wait=True, timeout=60)  # after transactions that were committing at the kill
        for scope in manager.list_scopes():
            for stream in manager.list_streams(scope):
                try:
                    info = manager.stream_info(scope, stream)
                except StreamNotFoundError:  # its deletion was in progress at the kill, and is finished now
                    continue
                digests = Digests()
                for event in manager.read_events(scope, stream, end=info.tail):
                    digests.take(event.segment_id, event.offset, event.data)
                seen[f"{scope}/{stream}"] = f"{info.head} {info.tail} {sorted(digests.result().items())}"
        table = manager.table(SCOPE, TABLE)
        for key in [b"count", *(b"key-%d" % number for number in range(200))]:
            seen[repr(key)] = repr(table.get(key))
    return seen


def check_that_nothing_is_lost(folder: Path) -> None:
    """Compare with the state file left by the killed server, written by checkpoints, not by a snapshot."""
    left = recovered(copy_of(folder, "left"), from_state=True)
    assert list(map(apart, recovered(folder))) == list(map(apart, left))
    assert what_readers_see(folder) == what_readers_see(folder)


@pytest.mark.crash
@pytest.mark.timeout(180)
@pytest.mark.parametrize("containers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_state_made_again_is_the_lost_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, containers: int) -> None:
    monkeypatch.setenv("NADI_LIMITS", SMALL_LIMITS)
    killed_folder(tmp_path / "data", random.randrange(1 << 32), containers, kills=2)
    check_that_nothing_is_lost(tmp_path / "data")


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.timeout(240 + 15 * KILLS)
def test_a_state_made_again_after_many_kills_is_the_lost_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NADI_LIMITS", SMALL_LIMITS)
    seed = int(os.environ.get("NADI_CRASH_SEED", random.randrange(1 << 32)))
    killed_folder(tmp_path / "data", seed, 4, KILLS)
    check_that_nothing_is_lost(tmp_path / "data")
