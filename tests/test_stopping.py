"""Servers always stop, even if a step never ends, and acknowledged data is there at the next start."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nadi
from nadi import shutdown
from nadi.client import StreamManager
from nadi.cluster import node
from nadi.cluster.proxy.request_proxy import RequestProxy
from nadi.config import ServerConfig
from nadi.controller.controller import Controller
from nadi.controller.grpc.server import rpc_server
from nadi.errors import (
    DataFolderError,
    DataFolderLockedError,
    InvalidArgumentError,
    NadiError,
    RequestTimeoutError,
    UnavailableError,
)
from nadi.limits import STOP_S
from nadi.segmentstore.container.container import Container
from nadi.segmentstore.data_dir import FolderLock
from nadi.segmentstore.store import SegmentStore
from nadi.shutdown import ShutdownSteps, end_within
from nadi.standalone import assembly, clustered, server
from nadi.standalone.clustered import ClusterServer
from nadi.standalone.server import Server
from tests.support.waiting import until, until_async

SHORT_S = 0.2


async def never() -> None:
    await asyncio.get_running_loop().create_future()


async def never_whatever() -> None:
    """Never end, not even when cancelled, for three seconds."""
    until = math.inf
    while time.monotonic() < until:
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            until = min(until, time.monotonic() + 3)


@pytest.mark.parametrize("hangs", [never, never_whatever])
async def test_step_that_never_ends_is_abandoned(hangs: Callable[[], object], caplog: pytest.LogCaptureFixture) -> None:
    done: list[str] = []

    async def does(what: str) -> None:
        done.append(what)

    async with ShutdownSteps() as first:
        first.step("the store", lambda: does("store"), SHORT_S, after_all=True)
        first.step("the cache", lambda: does("cache"), SHORT_S)
        first.step("a door", hangs, SHORT_S)  # type: ignore[arg-type]
        first.step("the clients", lambda: does("clients"), SHORT_S, after_all=True)
        ending = first.pop_all()
    await ending.aclose()
    assert done == ["clients", "cache"]
    (said,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert said.startswith("not closed within 0.2 s: a door")


@pytest.mark.parametrize("fails", [True, False], ids=["fails", "is cancelled"])
async def test_object_of_an_abandoned_step_is_abandoned(fails: bool) -> None:
    """Parts of it may still run: if one container of a segment store fails, the others are still being closed."""
    begun, may_fail, done = asyncio.Event(), asyncio.Event(), list[str]()

    async def close() -> None:
        begun.set()
        await may_fail.wait()
        raise ValueError("so")

    async def used() -> None:
        done.append("used")

    ending = ShutdownSteps()
    ending.step("what it uses", used, 60.0, after_all=True)
    ending.step("the store", close, 60.0)
    stop = asyncio.create_task(ending.aclose())
    await begun.wait()
    if fails:
        may_fail.set()
    else:
        stop.cancel()
    with pytest.raises(ValueError if fails else asyncio.CancelledError):
        await stop
    assert done == []


async def test_a_step_that_an_earlier_one_has_cancelled_ends_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    door = asyncio.create_task(never())

    async def close() -> None:
        await door

    done: list[str] = []

    async def closes() -> None:
        done.append("store")

    async with ShutdownSteps() as ending:
        ending.step("the store", closes, SHORT_S)
        ending.step("the door", close, SHORT_S)
        ending.step("both doors", close, SHORT_S)  # which cancels what the next one waits for
    assert done == ["store"]
    assert [text for text in caplog.messages if "cancelled" in text] == ["closing was cancelled: the door"]


async def test_cancelled_shutdown_cancels_the_step() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def waits() -> None:
        begun.set()
        try:
            await never()
        finally:
            ended.set()

    ending = asyncio.create_task(end_within(60.0, "it", waits))
    await begun.wait()
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    await until_async(ended.is_set)


def abandoned(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the abandoned steps, from the log."""
    said = [record.getMessage() for record in caplog.records]
    return [match[1] for text in said if (match := re.match(r"not closed within \S+ s: ([^;]+)", text))]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (
        (assembly, "STOP_PORT_S"),
        (clustered, "STOP_PORT_S"),
        (server, "STOP_PORT_S"),
        (server, "STOP_STORE_S"),
        (node, "STOP_PORT_S"),
        (node, "CLUSTER_BREAK_S"),
    ):
        monkeypatch.setattr(module, name, SHORT_S)


