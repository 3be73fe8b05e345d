"""Failure table of the cluster's design with real processes: faults of servers, over a folder."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from nadi.limits import CLUSTER_DRAIN_S
from tests.cluster.processes.scene import Scene, scene

pytestmark = [pytest.mark.crash, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with scene(tmp_path_factory.mktemp("folder"), s3=False) as created:
        yield created


def test_briefly_paused_server_keeps_its_containers(there: Scene) -> None:
    for _ in range(5):
        before = there.begin()
        server = there.cluster.owner(0)
        began = time.monotonic()
        server.pause()
        time.sleep(1.0)
        server.resume()
        if time.monotonic() < began + 1.5:  # otherwise the pause was too long
            break
    there.loads.await_acknowledgements()
    assert there.owned() == before


def test_killed_server_is_replaced_and_returns(there: Scene) -> None:
    there.begin()
    server = there.cluster.owner(0)
    server.kill()
    there.until_replaced(server)
    server.start()  # some clients connect only to this server
    there.loads.await_acknowledgements()


@pytest.mark.slow  # one of twenty runs on a busy machine failed at its start, for an unknown reason
def test_long_paused_server_is_replaced(there: Scene) -> None:
    there.begin()
    server = there.cluster.owner(0)
    server.pause()
    there.until_replaced(server)
    server.resume()
    there.until(lambda: bool(server.last_logged("the lease of server")))
    there.loads.await_acknowledgements()
    assert server.is_running


def test_stopped_server_hands_over_all_containers(there: Scene) -> None:
    there.begin()
    server = there.cluster.owner(0)
    assert server.stop() < CLUSTER_DRAIN_S
    assert server.last_logged("handed over to server"), "nothing was handed over"
    there.until_replaced(server)
