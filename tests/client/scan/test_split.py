"""Splits: their sizes, their serialized form, and errors of reading."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nadi
from nadi.client import Basic, Bearer, StreamManager
from nadi.client.control.security import ClientCertificate, Credentials, EncodedCredentials
from nadi.client.scan import connection
from nadi.client.scan.connection import ConnectionSettings
from nadi.client.scan.pieces import ScanRange, split_at
from nadi.client.scan.rows import ScanRows
from nadi.client.scan.split import Split, data_of, text_of
from nadi.errors import (
    ClosedError,
    InvalidArgumentError,
    SegmentTruncatedError,
    StreamNotFoundError,
    StreamRecreatedError,
    TruncatedError,
)

EVENT_BYTES = 5_000
# of format 1: a stored text has to stay readable, or be rejected
STORED = (
    "eJw9jtFuwyAMRf_Fz2ghVZSN_EpUIUS8Fg0Mik1fqv37TCvNbz6-9_o-gcKRPLecBLbZQD8TbCCZt2liqSduzjoLBuTsLP6FVDChxCmGj4ZFb4-Q"
    "0xEE_b2qhkJRyXfIjAY41jYM96rQQKy5F2LYdsAHkihqlZOkSnA1b-YlFfSdRiMorJJK_ggl3EYQ_6SmqBMhy_-bljDiiN2hoOCpruXiFrd-XtyX"
    "mVezWLeafbdmtvaq8yrdh4V6zgZyvSV6L79_S0pbIg"
)


def filled(manager: StreamManager, stream: str, events: int = 1_000, segments: int = 1) -> nadi.StreamCut:
    manager.create_stream("sc", stream, segments)
    with manager.create_writer("sc", stream) as writer:
        for number in range(events):
            writer.write_event(b"%d" % number + b"x" * EVENT_BYTES, f"k{number}")
    return manager.cuts("sc", stream).tail()


def split_of(credentials: Credentials | None = None) -> Split:
    piece = ScanRange("meters", (1 << 32) | 2, 16, 4_096, ((0, 100),))
    rows = ScanRows("home", ("event", "position"), "ms", None, "skip", False)
    return Split(ConnectionSettings("tls://store:9090", credentials, "/etc/ca.pem", False), rows, (piece,))


# --- sizes --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def uneven(uri: str) -> Iterator[StreamManager]:
    """Stream sc/uneven: three segments; one has half of all bytes and was split."""
    with StreamManager(uri) as manager:
        manager.create_stream("sc", "uneven", 3)
        with manager.create_writer("sc", "uneven") as writer:
            for number in range(2_000):
                writer.write_event(b"x" * (number % 97 * 100), "hot" if number % 2 else f"k{number}")
                if number == 1_000:
                    writer.flush(60)
                    manager.scale_stream("sc", "uneven", [0], [(0.0, 0.1), (0.1, 1 / 3)])
        yield manager


@pytest.mark.parametrize("count", [2, 3, 4, 8, 16])
def test_parts_are_about_equal(uneven: StreamManager, count: int) -> None:
    scan = nadi.scan(uneven, "sc", "uneven")
    splits = scan.splits(count, max_bytes=scan.size_bytes)  # a small part
    sizes = [split.size_bytes for split in splits]
    assert sum(sizes) == scan.size_bytes
    few = min(count, -(-scan.size_bytes // (1 << 20)))
    assert len(sizes) == few
    assert max(sizes) <= 1.07 * scan.size_bytes / few
    found = sorted(
        row for split in splits for row in zip(*map(column_of(split), ("segment_id", "offset")), strict=True)
    )
    whole = pa.table(scan)
    assert found == sorted(zip(whole["segment_id"].to_pylist(), whole["offset"].to_pylist(), strict=True))


def in_order(table: pa.Table) -> pa.Table:
    return table.sort_by([("segment_id", "ascending"), ("offset", "ascending")]).combine_chunks()


def column_of(split: Split) -> Callable[[str], list[Any]]:
    table = pa.table(split)
    return lambda name: table[name].to_pylist()


@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=20), places=st.sets(st.integers(1, 999), max_size=20))
def test_split_at_keeps_all_bytes_in_order(sizes: list[int], places: set[int]) -> None:
    pieces = [ScanRange("s", number, 7, 7 + size) for number, size in enumerate(sizes)]
    bounds = sorted(place for place in places if place < sum(sizes))
    parts = split_at(pieces, bounds)
    lengths = [sum(piece.size_bytes for piece in part) for part in parts]
    assert list(accumulate(lengths)) == [*bounds, sum(sizes)]
    flat = [piece for part in parts for piece in part]
    assert all(piece.size_bytes for piece in flat)
    bytes_of = [(piece.segment_id, offset) for piece in flat for offset in range(piece.start, piece.end)]
    assert bytes_of == [(piece.segment_id, offset) for piece in pieces for offset in range(piece.start, piece.end)]


@pytest.mark.slow
def test_splits_of_many_segments(uneven: StreamManager) -> None:
    uneven.create_stream("sc", "dense")
    with uneven.create_writer("sc", "dense") as writer:
        for round_ in range(12):
            for number in range(20 + round_ * 5):
                writer.write_event(b"%d.%d" % (round_, number), f"k{number}")
            writer.flush(60)
            sealed = list(uneven.cuts("sc", "dense").tail().positions)
            ranges = [(0.0, 0.5), (0.5, 1.0)] if len(sealed) == 1 else [(0.0, 1.0)]
            uneven.scale_stream("sc", "dense", sealed, ranges)
    scan = nadi.scan(uneven, "sc", "dense")
    whole = in_order(pa.table(scan))
    for most in (1, 40, 1_000, 100_000):
        splits = scan.splits(1, max_bytes=most)
        assert in_order(pa.concat_tables(map(pa.table, splits))).equals(whole)
        assert most == 1 or max(split.size_bytes for split in splits) <= most + 20


def test_event_longer_than_a_part_is_one_part(uneven: StreamManager) -> None:
    uneven.create_stream("sc", "huge")
    with uneven.create_writer("sc", "huge") as writer:
        for event in (b"a", b"z" * 12_000_000, b"e"):
            writer.write_event(event)
    splits = nadi.scan(uneven, "sc", "huge").splits(8)
    assert 1 <= len(splits) <= 3
    assert [len(event) for split in splits for event in column_of(split)("event")] == [1, 12_000_000, 1]


# --- serialized form -----------------------------------------------------------------------------------------------


def test_text_and_pickle_round_trip(uneven: StreamManager) -> None:
    given: dict[str, Any] = {"value_format": "json", "value_schema": "meter string, wh array<long>", "unnest": True}
    real = nadi.scan(uneven, "sc", "uneven", **given).splits(2)[0]
    for split in (real, split_of()):
        assert Split.from_text(split.as_text()) == split
        assert pickle.loads(pickle.dumps(split)) == split
        assert split.as_text().replace("-", "").replace("_", "").isalnum()
    assert pa.table(Split.from_text(real.as_text())).equals(pa.table(real))


@pytest.mark.parametrize(
    "credentials",
    [
        Basic("ann", "very secret"),
        Bearer("secret"),
        EncodedCredentials("Basic c2VjcmV0"),
        ClientCertificate("secret.pem", "secret.key"),
        ClientCertificate("secret.pem", "secret.key", Basic("ann", "very secret")),
    ],
)
def test_text_has_credentials_only_on_request(credentials: Credentials) -> None:
    split = split_of(credentials)
    assert b"ecret" not in data_of(split.as_text())
    assert "ecret" not in repr(split) or isinstance(credentials, ClientCertificate)  # its paths
    assert Split.from_text(split.as_text()).connection.credentials is None
    assert Split.from_text(split.as_text(with_credentials=True)) == split
    assert Split.from_text(split.as_text(), credentials=credentials) == split
    assert pickle.loads(pickle.dumps(split)) == split


def token() -> str:
    return "secret"


def test_callable_credentials_cant_be_text() -> None:
    split = split_of(Bearer(token))
    assert pickle.loads(pickle.dumps(split)) == split
    with pytest.raises(InvalidArgumentError):
        split.as_text(with_credentials=True)


def test_stored_text_is_readable() -> None:
    assert Split.from_text(STORED) == split_of()


@pytest.mark.parametrize(
    "change",
    [
        {"nadi_split": 2},
        {"nadi_split": "1"},
        {"colour": "red"},
        {"pieces": [["s", 0, "1", 2, []]]},
        {"login": {"kind": "basic", "parts": ["ann"]}},
        {"values": {"format": "json", "mode": "FAILFAST", "kind": "AAAA"}},
    ],
)
def test_split_of_another_version_is_rejected(change: dict[str, Any]) -> None:
    made = msgspec.json.decode(data_of(split_of().as_text()), type=dict[str, Any])
    data = msgspec.json.encode(made | change)
    with pytest.raises(InvalidArgumentError):
        Split.from_text(text_of(data))
    call, (_, credentials) = split_of().__reduce__()
    with pytest.raises(InvalidArgumentError):
        call(data, credentials)


def test_damaged_text_is_rejected() -> None:
    text = split_of().as_text()
    changed = text[:60] + ("A" if text[60] != "A" else "B") + text[61:]
    for wrong in ("", "x", "no text", text[:-4], text[4:], changed, text + "AAAA", f"{text} ", text * 2):
        with pytest.raises(InvalidArgumentError):
            Split.from_text(wrong)


# --- errors --------------------------------------------------------------------------------------------------------


def test_read_after_truncation(uneven: StreamManager) -> None:
    tail = filled(uneven, "truncated")
    scan = nadi.scan(uneven, "sc", "truncated")
    splits = scan.splits(2)
    uneven.truncate_stream(tail)
    for read in (splits[0].batches, splits[0].blocks):
        with pytest.raises(TruncatedError):
            list(read())
    filled_again = nadi.scan(uneven, "sc", "truncated")
    assert filled_again.splits(2) == []


def test_read_after_truncation_of_whole_segment(uneven: StreamManager) -> None:
    filled(uneven, "gone")
    splits = nadi.scan(uneven, "sc", "gone").splits(1)
    uneven.scale_stream("sc", "gone", [0], [(0.0, 0.5), (0.5, 1.0)])
    uneven.truncate_stream(uneven.cuts("sc", "gone").tail())
    with pytest.raises(SegmentTruncatedError):
        list(splits[0].batches())


def test_read_after_deletion(uneven: StreamManager) -> None:
    filled(uneven, "deleted")
    scan = nadi.scan(uneven, "sc", "deleted")
    (split,) = scan.splits(1)
    uneven.seal_stream("sc", "deleted")
    uneven.delete_stream("sc", "deleted")
    for read in (split.batches, split.blocks):
        with pytest.raises(StreamNotFoundError):
            list(read())
    with pytest.raises(StreamNotFoundError):
        scan.splits(2)
    filled(uneven, "deleted")  # another stream of that name
    with pytest.raises(StreamRecreatedError):
        list(split.batches())


def test_read_in_forked_process(uneven: StreamManager) -> None:
    (split,) = nadi.scan(uneven, "sc", "uneven").splits(1)
    child = os.fork()
    if not child:
        signal.alarm(60)  # ends a hanging process by a signal
        code = 1
        try:
            list(split.batches())
        except ClosedError as error:
            code = 7 if "spawn" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


# --- sharing -------------------------------------------------------------------------------------------------------


def test_threads_of_a_process_share_one_client(uneven: StreamManager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_clients", {})
    splits = nadi.scan(uneven, "sc", "uneven").splits(2) * 4
    with ThreadPoolExecutor(8) as pool:
        counts = [table.num_rows for table in pool.map(pa.table, splits)]
    assert sum(counts) == 4 * 2_000
    assert len(connection._clients) == 1
    (client,) = connection._clients.values()
    client.thread.close(client.manager.close())


def test_blocks_are_the_written_events(uneven: StreamManager) -> None:
    scan = nadi.scan(uneven, "sc", "uneven", columns=["offset"])
    for split in scan.splits(2):
        found = [event for _, block in split.blocks() for event in block.events()]
        assert found == column_of(Split(split.connection, with_events(split.rows), split.pieces))("event")


def with_events(rows: ScanRows) -> ScanRows:
    return ScanRows(rows.scope, ("event",), rows.event_time_unit, None, rows.on_damage, False)
