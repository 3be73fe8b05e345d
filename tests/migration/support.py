"""Target stores, `nadi migrate` in a separate process, and the data of a server before it is moved."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock
from uuid import UUID

from typer.testing import CliRunner

import nadi
from nadi.cli.app import app
from nadi.client import KeyValueTableConfiguration, StreamManager, TableKey
from nadi.client.blocking.classes import ReaderGroup
from nadi.standalone.embedded import EmbeddedServer
from tests.cluster.processes.stores import S3Store
from tests.cluster.processes.wires import Wires

KEYS = 5
LIMITS = {"NADI_LIMITS": "chunk_flush_age_s=0.5,snapshot_interval_s=0.5,cluster_settle_s=0.5"}
PATIENT = {"NADI_LIMITS": f"{LIMITS['NADI_LIMITS']},cluster_dead_s=60"}  # watches live servers for long


@dataclass(frozen=True)
class Store:
    """Store of a new cluster. options: for the command; store_options: for a server."""

    url: str
    options: tuple[str, ...] = ()
    store_options: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)

    def server(self, **more: object) -> EmbeddedServer:
        return nadi.embedded(store=self.url, store_options=self.store_options, environment=LIMITS, **more)  # type: ignore[arg-type]


@contextmanager
def store_of(kind: str, folder: Path) -> Iterator[Store]:
    """Yield a folder, or the fake S3 in a separate process."""
    if kind == "folder":
        yield Store(f"file://{folder}/store")
        return
    (folder / "s3").mkdir(parents=True)
    wires = Wires()
    s3 = S3Store(folder / "s3", wires)
    try:
        options_of_s3 = s3.options(0)
        options = ("--store-option", f"endpoint={options_of_s3['endpoint']}", "--store-option", "region=us-east-1")
        secrets = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
        yield Store("s3://bucket/nadi", options, options_of_s3, secrets)
    finally:
        s3.close()
        wires.close()


def begin(*arguments: str, store: Store, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "nadi.cli.app", "migrate", *arguments, *store.options]
    own = {**os.environ, **LIMITS, **store.environment, **(environment or {})}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=own)


def migrate(*arguments: str, store: Store, environment: dict[str, str] | None = None) -> str:
    """Run `nadi migrate` successfully; return its output."""
    process = begin(*arguments, store=store, environment=environment)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return output


def refused(*arguments: str, store: Store) -> str:
    """Run a failing `nadi migrate` in this process, which is faster; return its output."""
    with mock.patch.dict(os.environ, store.environment):
        ran = CliRunner().invoke(app, ["migrate", *arguments, *store.options])
    assert ran.exit_code in (1, 2), ran.output
    return " ".join(ran.output.split())


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nadi.cli.app", *arguments], capture_output=True, text=True, check=False
    )


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def event(number: int) -> bytes:
    return b"%d:%s" % (number, b"x" * (number % 700))


def keyed(events: Sequence[bytes]) -> dict[int, list[int]]:
    """Return the numbers of events, by key, in order."""
    by_key: dict[int, list[int]] = {}
    for data in events:
        number, _, padding = data.partition(b":")
        assert padding == b"x" * (int(number) % 700)
        by_key.setdefault(int(number) % KEYS, []).append(int(number))
    return by_key


def expected(count: int) -> dict[int, list[int]]:
    return keyed([event(number) for number in range(count)])


class Written:
    """Data of a server: a stream with events and a bookmark, an open transaction, a reader group that has read some
    events, a table, and a retention policy."""

    def __init__(self, manager: StreamManager) -> None:
        self.count = 0
        manager.create_scope("home")
        manager.create_stream("home", "meters", segments=3)
        manager.create_stream("home", "orders")
        self.write(manager, 300)
        self.cut = manager.stream_info("home", "meters").tail
        self.bookmarked = self.count
        self.write(manager, 100)
        with manager.create_transaction_writer("home", "orders", lease_ms=600_000) as writer:
            transaction = writer.begin_txn()
            for number in range(20):
                transaction.write_event(b"%d" % number, routing_key="a")
            transaction.flush()
            self.transaction: UUID = transaction.txn_id
        groups = manager.reader_group_manager("home")
        groups.create_reader_group("billing", "meters", refresh_ms=100)
        self.read = self.read_by_group(groups.get_reader_group("billing"), 150)
        configuration = KeyValueTableConfiguration(primary_key_bytes=4, partitions=3)
        manager.create_key_value_table("home", "table", configuration)
        table = manager.key_value_table("home", "table")
        self.versions = {number: table.put(TableKey(b"%04d" % number), b"v%d" % number) for number in range(40)}

    def write(self, manager: StreamManager, count: int) -> None:
        with manager.create_writer("home", "meters") as writer:
            for number in range(self.count, self.count + count):
                writer.write_event(event(number), routing_key=str(number % KEYS))
        self.count += count

    @staticmethod
    def read_by_group(group: ReaderGroup, most: int) -> list[bytes]:
        """Read up to `most` events by the group."""
        events: list[bytes] = []
        with group.create_reader("reader") as reader:
            while len(events) < most and (read := reader.read_next_event(timeout=60)) is not None:
                if read.event is not None:
                    events.append(read.event)
        return events

    def check(self, manager: StreamManager) -> None:
        """Check that all data is there."""
        end = manager.stream_info("home", "meters").tail
        assert keyed([item.data for item in manager.read_events("home", "meters", end=end)]) == expected(self.count)
        events = [item.data for item in manager.read_events("home", "meters", start=self.cut, end=end)]
        assert sorted(int(item.partition(b":")[0]) for item in events) == list(range(self.bookmarked, self.count))
        table = manager.key_value_table("home", "table")
        for number, version in self.versions.items():
            entry = table.get(TableKey(b"%04d" % number))
            assert entry is not None
            assert (entry.value, entry.version) == (b"v%d" % number, version)

    def check_group(self, manager: StreamManager) -> None:
        """Check that the group continues at its position, and reads each event once."""
        group = manager.reader_group_manager("home").get_reader_group("billing")
        self.read += self.read_by_group(group, self.count - len(self.read))
        numbers = [int(item.partition(b":")[0]) for item in self.read]
        assert sorted(numbers) == list(range(self.count))
        assert keyed(self.read) == expected(self.count)

    def commit(self, manager: StreamManager) -> None:
        """Continue the transaction, and commit it."""
        with manager.create_transaction_writer("home", "orders", lease_ms=600_000) as writer:
            transaction = writer.get_txn(self.transaction)
            transaction.write_event(b"20", routing_key="a")
            transaction.commit(wait=True)
        end = manager.stream_info("home", "orders").tail
        orders = [int(item.data) for item in manager.read_events("home", "orders", end=end)]
        assert orders == list(range(21))
