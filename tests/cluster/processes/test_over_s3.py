"""Failure table of the cluster design with real processes: faults of the store (a fake S3) and of connections to it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from nadi.limits import CLUSTER_DEAD_S, CLUSTER_DRAIN_S
from tests.cluster.processes.scene import Scene, scene
from tests.cluster.processes.stores import S3Store

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(240)]  # both cores are busy for minutes


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with scene(tmp_path_factory.mktemp("s3"), s3=True) as created:
        yield created


@pytest.fixture
def s3(there: Scene) -> S3Store:
    assert there.cluster.s3 is not None
    return there.cluster.s3


def test_server_cut_off_from_store_is_replaced(there: Scene, s3: S3Store) -> None:
    there.begin()
    server = there.cluster.owner(0)
    s3.wires[server.number].cut()
    there.until_replaced(server)
    s3.wires[server.number].mend()
    there.loads.await_acknowledgements()
    assert server.is_running


def test_server_cut_off_from_store_stops_in_time(there: Scene, s3: S3Store) -> None:
    there.begin()
    server = there.cluster.owner(0)
    s3.wires[server.number].cut()
    assert server.stop(2 * CLUSTER_DRAIN_S) < CLUSTER_DRAIN_S + 3.0
    s3.wires[server.number].mend()
    there.until_replaced(server)


def test_store_outage_declares_no_server_dead(there: Scene, s3: S3Store) -> None:
    before = there.begin()
    s3.kill()
    time.sleep(2 * CLUSTER_DEAD_S)
    s3.restart()
    there.loads.await_acknowledgements()
    assert there.owned() == before


def test_a_slow_store_that_loses_calls_moves_nothing(there: Scene, s3: S3Store) -> None:
    before = there.begin()
    s3.faults(
        latency_ms={"put": (100, 400), "get": (60, 250), "list": (60, 250)},
        conflict=0.02,
        slow_down=0.02,
        lost_answers=0.01,
        lost_requests=0.01,
    )
    there.loads.run_for(4.0)
    there.loads.await_acknowledgements()
    s3.faults(latency_ms={}, conflict=0, slow_down=0, lost_answers=0, lost_requests=0)
    assert there.owned() == before


def test_server_killed_during_takeover_is_replaced(there: Scene, s3: S3Store) -> None:
    """It has claimed the container, but not opened it yet."""
    there.begin()
    first = there.cluster.owner(0)
    s3.faults(latency_ms={"put": (150, 300), "get": (100, 200)})
    first.kill()
    there.until(lambda: first.number not in there.owned().values())
    there.cluster.owner(0).kill()
    s3.faults(latency_ms={})
    there.begin()