class Doors:
    """gRPC servers that stop only when forced."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._made: list[Any] = []
        self._really = rpc_server
        monkeypatch.setattr(assembly, "rpc_server", self._make)

    def _make(self, **how: Any) -> Any:
        made = self._really(**how)
        self._made.append((made, made.stop))
        made.stop = lambda grace: never()
        return made

    async def really_stop(self) -> None:
        for _, stop in self._made:
            await stop(0)


@pytest.mark.usefixtures("short")
async def test_cluster_server_always_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    doors, close = Doors(monkeypatch), SegmentStore.close
    for kind in (SegmentStore, RequestProxy):
        monkeypatch.setattr(kind, "close", lambda self: never())
    one = ClusterServer(ServerConfig(store=f"file://{tmp_path}/store", store_port=0, port=0, containers=2))
    await one.start()
    async with asyncio.timeout(60):
        await one.stop()
    assert abandoned(caplog) == ["the gRPC port", "the connections to other servers", "the segment store"]
    assert not one.cache.exists()
    await close(one.store)
    await doors.really_stop()


@pytest.mark.usefixtures("short")
async def test_folder_server_always_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    doors, close, stop = Doors(monkeypatch), SegmentStore.close, Controller.stop
    monkeypatch.setattr(SegmentStore, "close", lambda self: never())
    monkeypatch.setattr(Controller, "stop", lambda self: never())
    one = Server(ServerConfig(data=tmp_path / "data", store_port=0, port=0, rest_port=0))
    await one.start()
    async with asyncio.timeout(60):
        await one.stop()
    left = [what for what in abandoned(caplog) if what != "the REST port"]  # which a slow machine may not close in time
    assert left == ["the gRPC port", "the controller", "the data folder"]
    with pytest.raises(DataFolderLockedError):  # what writes there still may
        FolderLock(tmp_path / "data")
    await stop(one.controller)
    await close(one.store)
    await doors.really_stop()


async def test_the_steps_of_a_folder_s_server_fit_in_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if each step takes all of its time, and then ignores its cancellation."""
    limits: dict[str, float] = {}
    step = ShutdownSteps.step

    def spied(self: ShutdownSteps, what: str, end: Any, limit_s: float, *, after_all: bool = False) -> None:
        limits[what] = limit_s + shutdown._CANCELLED_S
        step(self, what, end, limit_s, after_all=after_all)

    monkeypatch.setattr(ShutdownSteps, "step", spied)
    one = Server(ServerConfig(data=tmp_path / "data", store_port=0, port=0, rest_port=0))
    await one.start()
    await one.stop()
    assert {"the data folder", "the REST port", "the gRPC port", "this server's internal clients"} <= set(limits)
    assert sum(limits.values()) < STOP_S


def test_embedding_process_waits_for_the_servers_own_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.limits.STOP_S", 1.0)
    monkeypatch.setattr(sys.modules["nadi.standalone.embedded"], "KILL_AFTER_S", 1.0)
    one = nadi.embedded(tmp_path / "data")
    os.kill(one.pid, signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(RequestTimeoutError):
        one.stop()
    assert 1.5 < time.monotonic() - began < 20
    assert one.has_ended


FAILS_AND_STAYS = """
import os, pathlib, signal, time

pathlib.Path({path!r}).write_text(str(os.getpid()))
signal.signal(signal.SIGTERM, signal.SIG_IGN)
{says}
time.sleep(600)
"""
SAYS = 'os.write(1, b\'{"error": "so", "error_kind": "folder"}\\n\')'


def _start_that_fails_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, stop_s: float, timeout_s: float = 60.0
) -> None:
    monkeypatch.setattr("nadi.limits.STOP_S", stop_s)
    monkeypatch.setattr(sys.modules["nadi.standalone.embedded"], "KILL_AFTER_S", 0.0)
    (tmp_path / "sitecustomize.py").write_text(FAILS_AND_STAYS.format(path=str(tmp_path / "pid"), says=says))
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    nadi.embedded(tmp_path / "data", environment={"PYTHONPATH": path}, timeout_s=timeout_s)


