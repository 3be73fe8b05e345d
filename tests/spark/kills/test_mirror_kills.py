"""Kill a driver at each step of its batches, with rows and without, mostly losing its checkpoint. The queries are
restored from their mirrors under Spark's default settings: the windows' counts match a plain count, each once. Each
kill hits all queries of the driver, one of them at the named step. NADI_SPARK_SEED repeats a run's choices.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

import nadi
from nadi.client.scan.connection import ConnectionSettings
from nadi.errors import NotFoundError
from nadi.spark.connections import client_of
from nadi.spark.mirror import restore
from tests.spark.kills.killing import STEPS, end_driver, kill, said, start_driver

SEED = int(os.environ.get("NADI_SPARK_SEED", str(random.randrange(1_000_000))))
ANY = "at any time"
pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(3000)]


class Job:
    """The driver and the writer: a second of event time every few ms, with pauses, in which Spark has batches without
    rows."""

    def __init__(
        self, folder: Path, chance: random.Random, uri: str, manager: nadi.StreamManager, queries: int
    ) -> None:
        self._folder, self._chance, self._uri, self._manager, self._queries = folder, chance, uri, manager, queries
        for name in ("orders", "taken"):
            (folder / name).mkdir()
        self.written: Counter[int] = Counter()
        self.last = 0
        self.restored = self.from_nothing = self.in_place = 0
        self._stop = threading.Event()
        self._feeding = threading.Thread(target=self._feed, args=(random.Random(chance.random()),))
        self._driver: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._feeding.start()
        self._start_driver()

    def _feed(self, chance: random.Random) -> None:
        with self._manager.create_writer("home", "in") as writer:
            while not self._stop.wait(chance.choice([0.05, 0.2, 1.5])):
                self.last += chance.randrange(12)
                for _ in range(chance.randrange(1, 20)):
                    at = max(
                        self.last - chance.randrange(5), 0
                    )  # Spark's first watermark is 1970: before it all is late
                    writer.write_event(b"%d" % at, str(chance.randrange(50)))
                    self.written[at // 10 * 10] += 1
                writer.flush()

    def kill_at(self, step: str) -> None:
        """Have the driver killed when a query reaches that step, and restart it, mostly with nothing but the
        mirrors."""
        if step == ANY:
            before, give_up = self.through(), time.monotonic() + 300
            while self.through() == before:
                assert time.monotonic() < give_up, f"nothing comes through: {said(self._folder)}"
                time.sleep(0.1)
            time.sleep(self._chance.uniform(0, 2))
            kill("driver", self._folder)
        else:
            (self._folder / "draft").write_text("driver")
            order = f"{self._chance.randrange(self._queries)}.{step}"
            (self._folder / "draft").rename(self._folder / "orders" / order)
        assert self._driver is not None
        give_up = time.monotonic() + 300
        while self._driver.poll() is None:
            assert time.monotonic() < give_up, f"no batch comes to the step {step}: {said(self._folder)}"
            time.sleep(0.02)
        assert self._driver.returncode != 3, said(self._folder)
        end_driver(self._driver)
        for number in range(self._queries):
            if self._chance.random() < 0.75:
                self._lose_checkpoint(number)
            else:
                self.in_place += 1
        self._start_driver()

    def _lose_checkpoint(self, number: int) -> None:
        folder, client = self._folder / f"checkpoint-{number}", client_of(ConnectionSettings(self._uri))
        shutil.rmtree(folder, ignore_errors=True)
        try:
            client.run(restore(client.manager, "home", f"windows-{number}", str(folder)))
            self.restored += 1
        except NotFoundError:
            self.from_nothing += 1

    def _start_driver(self) -> None:
        self._driver = start_driver("mirror_main", self._folder, self._uri, str(self._folder), str(self._queries))
        (self._folder / "processes.json").write_text(json.dumps({"driver": self._driver.pid}))

    def windows(self, number: int) -> list[tuple[int, int]]:
        stream = f"out-{number}"
        end = self._manager.stream_info("home", stream).tail
        events = [event.data.decode().split(":") for event in self._manager.read_events("home", stream, end=end)]
        return [(int(start), int(count)) for start, count in events]

    def through(self) -> int:
        """Return the number of windows written by all queries."""
        return sum(len(self.windows(number)) for number in range(self._queries))

    def check(self) -> None:
        """Close all windows, and compare the output with the input."""
        self._stop.set()
        self._feeding.join(30)
        with self._manager.create_writer("home", "in") as writer:
            writer.write_event(b"%d" % (self.last + 1000), "k")
        give_up = time.monotonic() + 300
        while self.through() < len(self.written) * self._queries and time.monotonic() < give_up:
            assert self._driver is not None
            assert self._driver.poll() is None, said(self._folder)
            time.sleep(0.1)
        for number in range(self._queries):
            assert sorted(self.windows(number)) == sorted(self.written.items())

    def close(self) -> None:
        self._stop.set()
        if self._driver is not None:
            end_driver(self._driver)
        self._feeding.join(30)


@pytest.mark.parametrize(
    ("steps", "queries"),
    [
        pytest.param(["committed", "mirrored"], 2, id="few"),
        pytest.param([*STEPS, "mirrored", "committed", ANY, ANY], 4, id="many"),
    ],
)
def test_a_restored_query_counts_each_window_once_whenever_it_is_killed(
    tmp_path: Path, steps: list[str], queries: int
) -> None:
    chance = random.Random(SEED)
    steps = chance.sample(steps, len(steps))
    print(f"seed {SEED}, {len(steps)} kills of {queries} queries")
    with nadi.embedded(tmp_path / "data") as server, nadi.StreamManager(server.controller_uri) as manager:
        manager.create_scope("home")
        for stream in ("in", *(f"out-{number}" for number in range(queries))):
            manager.create_stream("home", stream, 2)
        job = Job(tmp_path, chance, server.controller_uri, manager, queries)
        try:
            job.start()
            for number, step in enumerate(steps):
                job.kill_at(step)
                print(f"{number + 1}: {step}, {job.through()} windows", flush=True)
            job.check()
        finally:
            job.close()
        print(f"{sum(job.written.values())} events, {len(job.written)} windows, {job.restored} restores,")
        print(f"{job.in_place} starts with the checkpoint, {job.from_nothing} with neither", flush=True)
