"""A chain of streams with a query each, in one driver; its processes are killed on order, and restarted."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import threading
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import psutil

import nadi
from tests.spark.kills.killing import STEPS, end_driver, kill, said, start_driver
from tests.spark.scaled import check_once_in_order, scale_somehow

KEYS = 20


class Chain:
    """The server, the driver, the writer and the scaler. scale_s: the mean interval of scalings of a stream."""

    def __init__(self, folder: Path, port: int, streams: list[str], master: str, seed: int, scale_s: float) -> None:
        self._folder, self._port, self._streams, self._master = folder, port, streams, master
        self._chance, self._scale_s = random.Random(seed), scale_s
        for name in ("orders", "taken"):
            (folder / name).mkdir()
        self._server = nadi.embedded(folder / "data", port=port)
        self.manager = nadi.StreamManager(self._server.controller_uri)
        self.manager.create_scope("home")
        for stream in streams:
            self.manager.create_stream("home", stream, 2)
        self._driver: subprocess.Popen[bytes] | None = None
        self._stop = threading.Event()
        self._beside = [threading.Thread(target=work) for work in (self._feed, self._scale)]
        self._errors: list[BaseException] = []
        self.written = self.scalings = self.drivers = self.lost = 0
        self.kills: Counter[tuple[str, str]] = Counter()

    def start(self) -> None:
        for thread in self._beside:
            thread.start()
        self._start_driver()
        self._wait_for_more(self._through())

    # --- background threads ---------------------------------------------------------------------------

    def _feed(self) -> None:
        try:
            with self.manager.create_writer("home", self._streams[0]) as writer:
                while not self._stop.wait(0.1):
                    for _ in range(20):
                        key = self.written % KEYS
                        writer.write_event(b"k%d:%d" % (key, self.written), f"k{key}")
                        self.written += 1
        except BaseException as error:
            self._errors.append(error)

    def _scale(self) -> None:
        chance = random.Random(self._chance.random())
        while not self._stop.wait(chance.uniform(0.5, 1.5) * self._scale_s):
            self._scale_once(chance)

    def _scale_once(self, chance: random.Random) -> None:
        stream = chance.choice(self._streams)
        try:
            scale_somehow(self.manager, stream, chance)
            self.scalings += 1
        except (nadi.errors.ConflictError, nadi.errors.UnavailableError):  # the server went, or another scale is on
            pass
        except BaseException as error:
            self._errors.append(error)

    # --- kills ------------------------------------------------------------------------------------------

    def kill_at(self, step: str, victim: str) -> None:
        """Have a process killed when a link of the chain reaches that step; wait until all links make progress."""
        before, link = self._through(), self._chance.randrange(len(self._streams) - 1)
        if step == "during a scale":
            scaling = threading.Thread(target=self._scale_once, args=(random.Random(self._chance.random()),))
            scaling.start()
            time.sleep(self._chance.uniform(0, 0.05))
            if victim == "worker":
                self._order(self._chance.choice(STEPS), victim, link)
            else:
                give_up = time.monotonic() + 60
                while not kill(victim, self._folder):
                    self._go_on()
                    assert time.monotonic() < give_up, f"{victim} does not run"
                    time.sleep(0.05)
            self._go_on()
            scaling.join(120)
            assert not scaling.is_alive(), "a scale hangs"
        else:
            self._order(step, victim, link)
        self.kills[step, victim] += 1
        self._wait_for_more(before)

    def _order(self, step: str, victim: str, link: int) -> None:
        draft, order = self._folder / "draft", self._folder / "orders" / f"{link}.{step}"
        draft.write_text(victim)
        draft.rename(order)
        give_up = time.monotonic() + 180
        while order.exists():
            self._go_on()
            assert time.monotonic() < give_up, f"no batch of link {link} comes to the step {step}"
            time.sleep(0.05)

    # --- processes ----------------------------------------------------------------------------------------

    def _start_driver(self) -> None:
        arguments = [self._server.controller_uri, str(self._folder), self._master, *self._streams]
        self._driver = start_driver("chain_main", self._folder, *arguments)
        known = {"server": self._server.pid, "driver": self._driver.pid}
        (self._folder / "processes.json").write_text(json.dumps(known))
        self.drivers += 1

    def _go_on(self) -> None:
        """Restart dead processes, as a supervisor does."""
        if self._errors:
            raise self._errors[0]
        if not psutil.pid_exists(self._server.pid) or psutil.Process(self._server.pid).status() == "zombie":
            self._server.kill()
            self._server = nadi.embedded(self._folder / "data", port=self._port)
            known = json.loads((self._folder / "processes.json").read_text())
            (self._folder / "processes.json").write_text(json.dumps(known | {"server": self._server.pid}))
        assert self._driver is not None
        if self._driver.poll() is not None:
            end_driver(self._driver)
            self._lose_checkpoints()
            self._start_driver()

    def _lose_checkpoints(self) -> None:
        """Delete checkpoints at times, as if a driver were restarted on a machine with an empty disk."""
        for checkpoint in sorted(self._folder.glob("checkpoint-*")):
            if self._chance.random() < 0.3:
                shutil.rmtree(checkpoint)
                self.lost += 1

    def _through(self) -> int:
        """Return the number of events that left the chain."""
        while True:
            self._go_on()  # a client waits half a minute for a server that is gone
            try:
                return sum(self.manager.stream_info("home", self._streams[-1]).tail.positions.values())
            except nadi.errors.UnavailableError:
                continue

    def _wait_for_more(self, before: int) -> None:
        give_up = time.monotonic() + 240
        while self._through() == before:
            assert time.monotonic() < give_up, f"nothing comes through: {said(self._folder)}"
            time.sleep(0.1)

    # --- the end ------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Drain the chain, and compare its input with the output of each link."""
        self._stop.set()
        for thread in self._beside:
            thread.join(120)
            assert not thread.is_alive()
        (self._folder / "end").touch()
        give_up = time.monotonic() + 300 + 3 * self.scalings
        assert self._driver is not None
        while self._driver.poll() != 0:
            self._go_on()
            assert time.monotonic() < give_up, f"the chain doesn't end: {said(self._folder)}"
            time.sleep(0.2)
        for _, target in pairwise(self._streams):
            end = self.manager.stream_info("home", target).tail
            events = [event.data for event in self.manager.read_events("home", target, end=end)]
            check_once_in_order(events, self.written)

    def close(self) -> None:
        self._stop.set()
        if self._driver is not None:
            end_driver(self._driver)
        for thread in self._beside:
            if thread.is_alive():
                thread.join(30)
        self.manager.close()
        self._server.kill()
