"""kill -9 of a real server at random moments, under load, repeatedly.

After each restart no acknowledged event is lost or duplicated, each key's events are in order, transactions are
complete or absent, and a slice that was read before reads the same.

NADI_CRASH_KILLS and NADI_CRASH_SEED lengthen or repeat a run: half of the kills are of a server with one container, the
others of one with four.
"""

from __future__ import annotations

import contextlib
import os
import random
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import nadi
from nadi.client import StreamManager
from nadi.errors import ConflictError, InvalidArgumentError, UnavailableError
from nadi.model.streamcut import StreamCut
from tests.crash.load import (
    SCOPE,
    STREAM,
    Digests,
    KeyedWriter,
    Ledger,
    StreamCycle,
    TableWriter,
    TailReader,
    TransactionalWriter,
    Worker,
    read_slice,
)
from tests.support.ports import free_port

KILLS = int(os.environ.get("NADI_CRASH_KILLS", "6"))
# So that between kills files rotate, separate files are used, data moves to tier 2, chunks and records are dropped.
SMALL_LIMITS = (
    "chunk_flush_age_s=0.2,chunk_flush_bytes=65536,checkpoint_interval_s=0.1,storage_writer_tick_s=0.05,"
    "chunk_garbage_delay_s=0.5,log_file_bytes=1048576,cache_max_bytes=4194304,"
    "run_least_bytes=8192,run_file_bytes=262144,run_carry_bytes=16384,run_idle_s=0.05,"
    "records_in_memory=2,state_map_bytes=262144,snapshot_interval_s=0.2,snapshot_deltas=5"
)


class Scaler:
    """Splits or merges segments of the stream, one scale at a time, over kills."""

    def __init__(self, manager: StreamManager, seed: int) -> None:
        self._manager, self._random = manager, random.Random(seed)
        self._thread: threading.Thread | None = None
        self.error: BaseException | None = None
        self.done = 0

    def start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._scale, daemon=True)
            self._thread.start()

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join(120)
            assert not self._thread.is_alive(), "a scale operation hangs"
        if self.error is not None:
            raise self.error

    def _scale(self) -> None:
        try:
            segments = self._manager.current_segments(SCOPE, STREAM)
            place = self._random.randrange(len(segments))
            if len(segments) > 5 or (len(segments) > 1 and self._random.random() < 0.4):
                place = max(1, place)
                old = segments[place - 1 : place + 1]
                ranges = [(old[0].low, old[1].high)]
            else:
                old = segments[place : place + 1]
                middle = (old[0].low + old[0].high) / 2
                ranges = [(old[0].low, middle), (middle, old[0].high)]
            self._manager.scale_stream(SCOPE, STREAM, [segment.segment_id for segment in old], ranges)
            self.done += 1
        except (ConflictError, InvalidArgumentError, UnavailableError):
            pass  # its first answer was lost and it is done or running, or an earlier one is still running
        except BaseException as error:  # re-raised in the test's thread
            self.error = error