def _is_gone(pid: int) -> bool:
    """Return whether the process has ended; kill it otherwise."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return True
    return False


SO = pytest.raises(DataFolderError, match=r"^so$")
KILLED = pytest.raises(UnavailableError)
ODD = pytest.raises(UnavailableError)
LATE = pytest.raises(RequestTimeoutError)


@pytest.mark.parametrize(
    ("says", "error", "stop_s", "timeout_s"),
    [
        pytest.param(SAYS, SO, 0.5, 60.0, id="with an error"),
        pytest.param(SAYS.replace(r"\n", r"\nmore"), SO, 0.5, 20.0, id="with an error and half a line"),
        pytest.param("os.close(1)", KILLED, 0.5, 60.0, id="and closes its output"),
        pytest.param("os.write(1, b'hello\\n')", ODD, 600.0, 60.0, id="and prints a text"),
        pytest.param("os.write(1, b'null\\n')", ODD, 600.0, 60.0, id="and prints null"),
        pytest.param("os.write(1, b'\\xff\\n')", ODD, 600.0, 60.0, id="and prints no text"),
        pytest.param("", LATE, 600.0, 3.0, id="and says nothing"),
        pytest.param("os.write(1, b'{')", LATE, 600.0, 3.0, id="and says half a line"),
    ],
)
def test_a_server_that_fails_to_start_and_stays_is_killed(
    says: str,
    error: pytest.RaisesExc[NadiError],
    stop_s: float,
    timeout_s: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with error:
        _start_that_fails_and_stays(tmp_path, monkeypatch, says, stop_s, timeout_s)
    assert _is_gone(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize("says", [SAYS, "os.close(1)"], ids=["with an error", "and closes its output"])
def test_failed_server_is_killed_on_keyboard_interrupt(
    says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = subprocess.Popen.wait

    def wait(self: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        if timeout is not None:
            raise KeyboardInterrupt
        return waited(self)

    monkeypatch.setattr(subprocess.Popen, "wait", wait)
    with pytest.raises(KeyboardInterrupt):
        _start_that_fails_and_stays(tmp_path, monkeypatch, says, 600.0)
    assert _is_gone(int((tmp_path / "pid").read_text()))


def test_folder_with_a_non_utf8_name_works(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"\xff\xfe")
    with nadi.embedded(folder) as server, StreamManager(server.controller_uri) as manager:
        manager.create_scope("home")
        manager.create_stream("home", "meters")
        with manager.create_writer("home", "meters") as writer:
            writer.write_event(b"kept", routing_key="a")
        with pytest.raises(DataFolderError):
            nadi.embedded(folder)
        server.kill()
    with nadi.embedded(folder) as server, StreamManager(server.controller_uri) as manager:
        end = manager.stream_info("home", "meters").tail
        assert [bytes(event.data) for event in manager.read_events("home", "meters", end=end)] == [b"kept"]


def test_folder_with_a_too_long_name_raises(tmp_path: Path) -> None:
    with pytest.raises(DataFolderError):
        nadi.embedded(tmp_path / ("x" * 300))


@pytest.mark.parametrize("ports", [{"port": 70_000}, {"port": -1}, {"rest_port": 65_536}])
def test_invalid_port_raises(ports: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="65535"):
        nadi.embedded(tmp_path / "data", **ports)


def test_a_server_starts_beside_many_open_files(tmp_path: Path) -> None:
    """`select` takes no descriptor over 1,023."""
    held = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(held[0], min(2_000, held[1])), held[1]))
    files: list[int] = []
    try:
        while not files or files[-1] < 1_100:
            files.append(os.open(os.devnull, os.O_RDONLY))
        with nadi.embedded(tmp_path / "data") as server:
            assert server.controller_uri
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, held)


async def test_containers_are_closed_at_one_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each waits separately for a tier 2 that doesn't answer."""
    stopping, count = 0, 3
    all_at_it, really = asyncio.Event(), Container.stop

    async def stop(self: Container) -> None:
        nonlocal stopping
        stopping += 1
        if stopping == count:
            all_at_it.set()
        await all_at_it.wait()
        await really(self)

    monkeypatch.setattr(Container, "stop", stop)
    store = SegmentStore(tmp_path, count)
    await store.start()
    async with asyncio.timeout(60):
        await store.close()


