"""The failure table of the cluster's design, line by line, with real processes: what happens, and that clients are told
the truth whatever happens. The store is a folder where that will do, for it is quicker; what befalls the store itself,
or the way to it, needs the fake S3."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nadi.limits import CLUSTER_DEAD_S, CLUSTER_DRAIN_S
from tests.cluster.processes.cluster import Cluster, running
from tests.cluster.processes.history import Loads

TAKEN_OVER_S = 20.0  # on a machine that does other things too; `script/bench cluster-takeover` measures it
pytestmark = [pytest.mark.crash, pytest.mark.timeout(240)]


@contextmanager
def loaded(folder: Path, *, s3: bool = False, containers: int = 4) -> Iterator[tuple[Cluster, Loads]]:
    """Three servers; loads that know the first two."""
    with running(folder, 3, s3=s3, containers=containers) as cluster:
        loads = Loads(cluster)
        try:
            loads.await_acknowledgements()
            yield cluster, loads
            loads.finish()
        finally:
            loads.close()


def owned(cluster: Cluster) -> dict[int, int]:
    return {container: server.number for container, server in cluster.owners().items()}


def until(holds: Callable[[], bool], limit_s: float) -> float:
    began = time.monotonic()
    while not holds():
        assert time.monotonic() < began + limit_s, f"it doesn't hold after {limit_s:.0f} s"
        time.sleep(0.1)
    return time.monotonic() - began


def test_killed_paused_and_stopped_servers(tmp_path: Path) -> None:
    """A server is killed: others take over, and it comes back. One is paused for longer than it takes to be replaced:
    what it had is others' when it wakes, it is told so, and goes on. One is stopped: it gives all away at once."""
    with loaded(tmp_path) as (cluster, loads):
        killed = cluster.owner(0)
        killed.kill()
        until(lambda: len(cluster.owners()) == 4 and killed not in cluster.owners().values(), TAKEN_OVER_S)
        killed.start()
        loads.await_acknowledgements()

        paused = cluster.owner(0)
        paused.pause()
        until(lambda: paused.number not in owned(cluster).values() and len(owned(cluster)) == 4, TAKEN_OVER_S)
        paused.go_on()
        loads.await_acknowledgements()
        until(lambda: bool(paused.last_said("was silent for too long")), TAKEN_OVER_S)
        assert paused.is_running

        stopped = cluster.owner(0)
        assert stopped.stop() < CLUSTER_DRAIN_S
        assert stopped.last_said("is given to server"), "it gave nothing away"
        assert len(owned(cluster)) == 4
        loads.await_acknowledgements()
        stopped.start()


def test_a_short_pause_changes_nothing(tmp_path: Path) -> None:
    with loaded(tmp_path) as (cluster, loads):
        before = owned(cluster)
        server = cluster.owner(0)
        server.pause()
        time.sleep(1.0)
        server.go_on()
        loads.await_acknowledgements()
        assert owned(cluster) == before


def test_cut_off_from_the_store(tmp_path: Path) -> None:
    """One server alone: it acknowledges nothing more, and is taken over. It can be stopped even so, in time. Then all:
    nothing is acknowledged, nobody is declared dead, and all goes on once the store is there again."""
    with loaded(tmp_path, s3=True) as (cluster, loads):
        assert cluster.s3 is not None
        cut = cluster.owner(0)
        wire = cluster.s3.wires[cut.number]
        wire.cut()
        until(lambda: cut.number not in owned(cluster).values() and len(owned(cluster)) == 4, TAKEN_OVER_S)
        wire.mend()
        loads.await_acknowledgements()

        cut = cluster.owner(0)
        wire = cluster.s3.wires[cut.number]
        wire.cut()
        assert cut.stop(2 * CLUSTER_DRAIN_S) < CLUSTER_DRAIN_S + 3.0
        wire.mend()
        until(lambda: cut.number not in owned(cluster).values() and len(owned(cluster)) == 4, TAKEN_OVER_S)
        cut.start()
        loads.await_acknowledgements()

        before = owned(cluster)
        cluster.s3.kill()
        time.sleep(2 * CLUSTER_DEAD_S)
        cluster.s3.restart()
        loads.await_acknowledgements()
        assert owned(cluster) == before, "servers were taken for dead because the store was"


def test_a_slow_store_that_loses_requests_and_answers(tmp_path: Path) -> None:
    """Appends wait; no container changes hands."""
    with loaded(tmp_path, s3=True) as (cluster, loads):
        assert cluster.s3 is not None
        before = owned(cluster)
        cluster.s3.faults(
            latency_ms={"put": (150, 600), "get": (100, 300), "list": (100, 400)},
            conflict=0.02,
            slow_down=0.02,
            lost_answers=0.01,
            lost_requests=0.01,
        )
        loads.run_for(4.0)
        loads.await_acknowledgements()
        cluster.s3.faults(latency_ms={}, conflict=0, slow_down=0, lost_answers=0, lost_requests=0)
        assert owned(cluster) == before


def test_killed_while_it_takes_over(tmp_path: Path) -> None:
    """Between claim and confirmation, if the moment is met: the next one follows the seals."""
    with loaded(tmp_path, s3=True) as (cluster, loads):
        assert cluster.s3 is not None
        cluster.s3.faults(latency_ms={"put": (100, 200), "get": (60, 150)})
        first = cluster.owner(0)
        first.kill()
        until(lambda: first.number not in owned(cluster).values(), TAKEN_OVER_S)  # claimed, and not open yet
        second = cluster.owner(0)
        second.kill()
        first.start()
        second.start()
        cluster.s3.faults(latency_ms={})
        loads.await_acknowledgements()
