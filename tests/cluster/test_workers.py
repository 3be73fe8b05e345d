"""Several processes serve one folder behind shared ports; a killed one is restarted, and no event is lost."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

import nadi
from nadi.config import ServerConfig
from nadi.errors import InvalidArgumentError, UnavailableError
from nadi.standalone.workers import Workers
from tests.cluster.servers import NOBODY_DIES
from tests.support.ports import free_port

pytestmark = pytest.mark.crash


def workers_of(
    count: int, folder: Path, port: int = 0, rest_port: int | None = 0, containers: int | None = 4
) -> Workers:
    config = ServerConfig(
        data=folder, workers=count, port=port, rest_port=rest_port, store_port=0, containers=containers
    )
    return Workers(config)


@contextmanager
def watched(workers: Workers, died: threading.Semaphore) -> Iterator[None]:
    until = threading.Event()
    watch = threading.Thread(target=workers.watch, args=(until, lambda _: died.release()))
    watch.start()
    try:
        yield
    finally:
        until.set()
        watch.join()


def test_killed_worker_is_restarted_without_loss(tmp_path: Path) -> None:
    died = threading.Semaphore(0)
    with workers_of(2, tmp_path / "data") as workers, watched(workers, died):
        assert len(set(workers.pids)) == 2
        with nadi.StreamManager(workers.controller_uri) as manager:
            manager.create_scope("home")
            manager.create_stream("home", "meters", segments=4)
            with manager.create_writer("home", "meters") as writer:
                for number in range(200):
                    writer.write_event(b"%d" % number, f"key-{number % 20}")
                writer.flush()
                os.kill(workers.pids[0], signal.SIGKILL)
                for number in range(200, 400):
                    writer.write_event(b"%d" % number, f"key-{number % 20}")
                writer.flush()
            assert died.acquire(timeout=60)
            end = manager.stream_info("home", "meters").tail
            events = [int(event.data) for event in manager.read_events("home", "meters", end=end)]
        assert sorted(events) == list(range(400))
        for key in range(20):
            of_key = [number for number in events if number % 20 == key]
            assert of_key == sorted(of_key)
        with urlopen(f"{workers.rest_uri}/v1/health/liveness") as answer:
            assert answer.status == 200
    with (  # one worker less, and all data is there
        workers_of(1, tmp_path / "data", containers=None) as workers,
        nadi.StreamManager(workers.controller_uri) as manager,
    ):
        end = manager.stream_info("home", "meters").tail
        assert len(list(manager.read_events("home", "meters", end=end))) == 400


def started_at(rest: str) -> str:
    """Return the start time of the process that answers /metrics there."""
    with urlopen(f"{rest}/metrics") as answer:
        text: str = answer.read().decode()
        return next(line for line in text.splitlines() if line.startswith("process_start_time_"))


def test_shared_port_always_answers_metrics_of_one_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NADI_LIMITS", NOBODY_DIES)
    port = free_port(count=3)
    with workers_of(2, tmp_path / "data", rest_port=port) as workers:
        own = {started_at(f"http://127.0.0.1:{port + 1 + number}") for number in range(2)}
        assert len(own) == 2
        shared = {started_at(workers.rest_uri) for _ in range(20)}  # each on a new connection
        assert len(shared) == 1
        assert shared < own
        with urlopen(f"{workers.rest_uri}/metrics") as answer:
            assert b"nadi_streams 0.0" in answer.read()


def test_data_folder_is_rejected_by_workers(tmp_path: Path) -> None:
    nadi.embedded(tmp_path / "data").stop()
    with pytest.raises(InvalidArgumentError, match="nadi migrate"), workers_of(1, tmp_path / "data"):
        pass


def test_workers_folder_is_rejected_by_server(tmp_path: Path) -> None:
    """A new, empty server must not start in the same folder."""
    with workers_of(1, tmp_path / "data"):
        pass
    before = sorted(path.name for path in (tmp_path / "data").iterdir())
    with pytest.raises(InvalidArgumentError, match="nadi up --workers N"):
        nadi.embedded(tmp_path / "data")
    assert set(before) >= {path.name for path in (tmp_path / "data").iterdir()} - {"lock"}


def test_taken_port_is_reported(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(UnavailableError, match=f"127.0.0.1:{port}"),
            workers_of(1, tmp_path, port),
        ):
            pass


@pytest.mark.parametrize("count", [0, 65])
def test_number_of_workers_is_checked(tmp_path: Path, count: int) -> None:
    with pytest.raises(InvalidArgumentError, match="workers"):
        workers_of(count, tmp_path)
