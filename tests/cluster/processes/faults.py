"""Faults of a cluster of three servers; at least one server is unharmed at any time.

Each is a method of `Faults`, which returns once the fault is over. Those that move containers record a `Moved`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from nadi.limits import CLUSTER_DRAIN_S
from tests.cluster.processes.cluster import Cluster
from tests.cluster.processes.patience import PATIENCE_S
from tests.cluster.processes.port_wires import CLIENTS, SERVERS
from tests.cluster.processes.server import Server
from tests.cluster.processes.stores import S3Store

_SLOW = {"put": (100, 400), "get": (60, 250), "list": (60, 250), "delete": (60, 250)}
_STOP_S = CLUSTER_DRAIN_S + 5.0


@dataclass(frozen=True)
class Moved:
    """Containers of a server that others took over when it was killed (`is_takeover`), or that were handed over. began,
    ended: by the monotonic clock."""

    is_takeover: bool
    containers: tuple[int, ...]
    began: float
    ended: float


class Faults:
    """Faults. wait: lets the clients continue for some seconds, and raises AssertionError if one has detected an
    error."""

    def __init__(
        self, cluster: Cluster, chance: random.Random, wait: Callable[[float], None], say: Callable[[str], None]
    ) -> None:
        self.cluster, self.say = cluster, say
        self._random, self._wait_for = chance, wait
        self.moved: list[Moved] = []

    def ways(self) -> list[Callable[[], None]]:
        """Return all faults possible in this cluster; likelier ones are repeated."""
        ways = [self.kill, self.kill, self.kill_two, self.pause, self.pause, self.stop]
        if self.cluster.s3 is not None:
            ways += [self.cut, self.cut, self.stop_cut_off, self.without_store, self.slow]
        if self.cluster.balancer is not None:
            ways += [self.kill, self.pause, self.cut_from_clients, self.cut_from_servers]
            ways += [self.drain, self.drain, self.rebalance, self.roll, self.roll_drained]
        return ways

    def _some(self) -> Server:
        """Return a server, often the one with the controller. Clients of the balancer are led elsewhere."""
        chance = self._random.random()
        server = self.cluster.owner(0) if chance < 0.4 else self._random.choice(self.cluster.servers)
        self.cluster.spare(server)
        return server

    def _wait(self, most_s: float) -> None:
        self._wait_for(self._random.uniform(0.0, most_s))

    def _has(self, server: Server) -> tuple[int, ...]:
        return tuple(number for number, owner in self.cluster.owners().items() if owner is server)

    # --- kills and pauses --------------------------------------------------------------------------------------------

    def kill(self) -> None:
        self._kill(self._some())

    def _kill(self, server: Server) -> None:
        had = self._has(server)
        began = time.monotonic()
        server.kill()
        self._wait(8.0)
        server.start()
        self.moved.append(Moved(True, had, began, time.monotonic()))

    def kill_two(self) -> None:
        """Kill a second server while the third takes over from the first."""
        first = self._some()
        second = self._random.choice([server for server in self.cluster.servers if server is not first])
        self.cluster.spare(first, second)
        first.kill()
        self._wait(5.0)
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
        server.resume()

    # --- stops -------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        self._stop(self._some())

    def _stop(self, server: Server) -> None:
        had = self._has(server)
        began = time.monotonic()
        took_s = server.stop(2 * CLUSTER_DRAIN_S)
        ended = time.monotonic()
        assert took_s < _STOP_S, f"server {server.number} took {took_s:.1f} s to stop:\n{server.log_tail()}"
        self.say(f"   server {server.number} stopped in {took_s:.2f} s")
        self._wait_for(1.0)
        self.moved.append(Moved(False, had, began, ended))
        server.start()

    def roll(self) -> None:
        """Stop and start all servers one after another, as for an upgrade."""
        for server in self.cluster.servers:
            self.cluster.spare(server)
            self._stop(server)
            self._wait(4.0)

    def roll_drained(self) -> None:
        """As `roll`, but drain each server before it is stopped."""
        for server in self.cluster.servers:
            self.cluster.spare(server)
            self._drain(server)
            self._wait(4.0)

    def drain(self) -> None:
        """Drain a server, then stop and start it."""
        self._drain(self._some())

    def _drain(self, server: Server) -> None:
        had = self._has(server)
        began = time.monotonic()
        server.ask("drain")
        while self._has(server):
            assert time.monotonic() < began + PATIENCE_S, f"server {server.number} isn't drained:\n{server.log_tail()}"
            self._wait_for(0.2)
        self._wait_for(1.0)
        self.moved.append(Moved(False, had, began, time.monotonic()))
        self.say(f"   server {server.number} was drained of {len(had)} containers")
        server.stop(2 * CLUSTER_DRAIN_S)
        server.start()

    def rebalance(self) -> None:
        before = self.cluster.owners()
        began = time.monotonic()
        for server in self.cluster.servers:
            server.ask("rebalance")
        self._wait_for(8.0)
        after = self.cluster.owners()
        moved = tuple(number for number, owner in before.items() if after.get(number) not in (None, owner))
        self.moved.append(Moved(False, moved, began, time.monotonic()))
        self.say(f"   {len(moved)} containers were moved")

    # --- cuts --------------------------------------------------------------------------------------------------------

    @property
    def _s3(self) -> S3Store:
        assert self.cluster.s3 is not None
        return self.cluster.s3

    def cut(self) -> None:
        """Cut a server off from the store."""
        wire = self._s3.wires[self._some().number]
        wire.cut()
        self._wait(12.0)
        wire.mend()

    def stop_cut_off(self) -> None:
        server = self._some()
        wire = self._s3.wires[server.number]
        wire.cut()
        self._wait(2.0)
        took_s = server.stop(2 * CLUSTER_DRAIN_S)
        assert took_s < _STOP_S, f"server {server.number} took {took_s:.1f} s to stop:\n{server.log_tail()}"
        wire.mend()
        server.start()

    def cut_from_clients(self) -> None:
        self._cut(CLIENTS)

    def cut_from_servers(self) -> None:
        """Cut a server off from the other servers' calls for its controller and its segments."""
        self._cut(SERVERS)

    def _cut(self, kind: str) -> None:
        wired = self._some().port_wires
        assert wired is not None
        wired.cut(kind)
        self._wait(12.0)
        wired.mend()

    # --- the store ---------------------------------------------------------------------------------------------------

    def without_store(self) -> None:
        self._s3.kill()
        time.sleep(self._random.uniform(0.0, 10.0))
        self._s3.restart()

    def slow(self) -> None:
        self._s3.faults(latency_ms=_SLOW, conflict=0.03, slow_down=0.03, lost_answers=0.02, lost_requests=0.02)
        self._wait(6.0)
        if self._random.random() < 0.5:
            server = self._some()
            server.kill()
            self._wait(8.0)
            server.start()
        self._s3.faults(latency_ms={}, conflict=0, slow_down=0, lost_answers=0, lost_requests=0)


WAYS = tuple(name for name in vars(Faults) if not name.startswith("_") and name != "ways")
"""Names of all faults, possible in a given cluster or not."""
