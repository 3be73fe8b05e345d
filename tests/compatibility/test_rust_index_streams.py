"""Index streams of nadi and the official Rust client are interchangeable: each can create, continue, search and
truncate the other's.

The first run on a machine compiles the client for minutes; see `official_rust`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import nadi
from nadi.errors import ConditionFailedError, InvalidArgumentError
from nadi.limits import INDEX_RECORD_MAX_BYTES
from tests.compatibility.conftest import OFFICIAL_RUST, Server
from tests.compatibility.official_python import OfficialError
from tests.compatibility.official_rust import BUILD_TIMEOUT_S, OfficialRust
from tests.compatibility.test_index_records import RECORDS

pytestmark = [pytest.mark.compatibility, pytest.mark.slow, pytest.mark.timeout(BUILD_TIMEOUT_S + 300)]

SIZE = 4096
BOTH = ("time", "offset")


@pytest.fixture
def rust(server: Server) -> Iterator[Callable[[], OfficialRust]]:
    """Return a function that starts a process with the official Rust client, connected to the server."""
    processes: list[OfficialRust] = []
    door = server(OFFICIAL_RUST)

    def start() -> OfficialRust:
        processes.append(OfficialRust(door.controller_uri))
        return processes[-1]

    yield start
    for process in processes:
        process.close()


@pytest.fixture
def stream(nadi_manager: nadi.StreamManager, scope: str) -> str:
    nadi_manager.create_scope(scope)
    nadi_manager.create_stream(scope, "index")
    return f"{scope}/index"


def test_nadi_reads_and_continues_a_rust_stream(
    rust: Callable[[], OfficialRust], nadi_manager: nadi.StreamManager, scope: str, stream: str
) -> None:
    client = rust()
    client.say("writer", stream, "two")
    for n in range(100):
        client.append(10 * n, n, data=b"%d" % n)
    client.say("flush")
    reader = nadi_manager.create_index_reader(scope, "index")
    records = [(record.value("time"), record.value("offset"), record.data) for record in reader.read()]
    assert records == [(10 * n, n, b"%d" % n) for n in range(100)]
    assert [reader.search("time", time) // SIZE for time in (0, 1, 990, 991)] == [0, 1, 99, 100]
    with nadi_manager.create_index_writer(scope, "index", BOTH) as writer:
        assert writer.last() == {"time": 990, "offset": 99}
        writer.append({"time": 990, "offset": 99}, b"nadi's")
    client.say("reader", stream)
    assert bytes.fromhex(client.say("last")) == b"nadi's"
    assert int(client.say("search", "offset", 99)) == 99 * SIZE  # the first of two
    client.append(1000, 100)
    with pytest.raises(OfficialError, match=r"ConditionalCheckFailure|ended"):  # it panics after an earlier rejection
        client.say("flush")  # nadi wrote meanwhile
    client = rust()
    client.say("writer", stream, "two")
    client.append(1000, 100, data=b"rust's", after=())
    client.say("flush")
    last = reader.last()
    assert last is not None
    assert (last.offset, last.data) == (101 * SIZE, b"rust's")


def test_rust_reads_and_continues_a_nadi_stream(
    rust: Callable[[], OfficialRust], nadi_manager: nadi.StreamManager, scope: str, stream: str
) -> None:
    with nadi_manager.create_index_writer(scope, "index", BOTH) as writer:
        for n in range(50):
            writer.append({"time": 10 * n, "offset": n}, b"%d" % n)
        writer.append({"time": 490, "offset": 50}, b"x" * writer.data_limit)
    client = rust()
    client.say("reader", stream)
    assert client.read(0, 50 * SIZE, 100) == [b"%d" % n for n in range(50)]
    assert [int(client.say("search", "time", time)) // SIZE for time in (0, 11, 490)] == [0, 2, 49]
    with pytest.raises(OfficialError, match="FieldNotFound"):
        client.say("search", "time", 491)
    with pytest.raises(OfficialError, match="FieldNotFound"):
        client.say("search", "speed", 0)
    assert (client.say("first"), len(client.say("last")) // 2) == (b"0".hex(), writer.data_limit)
    client.say("writer", stream, "two")
    with pytest.raises(OfficialError, match="InvalidFields"):
        client.append(489, 60)
    client.append(490, 60, data=b"rust's")
    client.say("flush")
    with nadi_manager.create_index_writer(scope, "index", BOTH) as again:
        assert again.last() == {"time": 490, "offset": 60}
        with pytest.raises(InvalidArgumentError):
            again.append({"time": 489, "offset": 61})
        assert again.append({"time": 491, "offset": 61}, after={"time": 490, "offset": 60}) == 52 * SIZE


def test_further_fields(
    rust: Callable[[], OfficialRust], nadi_manager: nadi.StreamManager, scope: str, stream: str
) -> None:
    client = rust()
    client.say("writer", stream, "two")
    client.append(1, 1)
    client.say("flush")
    with nadi_manager.create_index_writer(scope, "index", (*BOTH, "pos")) as writer:
        writer.append({"time": 2, "offset": 2, "pos": 7})
    client.say("writer", stream, "three")
    client.append(3, 3, 9)
    client.say("flush")
    client.say("reader", stream)
    reader = nadi_manager.create_index_reader(scope, "index")
    for value in (0, 7, 8):
        assert int(client.say("search", "pos", value)) == reader.search("pos", value)
    client.say("writer", stream, "two")
    with pytest.raises(OfficialError, match="InvalidFields"):
        client.append(4, 4)  # one field fewer than before
    with pytest.raises(InvalidArgumentError):
        nadi_manager.create_index_writer(scope, "index", BOTH)


def test_truncation_by_either(
    rust: Callable[[], OfficialRust], nadi_manager: nadi.StreamManager, scope: str, stream: str
) -> None:
    client = rust()
    with nadi_manager.create_index_writer(scope, "index", BOTH) as writer:
        for n in range(20):
            writer.append({"time": n, "offset": n}, b"%d" % n)
        writer.flush()
        writer.truncate_before("time", 5)
        client.say("reader", stream)
        assert (int(client.say("head")), int(client.say("tail"))) == (5 * SIZE, 20 * SIZE)
        assert (int(client.say("search", "time", 0)), client.say("first")) == (5 * SIZE, b"5".hex())
        client.say("writer", stream, "two")
        client.say("truncate", 9 * SIZE)
        reader = nadi_manager.create_index_reader(scope, "index")
        assert (reader.head(), reader.search("time", 0), reader.search("time", 12)) == (9 * SIZE, 9 * SIZE, 12 * SIZE)
        client.say("truncate", 10 * SIZE + 1)
        assert [record.data for record in reader.read()] == [b"%d" % n for n in range(11, 20)]
        assert writer.truncate_before("time", 15) == 15 * SIZE
    assert (int(client.say("head")), client.say("first")) == (15 * SIZE, b"15".hex())


def test_record_sizes(
    rust: Callable[[], OfficialRust], nadi_manager: nadi.StreamManager, scope: str, stream: str
) -> None:
    client = rust()
    client.say("writer", stream, "small")
    client.append(1, 1, data=b"rust")
    client.say("flush")
    with nadi_manager.create_index_writer(scope, "index", BOTH) as writer:
        assert (writer.record_size, writer.data_limit) == (200, 200 - 32 - 48)
        writer.append({"time": 2, "offset": 2}, b"x" * writer.data_limit)
    client.say("writer", stream, "small")
    client.append(3, 3, data=b"y" * writer.data_limit)
    with pytest.raises(OfficialError, match="exceeds the max size"):
        client.append(4, 4, data=b"y" * (writer.data_limit + 1))
    client.say("flush")
    client.say("reader", stream)
    assert client.read(0, 600, 10) == [b"rust", b"x" * 120, b"y" * 120]
    nadi_manager.create_stream(scope, "own")
    with nadi_manager.create_index_writer(scope, "own", BOTH, record_size=200) as own:
        own.append({"time": 1, "offset": 1}, b"nadi")
    client.say("writer", f"{scope}/own", "small")
    client.append(2, 2, data=b"rust")
    client.say("flush")
    client.say("reader", f"{scope}/own")
    assert client.read(0, 400, 10) == [b"nadi", b"rust"]


def test_the_largest_records(
    rust: Callable[[], OfficialRust], nadi_manager: nadi.StreamManager, scope: str, stream: str
) -> None:
    data = [bytes([n]) * (INDEX_RECORD_MAX_BYTES - 32 - 48) for n in range(200)]
    with nadi_manager.create_index_writer(scope, "index", BOTH, record_size=INDEX_RECORD_MAX_BYTES) as writer:
        for n, some in enumerate(data):
            writer.append({"time": n, "offset": n}, some)
    client = rust()
    client.say("reader", stream)
    for n in range(200):
        assert int(client.say("search", "time", n)) == n * INDEX_RECORD_MAX_BYTES
    assert client.say("last") == data[-1].hex()
    assert client.read(0, 3 * INDEX_RECORD_MAX_BYTES, 3) == data[:3]


def test_following_the_tail(
    rust: Callable[[], OfficialRust], nadi_manager: nadi.StreamManager, scope: str, stream: str
) -> None:
    client = rust()
    client.say("reader", stream)
    client.begin("read", 0, "-", 3)
    with nadi_manager.create_index_writer(scope, "index", BOTH) as writer:
        for n in range(3):
            writer.append({"time": n, "offset": n}, b"%d" % n)
            writer.flush()
    assert client.result() == ",".join((b"%d" % n).hex() for n in range(3))
    records = nadi_manager.create_index_reader(scope, "index").read(2 * SIZE, follow=True)
    assert next(records).data == b"2"
    client.say("writer", stream, "two")
    client.append(3, 3, data=b"rust's")
    assert next(records).data == b"rust's"


def test_conditions(
    rust: Callable[[], OfficialRust], nadi_manager: nadi.StreamManager, scope: str, stream: str
) -> None:
    client = rust()
    client.say("writer", stream, "two")
    client.append(1, 1)
    client.append(2, 2, after=(1, 1))
    with pytest.raises(OfficialError, match="InvalidCondition"):
        client.append(3, 3, after=(1, 1))
    client.say("flush")
    with nadi_manager.create_index_writer(scope, "index", BOTH) as writer:
        with pytest.raises(ConditionFailedError):
            writer.append({"time": 3, "offset": 3}, after={"time": 1, "offset": 1})
        writer.append({"time": 3, "offset": 3}, after={"time": 2, "offset": 2})
    client.say("writer", stream, "two")
    with pytest.raises(OfficialError, match="ended"):
        client.append(4, 4, after=(3, 3))  # the official writer doesn't know the last record before its first append


def test_nadi_continues_a_rust_stream_with_a_decreased_field(
    rust: Callable[[], OfficialRust], nadi_manager: nadi.StreamManager, scope: str, stream: str
) -> None:
    """Rust compares records by the first differing field. nadi accepts such streams, and checks against the last
    record."""
    client = rust()
    client.say("writer", stream, "two")
    client.append(1, 100)
    client.append(2, 5)
    client.say("flush")
    with nadi_manager.create_index_writer(scope, "index", BOTH) as writer:
        with pytest.raises(InvalidArgumentError):
            writer.append({"time": 3, "offset": 4})
        writer.append({"time": 3, "offset": 5})


def test_golden_records_match_the_official_client(
    rust: Callable[[], OfficialRust], nadi_manager: nadi.StreamManager, scope: str
) -> None:
    client = rust()
    nadi_manager.create_scope(scope)
    for number, (kind, values, data, expected) in enumerate(RECORDS):
        nadi_manager.create_stream(scope, f"golden-{number}")
        client.say("writer", f"{scope}/golden-{number}", kind)
        client.append(*map(int, values.split(",")), data=bytes.fromhex(data))
        client.say("flush")
        with nadi_manager.create_byte_reader(scope, f"golden-{number}") as reader:
            assert reader.read().rstrip(b"\0").hex() == expected, (kind, values, data)
