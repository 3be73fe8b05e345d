"""Encrypted stores of real servers: nothing readable is stored, keys are needed, damage and kills are survived."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import nadi
from nadi.cli.app import app
from nadi.client import StreamManager
from nadi.config import ServerSecurity
from nadi.encryption.master_keys import new_key
from nadi.errors import DamagedDataError, EncryptionKeyError, InvalidArgumentError
from nadi.standalone.embedded import EmbeddedServer

pytest.importorskip("cryptography", reason="encryption needs cryptography")
LIMITS = (
    "chunk_flush_age_s=0.2,chunk_flush_bytes=65536,checkpoint_interval_s=0.1,storage_writer_tick_s=0.05,"
    "snapshot_interval_s=0.2,run_least_bytes=8192,cache_max_bytes=65536"
)
SCOPE, STREAM, TABLE = "private-scope", "private-stream", "private-table"
COUNT = 10_000
KINDS = pytest.mark.parametrize(
    "cluster", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["folder", "cluster"]
)


class Store:
    """A store and its servers, all in `folder`. master: the file of master keys. tier2: outside the data folder."""

    def __init__(
        self,
        folder: Path,
        *,
        encrypted: bool = True,
        cluster: bool = False,
        tier2: Path | None = None,
        name: str = "data",
        limits: str = LIMITS,
    ) -> None:
        self.root, self.data, self.master, self.limits = folder, folder / name, folder / "master.key", limits
        if not self.master.exists():
            self.master.write_text(new_key() + "\n")
        self.security = ServerSecurity(encryption_key=f"file:{self.master}" if encrypted else None)
        self.cluster, self.tier2 = cluster, self.data / "tier2" if tier2 is None else tier2
        self._place: dict[str, Any] = {"store": self.data.as_uri()} if cluster else {}
        if tier2 is not None:
            self._place = {"tier2": tier2.as_uri()}

    def open(self, security: ServerSecurity | None = None) -> EmbeddedServer:
        folder = None if self.cluster else self.data
        environment = {"NADI_LIMITS": self.limits, "TMPDIR": str(self.root)}
        return nadi.embedded(folder, security=security or self.security, environment=environment, **self._place)

    def rotate(self) -> None:
        place = self.data.as_uri() if self.cluster else str(self.data)
        self.nadi("key", "rotate", place)

    def nadi(self, *words: str, code: int = 0, key: bool = True) -> str:
        """Run a command with the master key in the environment; return its output."""
        environment = {"NADI_ENCRYPTION_KEY": f"file:{self.master}" if key else ""}
        result = CliRunner().invoke(app, words, env=environment)
        assert result.exit_code == code, result.output
        return result.output

    def chunks(self) -> list[Path]:
        folder = self.data if self.cluster else self.tier2
        return sorted(path for path in folder.glob("container-*/0*/*") if "#" not in path.name)  # "#": unfinished


@contextmanager
def serving(store: Store) -> Iterator[StreamManager]:
    with store.open() as server, StreamManager(server.controller_uri) as manager:
        yield manager


def event(number: int) -> bytes:
    return b"private-event-%06d" % number + b"." * 100


def write(manager: StreamManager, numbers: range) -> None:
    with manager.create_writer(SCOPE, STREAM) as writer:
        for number in numbers:
            writer.write_event(event(number), f"private-key-{number:06d}")


def fill(manager: StreamManager, count: int = COUNT) -> None:
    manager.create_scope(SCOPE)
    manager.create_stream(SCOPE, STREAM, 1)
    write(manager, range(count))
    table = manager.table(SCOPE, TABLE)
    table.create()
    for number in range(20):
        table.put(b"private-row-%d" % number, b"private-value-%d" % number)


def events(manager: StreamManager) -> list[bytes]:
    tail = manager.stream_info(SCOPE, STREAM).tail
    return [bytes(read.data) for read in manager.read_events(SCOPE, STREAM, end=tail)]


def rows(manager: StreamManager) -> dict[bytes, bytes]:
    table, keys = manager.table(SCOPE, TABLE), [b"private-row-%d" % number for number in range(20)]
    return {key: entry.value for key in keys if (entry := table.get(key)) is not None}


def readable(folder: Path, text: bytes = b"private-") -> dict[str, int]:
    """Return how often the text is found in each file, as stored or compressed by zlib."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            data = path.read_bytes()
            with_unpacked = data
            try:
                with_unpacked += zlib.decompressobj().decompress(data)
            except zlib.error:
                pass
            if count := with_unpacked.count(text):
                found[str(path.relative_to(folder))] = count
    return found


def key_of(chunk: Path) -> int:
    """Return the id of the data key that sealed a chunk; 0 if it was deleted meanwhile."""
    return int.from_bytes(chunk.read_bytes()[:4], "little") if chunk.exists() else 0


def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end, "too late"
        time.sleep(0.05)


@pytest.mark.parametrize("kind", ["folder", pytest.param("tier 2 elsewhere", marks=pytest.mark.slow), "cluster"])
def test_nothing_that_was_written_is_found_in_any_file(tmp_path: Path, kind: str) -> None:
    elsewhere = tmp_path / "elsewhere" if kind == "tier 2 elsewhere" else None
    store = Store(tmp_path, cluster=kind == "cluster", tier2=elsewhere)
    server = store.open()
    with StreamManager(server.controller_uri) as manager:
        fill(manager)
        until(store.chunks)
    server.kill()
    assert readable(tmp_path) == {}
    with serving(store) as manager:
        assert events(manager) == [event(number) for number in range(COUNT)]
        assert rows(manager) == {b"private-row-%d" % n: b"private-value-%d" % n for n in range(20)}
        write(manager, range(COUNT, COUNT + 100))
    assert readable(tmp_path) == {}


