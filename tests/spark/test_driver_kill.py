"""A stream-to-stream job whose driver is killed at random moments, while its input splits and merges: each event comes
out once, in order.

NADI_DRIVER_KILLS says how often (1 unless given); NADI_DRIVER_SEED repeats a run's moments.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import nadi

from .scaled import scale_somehow

KILLS = int(os.environ.get("NADI_DRIVER_KILLS", "1"))
SEED = int(os.environ.get("NADI_DRIVER_SEED", str(random.randrange(1_000_000))))
MAIN = Path(__file__).parent / "driver_main.py"
pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.slow]  # a JVM for each driver: a minute and a half


class Driver:
    """The job in a process group of its own, so that a kill takes the JVM and the workers too."""

    def __init__(self, controller: str, folder: Path) -> None:
        self.end = folder / "end"
        self._said = folder / "driver.log"
        command = [sys.executable, str(MAIN), controller, str(folder / "checkpoint"), str(self.end)]
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, start_new_session=True)

    def wait_until_running(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"running\n"

    def check(self) -> None:
        """It runs, or its last words are raised."""
        assert self._process.poll() is None, f"the driver ended by itself:\n{self._said.read_text()[-3000:]}"

    def kill(self) -> None:
        with self._process:  # waits, and closes the pipe
            os.killpg(self._process.pid, signal.SIGKILL)

    def finish(self, timeout_s: float) -> int:
        self.end.touch()
        assert self._process.stdout is not None
        with self._process.stdout:
            return self._process.wait(timeout_s)


def _stored(manager: nadi.StreamManager) -> int:
    return sum(manager.stream_info("home", "out").tail.positions.values())


def _wait_for_more(manager: nadi.StreamManager, driver: Driver) -> None:
    """Until the job has committed another batch: a kill before the first would show nothing."""
    before, give_up = _stored(manager), time.monotonic() + 180
    while _stored(manager) == before:
        driver.check()
        assert time.monotonic() < give_up, "the job writes nothing"
        time.sleep(0.05)


@pytest.mark.timeout(600 + 300 * KILLS)
def test_each_event_once_over_driver_kills(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    print(f"seed {SEED}, {KILLS} kills")
    written = scalings = 0
    stop = threading.Event()

    with nadi.embedded(tmp_path / "server") as server, nadi.StreamManager(server.controller_uri) as manager:
        manager.create_scope("home")
        manager.create_stream("home", "in", 2)
        manager.create_stream("home", "out", 2)

        def feed() -> None:
            nonlocal written
            with manager.create_writer("home", "in") as writer:
                while not stop.is_set():
                    for _ in range(50):
                        writer.write_event(b"k%d:%d" % (written % 20, written), f"k{written % 20}")
                        written += 1
                    time.sleep(0.05)

        def scale() -> None:
            nonlocal scalings
            places = random.Random(SEED + 1)
            while not stop.wait(places.uniform(0.2, 2.0)):
                scale_somehow(manager, "in", places)
                scalings += 1

        pool = ThreadPoolExecutor(2)
        beside = [pool.submit(feed), pool.submit(scale)]
        try:
            for number in range(KILLS):
                driver = Driver(server.controller_uri, tmp_path)
                try:
                    driver.wait_until_running()
                    if number == 0 or chance.random() < 0.7:  # the others are killed while they start
                        _wait_for_more(manager, driver)
                    time.sleep(chance.uniform(0.0, 3.0))
                finally:
                    driver.kill()
        finally:
            stop.set()
            pool.shutdown()
        for one in beside:
            one.result()
        copied = sum(1 for _ in manager.read_events("home", "out", end=manager.stream_info("home", "out").tail))
        last = Driver(server.controller_uri, tmp_path)
        try:
            last.wait_until_running()
            assert last.finish(120 + 3 * scalings) == 0  # a batch takes each key from one segment: as many are left
        except BaseException:
            last.kill()
            raise

        by_key: dict[str, list[int]] = defaultdict(list)
        for event in manager.read_events("home", "out", end=manager.stream_info("home", "out").tail):
            key, _, found = event.data.decode().partition(":")
            by_key[key].append(int(found))
        assert sorted(n for seen in by_key.values() for n in seen) == list(range(written))
        for seen in by_key.values():
            assert seen == sorted(seen)
        print(f"{written} events, {scalings} scalings, {copied} events copied before the last driver")
        assert scalings > 0
        assert copied > 0, "no batch was written before the kills: they came too early to show anything"
