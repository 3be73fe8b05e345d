"""A standalone cluster: master, workers, driver and nadi's server on separate nodes, one of which fails."""

from __future__ import annotations

import json
import shlex
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.spark.scaled import KEYS, check_once_in_order

from .cluster import Cluster, wait_for
from .network import Network, a_network, why_not
from .shipping import Shipped, archives, installed, py_files

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
JOB = Path(__file__).with_name("copy_job.py")
FIRST = 2000


@pytest.fixture
def network() -> Iterator[Network]:
    if reason := why_not():
        pytest.skip(reason)
    with a_network() as network:
        yield network


class Feed:
    """Writes `<key>:<number>` under each key: FIRST of them at once, more from `go_on` to the end of its block."""

    def __init__(self, cluster: Cluster, stream: str) -> None:
        self._manager, self._stream, self.written = cluster.manager, stream, 0
        self._end, self._thread = threading.Event(), threading.Thread(target=self._write_on)
        self._errors: list[BaseException] = []
        self.write(FIRST)

    def write(self, count: int) -> None:
        with self._manager.create_writer("home", self._stream) as writer:
            for _ in range(count):
                key = self.written % KEYS
                writer.write_event(b"k%d:%d" % (key, self.written), f"k{key}")
                self.written += 1

    def _write_on(self) -> None:
        try:
            while not self._end.wait(0.1):
                self.write(20)
        except BaseException as error:
            self._errors.append(error)

    def go_on(self) -> None:
        self._thread.start()

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        if self._thread.ident is not None:
            self._thread.join(60)
        assert not self._errors, self._errors


@pytest.fixture
def drivers(tmp_path: Path) -> Path:
    """A folder that only the driver's node sees."""
    folder = tmp_path / "driver"
    folder.mkdir()
    return folder


@pytest.mark.slow  # two minutes; test_following.py has executors in its quick form
def test_a_job_on_a_cluster(network: Network, drivers: Path, tmp_path: Path) -> None:
    """The quick form: one worker, and no failure."""
    shipped = py_files(drivers, tmp_path)
    with a_cluster(network, tmp_path, shipped, workers=1) as cluster:
        (drivers / "end").touch()
        feed = Feed(cluster, "from")
        assert submit(cluster, shipped).wait(400) == 0, cluster.said()
        check(cluster, feed)


@pytest.mark.slow
@pytest.mark.parametrize("ship", [py_files, installed, archives])
def test_job_on_cluster_survives_loss_of_a_node(
    ship: Callable[[Path, Path], Shipped], network: Network, drivers: Path, tmp_path: Path
) -> None:
    shipped = ship(drivers, tmp_path)
    with a_cluster(network, tmp_path, shipped, workers=2) as cluster:
        copy_while_a_node_goes(cluster, shipped)


@contextmanager
def a_cluster(network: Network, folder: Path, shipped: Shipped, workers: int) -> Iterator[Cluster]:
    cluster = Cluster(network, folder, python=shipped.python, path=shipped.path, workers=workers)
    try:
        cluster.manager.create_scope("home")
        cluster.manager.create_stream("home", "from", 4)
        cluster.manager.create_stream("home", "to", 2)
        yield cluster
    finally:
        cluster.close()


def submit(cluster: Cluster, shipped: Shipped) -> subprocess.Popen[bytes]:
    end = cluster.manager.cuts("home", "from").tail().as_text()
    job = shlex.join([str(JOB), cluster.controller, "from", "to", end, str(cluster.drivers)])
    return cluster.run(shipped.command.replace("$JOB", job))


def copy_while_a_node_goes(cluster: Cluster, shipped: Shipped) -> None:
    manager = cluster.manager
    with Feed(cluster, "from") as feed:
        driver = submit(cluster, shipped)
        feed.go_on()

        def copied() -> int:
            return sum(manager.stream_info("home", "to").tail.positions.values())

        def more_than(before: int) -> bool:
            assert driver.poll() is None, cluster.said()
            return copied() > before

        wait_for("rows arrive", lambda: more_than(0), cluster.said)
        wait_for("all workers work", lambda: all(map(cluster.runs_executor, cluster.workers)), cluster.said)
        cluster.workers[0].kill()
        at_the_kill = copied()
        # several batches without it: the first one may have been under way
        wait_for("rows arrive without it", lambda: more_than(at_the_kill + 4000), cluster.said)
    (cluster.drivers / "end").touch()
    assert driver.wait(240) == 0, cluster.said()
    check(cluster, feed)


def check(cluster: Cluster, feed: Feed) -> None:
    assert json.loads((cluster.drivers / "counted.json").read_text()) == {"rows": FIRST}
    end = cluster.manager.cuts("home", "to").tail()
    copied = cluster.manager.read_events("home", "to", end=end)
    check_once_in_order((event.data for event in copied), feed.written)