def test_without_encryption_it_is_found(tmp_path: Path) -> None:
    """So the search above can find it."""
    store = Store(tmp_path, encrypted=False)
    server = store.open()
    parts = ("container-0/log/", "tier2/container-0/", "tier2/snapshots/", "container-0/state/")

    def is_in_all() -> bool:
        try:
            found = readable(tmp_path)
        except FileNotFoundError:  # deleted meanwhile
            return False
        return all(any(f"data/{part}" in name for name in found) for part in parts)

    with StreamManager(server.controller_uri) as manager:
        fill(manager)
        until(is_in_all)
    server.kill()
    assert sum(readable(tmp_path).values()) >= COUNT  # in the log or in chunks, or in both


@KINDS
def test_a_server_without_the_right_key_refuses_to_start(tmp_path: Path, cluster: bool) -> None:
    store = Store(tmp_path, cluster=cluster)
    with serving(store) as manager:
        fill(manager, 10)
    files = {path: path.stat().st_mtime_ns for path in store.data.rglob("container-*/**/*")}
    with pytest.raises(EncryptionKeyError, match="is encrypted: name the source of its master key"):
        store.open(ServerSecurity())
    right = store.master.read_text()
    store.master.write_text(new_key() + "\n")
    with pytest.raises(EncryptionKeyError, match="pass the right key"):
        store.open()
    store.master.unlink()
    with pytest.raises(EncryptionKeyError, match="can't be read from"):
        store.open()
    assert {path: path.stat().st_mtime_ns for path in store.data.rglob("container-*/**/*")} == files
    store.master.write_text(right)
    with serving(store) as manager:
        assert len(events(manager)) == 10


@KINDS
def test_a_store_without_encryption_stays_so(tmp_path: Path, cluster: bool) -> None:
    store = Store(tmp_path, cluster=cluster, encrypted=False)
    with serving(store) as manager:
        fill(manager, 10)
    with pytest.raises(InvalidArgumentError, match="was created without encryption"):
        store.open(ServerSecurity(encryption_key=f"file:{store.master}"))


def test_lost_data_keys_are_never_recreated(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with serving(store) as manager:
        fill(manager, 10)
    for name in ("data", "data-copy"):
        (store.data / "tier2/keys" / name).rename(tmp_path / f"kept-{name}")
    with pytest.raises(EncryptionKeyError, match="has lost its data keys"):
        store.open()
    (tmp_path / "kept-data-copy").rename(store.data / "tier2/keys/data-copy")
    with serving(store) as manager:
        assert len(events(manager)) == 10


@KINDS
def test_keys_rotate_under_load_and_nothing_is_rewritten(tmp_path: Path, cluster: bool) -> None:
    store = Store(tmp_path, cluster=cluster)
    old = store.master.read_text()
    server = store.open()
    with StreamManager(server.controller_uri) as manager:
        manager.create_scope(SCOPE)
        manager.create_stream(SCOPE, STREAM, 1)
        count, stops = 0, threading.Event()

        def load() -> None:
            nonlocal count
            while not stops.is_set():
                write(manager, range(count, count + 50))
                count += 50

        thread = threading.Thread(target=load)
        thread.start()
        until(store.chunks)
        store.master.write_text(new_key() + "\n" + old)
        store.rotate()
        until(lambda: any(key_of(chunk) == 2 for chunk in store.chunks()))
        stops.set()
        thread.join()
    server.kill()
    store.master.write_text(store.master.read_text().splitlines()[0] + "\n")  # the old master key isn't needed
    with serving(store) as manager:
        assert events(manager) == [event(number) for number in range(count)]
    assert readable(tmp_path) == {}


def test_a_damaged_byte_in_a_chunk_is_an_error_and_never_wrong_bytes(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with serving(store) as manager:
        fill(manager, 2_000)
        until(store.chunks)
    chunk = store.chunks()[0]
    data = bytearray(chunk.read_bytes())
    data[1_000] ^= 1
    chunk.write_bytes(data)
    with serving(store) as manager, pytest.raises(DamagedDataError):
        events(manager)
    assert "is encrypted" in store.nadi("check", str(store.data), code=1, key=False)
    assert "LOST" in store.nadi("check", str(store.data), code=1)


def test_a_migration_encrypts_and_never_decrypts(tmp_path: Path) -> None:
    store = Store(tmp_path, encrypted=False)
    with serving(store) as manager:
        fill(manager, 500)
    sealed, third = tmp_path / "sealed", tmp_path / "third"
    store.nadi("migrate", str(store.data), str(sealed), "--encrypt")
    assert "sound" in store.nadi("check", str(sealed))
    store.nadi("migrate", str(sealed), third.as_uri())
    assert readable(sealed) == readable(third) == {}
    moved = Store(tmp_path, cluster=True, name="third")
    with serving(moved) as manager:
        assert events(manager) == [event(number) for number in range(500)]
        assert len(rows(manager)) == 20


def test_a_repair_works_with_the_key(tmp_path: Path) -> None:
    store = Store(tmp_path, limits="")
    server = store.open()  # takes no snapshot so soon
    with StreamManager(server.controller_uri) as manager:
        fill(manager, 200)
    server.kill()
    log = store.data / "container-0/log/log-0000000000000001.nadi"
    data = bytearray(log.read_bytes())
    data[4_096 + 80] ^= 1  # in the head of the first frame
    log.write_bytes(data)
    assert "LOST" in store.nadi("check", str(store.data), code=1)
    store.nadi("repair", str(store.data), "--yes", code=1)
    assert "sound" in store.nadi("check", str(store.data))
    assert readable(tmp_path) == {}
