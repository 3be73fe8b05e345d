"""A query with a `groupId`: retention waits for what it has committed, and the group's lag is its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import nadi
from nadi.client import RetentionPolicy
from nadi.errors import ConflictError, InvalidArgumentError, ReaderGroupNotFoundError

from .conftest import World
from .queries import Home, Query

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A server that looks for what may go ten times a second."""
    environment = {"NADI_LIMITS": "retention_period_s=0.1"}
    with (
        nadi.embedded(tmp_path_factory.mktemp("server"), environment=environment) as server,
        nadi.StreamManager(server.controller_uri) as manager,
    ):
        manager.create_scope("home")
        yield Home(server.controller_uri, manager)


def make(home: Home, name: str, events: int, retention: RetentionPolicy | None = None) -> None:
    home.manager.create_stream("home", name, 1, retention=retention)
    write(home, name, events)


def write(home: Home, name: str, events: int) -> None:
    with home.manager.create_writer("home", name) as writer:
        for _ in range(events):
            writer.write_event(bytes(92), "k")


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def kept(home: Home, name: str) -> int:
    return home.manager.kept("home", name).size_bytes


def test_retention_waits_for_what_a_query_has_committed(home: Home) -> None:
    make(home, "held", 0, RetentionPolicy.by_size(1_000))
    write(home, "held", 5)
    query = Query(home, "held", groupId="billing", maxOffsetsPerTrigger="20")
    query.trigger()
    write(home, "held", 95)
    make(home, "free", 100, RetentionPolicy.by_size(1_000))
    wait_until(lambda: kept(home, "free") == 1_000)  # a round has passed
    wait_until(lambda: kept(home, "held") == 9_500)
    for left in (7_500, 5_500):
        assert query.trigger()
        wait_until(lambda left=left: kept(home, "held") == left)  # type: ignore[misc]
        (lag,) = home.manager.reader_group_manager("home").lag("billing")
        assert (lag.stream, lag.bytes_behind) == ("home/held", left)
    (holder,) = home.manager.kept("home", "held").held_by
    assert (holder.kind, holder.name) == ("subscriber", "home/billing")
    query.restart(len(query.batches))
    assert len(query.run()) == 100
    wait_until(lambda: kept(home, "held") == 1_000)
    home.manager.reader_group_manager("home").delete_reader_group("billing")
    write(home, "held", 50)
    wait_until(lambda: kept(home, "held") == 1_000)
    with pytest.raises(ReaderGroupNotFoundError, match="home/billing"):
        query.reader.commit(query.offsets[-2])


def test_two_queries_of_one_group_are_told(home: Home) -> None:
    make(home, "shared", 30)
    first, second = (Query(home, "shared", groupId="both", maxOffsetsPerTrigger="10") for _ in range(2))
    first.trigger()
    second.trigger()
    with pytest.raises(ConflictError, match=r"another query has taken reader group home/both: .*'groupId'"):
        first.trigger()
    assert second.trigger(), "who came last has it"


def test_a_group_that_is_not_the_querys_is_refused(home: Home) -> None:
    for name in ("mine", "yours"):
        make(home, name, 1)
    groups = home.manager.reader_group_manager("home")
    groups.create_reader_group("readers", "mine")
    Query(home, "yours", groupId="of-yours").trigger()
    for group, told in (("readers", "was made for them"), ("of-yours", "is of yours, and the query reads mine")):
        with pytest.raises(InvalidArgumentError, match=told):
            Query(home, "mine", groupId=group).trigger()
    with pytest.raises(InvalidArgumentError, match="'groupId' and 'stream_tag' exclude each other"):
        Query(home, stream_tag="x", groupId="g")


def test_a_query_without_its_checkpoint_starts_at_what_was_committed(home: Home) -> None:
    for name in ("lost-a", "lost-b"):
        make(home, name, 30)
    options = {"streams": "lost-a,lost-b", "groupId": "lost", "startAt": "last-committed", "maxOffsetsPerTrigger": "20"}
    query = Query(home, **options)
    query.trigger()
    query.trigger()
    again = Query(home, **options)
    assert again.offsets == [query.offsets[-1]]
    assert len(again.run()) == 20
    earlier = Query(home, streams="lost-a,lost-b", groupId="lost")  # from the head: what was released stays released
    assert len(earlier.run()) == 60


def test_in_spark_commits_move_the_group(world: World, tmp_path: Path) -> None:
    world.manager.create_stream("home", "spark-group", 1)
    with world.manager.create_writer("home", "spark-group") as writer:
        for _ in range(100):
            writer.write_event(bytes(92), "k")
    (
        world.read_stream("spark-group", maxOffsetsPerTrigger=40, groupId="spark-group")
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )
    (lag,) = world.manager.reader_group_manager("home").lag("spark-group")
    assert lag.bytes_behind in (2_000, 0), "Spark commits a batch when it begins the next"