class Run:
    """One run: a server, its load, and the checks between two kills."""

    def __init__(self, folder: Path, seed: int, containers: int) -> None:
        self.random = random.Random(seed)
        self.folder, self.port = folder, free_port()
        self.server = nadi.embedded(folder, port=self.port, containers=containers)
        uri = self.server.controller_uri
        self.manager = StreamManager(uri)
        self.manager.create_scope(SCOPE)
        self.manager.create_stream(SCOPE, STREAM, 3)
        self.writers = [KeyedWriter(n, uri, seed + n) for n in range(3)]
        self.transactional = [TransactionalWriter(n, uri, seed + 10 + n) for n in range(2)]
        self.table = TableWriter(uri, seed + 20)
        self.tail = TailReader(uri, seed + 30)
        self.cycle = StreamCycle(uri, seed + 50)
        self.scaler = Scaler(self.manager, seed + 40)
        self.workers: list[Worker] = [*self.writers, *self.transactional, self.table, self.tail, self.cycle]
        self.ledger, self.digests = Ledger(), Digests()
        self.slices: list[tuple[StreamCut | None, StreamCut, dict[int, str]]] = []
        self.restart_s: list[float] = []
        self.first_ack_s: list[float] = []

    def acknowledged(self) -> dict[str, int]:
        return {key: count for writer in self.writers for key, count in writer.acknowledged.items()}

    def kill_and_restart(self) -> None:
        self.server.kill()
        began = time.monotonic()
        before = sum(self.acknowledged().values())
        self.server = nadi.embedded(self.folder, port=self.port)
        self.restart_s.append(time.monotonic() - began)
        while sum(self.acknowledged().values()) == before:
            for worker in self.workers:
                worker.check()
            assert time.monotonic() - began < 60, "no acknowledgement within a minute after the kill"
            time.sleep(0.005)
        self.first_ack_s.append(time.monotonic() - began)

    def check(self, promised: dict[str, int], promised_count: int) -> None:
        """Read new events; reread an older slice; compare with the acknowledgements before the kill."""
        for worker in self.workers:
            worker.check()
        start = self.slices[-1][1] if self.slices else None
        tail = self.manager.stream_info(SCOPE, STREAM).tail
        self._read(start, tail)
        for key, count in promised.items():
            found = self.ledger.next_number[key]
            assert found >= count, f"{key}: {count} events were acknowledged but {found} are stored"
        stored = self.table.value(self.manager)
        assert promised_count <= stored <= self.table.tried, f"the table has {stored}, acknowledged {promised_count}"
        again_from, again_to, digests = self.random.choice(self.slices)
        again = Digests()
        read_slice(self.manager, again_from, again_to, again.take)
        assert again.result() == digests, f"the slice from {again_from} to {again_to} has changed"

    def _read(self, start: StreamCut | None, end: StreamCut) -> None:
        digests = Digests()
        read_slice(
            self.manager, start, end, lambda _s, _o, event: self.ledger.take(event), self.digests.take, digests.take
        )
        self.slices.append((start, end, digests.result()))

    def finish(self) -> None:
        """End the load, then read the entire stream again, from the start."""
        self.scaler.join()
        for worker in [*self.writers, *self.transactional, self.table, self.cycle]:
            worker.finish()
        tail = self.manager.stream_info(SCOPE, STREAM).tail
        self._read(self.slices[-1][1] if self.slices else None, tail)
        whole, digests = Ledger(), Digests()
        read_slice(self.manager, None, tail, lambda _s, _o, event: whole.take(event), digests.take)
        assert digests.result() == self.digests.result(), "rereading the stream gives different events"
        deadline = time.monotonic() + 60
        while self.tail.ledger.events < whole.events and time.monotonic() < deadline:
            self.tail.check()
            time.sleep(0.05)
        self.tail.finish()
        for ledger in (self.ledger, whole, self.tail.ledger):
            for writer in self.writers:
                assert {key: ledger.next_number[key] for key in writer.keys} == writer.acknowledged == writer.written
            for number, transactions in enumerate(self.transactional):
                ledger.check_transactions(number, transactions)

    def figures(self) -> str:
        commits = sum(len(writer.committed) for writer in self.transactional)
        aborts = sum(len(writer.aborted) for writer in self.transactional)
        uncertain = sum(len(writer.uncertain) for writer in self.transactional)
        chunks = list((self.folder / "tier2").glob("container-*/*/*"))
        log_bytes = sum(path.stat().st_size for path in self.folder.glob("container-*/log/log-*.nadi"))
        return (
            f"{len(self.restart_s)} kills, {self.ledger.events:,} events, {commits} transactions committed, {aborts} "
            f"aborted, {uncertain} without an answer, {self.scaler.done} scales, {self.cycle.done} "
            f"streams truncated and deleted, {self.table.acknowledged} table updates, "
            f"{sum(path.is_file() for path in chunks)} chunks, {log_bytes:,} bytes of log; restart "
            f"{statistics.median(self.restart_s):.2f} s (most {max(self.restart_s):.2f}), first acknowledgement after "
            f"the kill {statistics.median(self.first_ack_s):.2f} s (most {max(self.first_ack_s):.2f})"
        )

    def end(self) -> None:
        self.server.kill()
        for worker in self.workers:
            worker.abandon()
        self.manager.close()


@contextlib.contextmanager
def running(folder: Path, seed: int, containers: int) -> Iterator[Run]:
    run = Run(folder, seed, containers)
    try:
        for worker in run.workers:
            worker.start()
        yield run
    except BaseException as error:
        error.add_note(f"repeat it with NADI_CRASH_SEED={seed} NADI_CRASH_KILLS={KILLS}; its data is in {folder}")
        raise
    finally:
        run.end()


@pytest.mark.crash
@pytest.mark.timeout(120 + 15 * KILLS)
@pytest.mark.parametrize("containers", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_repeatedly_killed_server_keeps_its_guarantees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, containers: int
) -> None:
    monkeypatch.setenv("NADI_LIMITS", SMALL_LIMITS)
    seed = int(os.environ.get("NADI_CRASH_SEED", random.randrange(1 << 32)))
    with running(tmp_path / "data", seed, containers) as run:
        for number in range((KILLS + 1) // 2):  # the other half uses the other number of containers
            if number % 3 == 0:
                run.scaler.start()
            time.sleep(run.random.uniform(0.0, 0.1) if run.random.random() < 0.25 else run.random.uniform(0.2, 1.0))
            promised, promised_count = run.acknowledged(), run.table.acknowledged
            run.kill_and_restart()
            run.check(promised, promised_count)
        run.finish()
        print(f"{containers} containers: {run.figures()}")
        if KILLS >= 20:  # a slow machine may not get as far in a short run
            assert run.scaler.done > 0, "no scale operation was done"
            assert run.cycle.done > 0, "no stream was truncated and deleted"
        assert any((tmp_path / "data" / "tier2").glob("container-*/*/*")), "nothing was moved to tier 2"
