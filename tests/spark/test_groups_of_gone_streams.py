"""A query with a `groupId` whose streams were deleted, made anew or truncated while it was down."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import nadi
from nadi.errors import InvalidArgumentError, QueryTruncatedError, StreamNotFoundError

from .queries import Home, Query

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A server that soon forgets epochs."""
    environment = {"NADI_LIMITS": "epochs_kept=3,epochs_forgotten_at_once=2"}
    with (
        nadi.embedded(tmp_path_factory.mktemp("server"), environment=environment) as server,
        nadi.StreamManager(server.controller_uri) as manager,
    ):
        manager.create_scope("home")
        yield Home(server.controller_uri, manager)


def write(home: Home, stream: str, events: int = 20) -> None:
    with home.manager.create_writer("home", stream) as writer:
        for number in range(events):
            writer.write_event(bytes(92), str(number))


def delete(home: Home, stream: str) -> None:
    home.manager.seal_stream("home", stream)
    home.manager.delete_stream("home", stream)


def test_a_query_goes_on_without_a_stream_that_was_deleted_while_it_was_down(home: Home) -> None:
    for stream in ("left", "lost"):
        home.manager.create_stream("home", stream, 1)
        write(home, stream)
    options = {"streams": "left,lost", "groupId": "both", "maxOffsetsPerTrigger": "10"}
    queries = [Query(home, **options, failOnDataLoss=fails) for fails in ("true", "false")]
    queries[1].trigger()
    delete(home, "lost")
    for query in queries:
        query.restart(len(query.batches))
    with pytest.raises(StreamNotFoundError, match="was deleted under a query"):
        queries[0].trigger()
    assert len(queries[1].run()) == 25, "5 had been read of the other one"


def test_a_group_of_a_stream_that_was_made_anew_is_told(home: Home) -> None:
    home.manager.create_stream("home", "anew", 1)
    write(home, "anew")
    Query(home, "anew", groupId="anew").trigger()
    delete(home, "anew")
    home.manager.create_stream("home", "anew", 1)
    write(home, "anew")
    for more in ({}, {"startAt": "last-committed"}):
        with pytest.raises(InvalidArgumentError, match="of a stream anew that was deleted and created again"):
            Query(home, "anew", groupId="anew", **more).trigger()
    home.manager.reader_group_manager("home").delete_reader_group("anew")
    assert len(Query(home, "anew", groupId="anew", startAt="last-committed").run()) == 20


def test_a_query_with_a_group_goes_on_behind_forgotten_epochs(home: Home) -> None:
    home.manager.create_stream("home", "old", 1)
    write(home, "old")
    query = Query(home, "old", groupId="old", maxOffsetsPerTrigger="5")
    query.trigger()
    for _ in range(14):
        pieces = home.manager.current_segments("home", "old")
        ranges = [(0.0, 1.0)] if len(pieces) > 1 else [(0.0, 0.5), (0.5, 1.0)]
        home.manager.scale_stream("home", "old", [piece.segment_id for piece in pieces], ranges)
    home.manager.truncate_stream(home.manager.stream_info("home", "old").tail)
    write(home, "old")
    query.restart(1)
    with pytest.raises(QueryTruncatedError, match="gone is what lies from home/old: 0=500"):
        query.trigger()
    skipping = Query(home, "old", groupId="old", failOnDataLoss="false")
    skipping.offsets = query.offsets[1:]
    assert len(skipping.run()) == 20