HANGS = """
import asyncio, threading
from nadi.segmentstore import store

async def close(self):
    await asyncio.to_thread(threading.Event().wait)

store.SegmentStore.close = close
"""


@pytest.mark.parametrize("kind", ["folder", "cluster"])
def test_hanging_thread_does_not_keep_the_process(kind: str, tmp_path: Path) -> None:
    """Acknowledged data is there at the next start."""
    (tmp_path / "hangs").mkdir()
    (tmp_path / "hangs" / "sitecustomize.py").write_text(HANGS)
    short = "stop_store_s=0.3,cluster_break_s=0.3,cluster_leave_s=2,stop_s=4,cluster_stop_s=4"
    limits = {"NADI_LIMITS": f"{short},cluster_settle_s=0.5"}
    path = os.pathsep.join([str(tmp_path / "hangs"), *filter(None, [os.environ.get("PYTHONPATH")])])
    where = {"folder": tmp_path / "data"} if kind == "folder" else {"store": f"file://{tmp_path}/store"}
    hanging = nadi.embedded(**where, environment={**limits, "PYTHONPATH": path})
    with StreamManager(hanging.controller_uri) as manager:
        manager.create_scope("home")
        manager.create_stream("home", "meters")
        with manager.create_writer("home", "meters") as writer:
            for number in range(100):
                writer.write_event(b"%d" % number, routing_key="a")
    began = time.monotonic()
    hanging.stop()
    assert time.monotonic() - began < 25, "it was killed, or nearly"
    assert hanging._process.returncode == 1
    with (
        nadi.embedded(**where, environment=limits) as again,
        StreamManager(again.controller_uri) as manager,
    ):
        end = manager.stream_info("home", "meters").tail
        events = [int(event.data) for event in manager.read_events("home", "meters", end=end)]
        assert events == list(range(100))


STARTS = """
import asyncio, pathlib
from nadi.segmentstore import store

folder, really = pathlib.Path({folder!r}), store.SegmentStore.start

async def start(self):
    (folder / "begun").touch()
    while not (folder / "continue").exists():
        await asyncio.sleep(0.01)
    await really(self)

store.SegmentStore.start = start
"""


@pytest.mark.parametrize("ends", [True, False], ids=["a start that ends", "a start that doesn't"])
def test_a_server_that_starts_can_be_stopped(ends: bool, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(STARTS.format(folder=str(tmp_path)))
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "NADI_LIMITS": "stop_s=60" if ends else "stop_s=1"}
    ports = [f"--{door}port=0" for door in ("", "store-", "rest-")]
    command = [sys.executable, "-m", "nadi", "up", "--data", str(tmp_path / "data"), *ports]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            until((tmp_path / "begun").exists)
            process.terminate()
            if ends:
                (tmp_path / "continue").touch()
            printed, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == (0 if ends else 1)
    assert b"is serving" not in printed
    assert (b"within 1 s" in said) != ends
    FolderLock(tmp_path / "data").release()
