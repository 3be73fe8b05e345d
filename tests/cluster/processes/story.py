"""What befalls a cluster, in an order that a seed gives, while loads write and read: see `__main__`.

Of three servers at least one is left alone at any time. Between two things that happen each load has an event
acknowledged, so that each happens to a cluster that works.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from nadi.limits import CLUSTER_DRAIN_S
from tests.cluster.processes.cluster import Cluster, Server, running
from tests.cluster.processes.history import Loads

_SERVERS = 3
_SLOW = {"put": (100, 400), "get": (60, 250), "list": (60, 250), "delete": (60, 250)}


class Story:
    def __init__(self, cluster: Cluster, loads: Loads, seed: int, say: Callable[[str], None]) -> None:
        self.cluster, self.loads, self.say = cluster, loads, say
        self.happened: Counter[str] = Counter()
        self.waited_s: list[float] = []  # for acknowledgements, after each
        self._random = random.Random(seed)
        self._ways = [self.kill, self.kill, self.kill_two, self.pause, self.pause, self.stop]
        if cluster.s3 is not None:
            self._ways += [self.cut, self.cut, self.stop_cut_off, self.without_store, self.slow]

    def tell(self, number: int) -> None:
        for place in range(number):
            way = self._random.choice(self._ways)
            self.say(f"{place}: {way.__name__}")
            self.happened[way.__name__] += 1
            way()
            took_s = self.loads.await_acknowledgements()
            self.waited_s.append(took_s)
            self.say(f"   acknowledged again after {took_s:.2f} s")
            self.loads.run_for(self._random.uniform(0.0, 3.0))

    def _some(self) -> Server:
        """Often the one with the controller."""
        return self.cluster.owner(0) if self._random.random() < 0.4 else self._random.choice(self.cluster.servers)

    def _wait(self, most_s: float) -> None:
        self.loads.run_for(self._random.uniform(0.0, most_s))

    def kill(self) -> None:
        server = self._some()
        server.kill()
        self._wait(8.0)
        server.start()

    def kill_two(self) -> None:
        """The second while the third takes over from the first."""
        first = self._some()
        first.kill()
        self._wait(5.0)
        second = self._random.choice([server for server in self.cluster.servers if server is not first])
        second.kill()
        self._wait(5.0)
        for server in (first, second):
            server.begin()
        for server in (first, second):
            server.await_ready()

    def pause(self) -> None:
        server = self._some()
        server.pause()
        self._wait(15.0)
        server.go_on()

    def stop(self) -> None:
        server = self._some()
        took_s = server.stop(2 * CLUSTER_DRAIN_S)
        assert took_s < CLUSTER_DRAIN_S + 5.0, f"server {server.number} took {took_s:.1f} s to stop:\n{server.said()}"
        self.say(f"   stopped in {took_s:.2f} s")
        server.start()

    def cut(self) -> None:
        assert self.cluster.s3 is not None
        wire = self.cluster.s3.wires[self._some().number]
        wire.cut()
        self._wait(12.0)
        wire.mend()

    def stop_cut_off(self) -> None:
        assert self.cluster.s3 is not None
        server = self._some()
        wire = self.cluster.s3.wires[server.number]
        wire.cut()
        self._wait(2.0)
        took_s = server.stop(2 * CLUSTER_DRAIN_S)
        assert took_s < CLUSTER_DRAIN_S + 5.0, f"server {server.number} took {took_s:.1f} s to stop:\n{server.said()}"
        wire.mend()
        server.start()

    def without_store(self) -> None:
        assert self.cluster.s3 is not None
        self.cluster.s3.kill()
        time.sleep(self._random.uniform(0.0, 10.0))
        self.cluster.s3.restart()

    def slow(self) -> None:
        assert self.cluster.s3 is not None
        self.cluster.s3.faults(latency_ms=_SLOW, conflict=0.03, slow_down=0.03, lost_answers=0.02, lost_requests=0.02)
        self._wait(6.0)
        if self._random.random() < 0.5:
            self.kill()
        self.cluster.s3.faults(latency_ms={}, conflict=0, slow_down=0, lost_answers=0, lost_requests=0)


def tell(folder: Path, seed: int, number: int, *, s3: bool, say: Callable[[str], None] = print) -> Story:
    """Have so many things happen, and check all that was promised; raises AssertionError, which names the seed."""
    try:
        with running(folder, _SERVERS, s3=s3) as cluster:
            loads = Loads(cluster)
            try:
                loads.await_acknowledgements()
                story = Story(cluster, loads, seed, say)
                story.tell(number)
                ledger = loads.finish()
                say(f"{sum(story.happened.values())} things happened, {ledger.events:,} events are as they must be")
                return story
            finally:
                loads.close()
    except BaseException as error:
        error.add_note(f"repeat it with --seed {seed} --kills {number}; what was said is in {folder}")
        raise
