"""The official package's byte streams: raw bytes, without events."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import nadi
from tests.compatibility.conftest import Official
from tests.compatibility.official_python import OfficialError

pytestmark = pytest.mark.compatibility

STREAM = "bytes"


def test_write_seek_read_and_truncate(client: Official, scope: str) -> None:
    client.manager.create_stream(scope, STREAM, 1)
    stream = client.manager.create_byte_stream(scope, STREAM)
    content = bytes(range(256)) * 4_000
    for start in range(0, len(content), 100_000):
        assert stream.write(content[start : start + 100_000]) == len(content[start : start + 100_000])
    stream.flush()
    assert stream.seekable()
    assert (stream.current_head_offset(), stream.current_tail_offset()) == (0, len(content))
    assert client.extras.read_bytes(stream, len(content)) == content
    assert stream.tell() == len(content)
    assert stream.seek(1_000, 0) == 1_000
    assert client.extras.read_bytes(stream, 50) == content[1_000:1_050]
    assert stream.seek(-20, 1) == 1_030
    assert client.extras.read_bytes(stream, 10) == content[1_030:1_040]
    assert stream.seek(-5, 2) == len(content) - 5
    assert client.extras.read_bytes(stream, 5) == content[-5:]
    stream.truncate(500_000)
    stream.seek(0, 0)
    with pytest.raises(OfficialError, match="SegmentIsTruncated"):
        client.extras.read_bytes(stream, 1)
    assert (stream.current_head_offset(), stream.current_tail_offset()) == (500_000, len(content))
    stream.seek(500_000, 0)
    assert client.extras.read_bytes(stream, 100) == content[500_000:500_100]
    stream.write(b"more")
    stream.flush()
    stream.seek(-4, 2)
    assert client.extras.read_bytes(stream, 4) == b"more"


def test_a_read_at_the_tail_waits_for_another_writer(
    client: Official, official: Callable[[], Official], scope: str
) -> None:
    second = official()
    client.manager.create_stream(scope, STREAM, 1)
    writing = client.manager.create_byte_stream(scope, STREAM)
    reading = second.manager.create_byte_stream(scope, STREAM)
    second.process.begin(second.extras, "read_bytes", reading, 10)
    writing.write(b"0123456789")
    writing.flush()
    assert second.process.result() == b"0123456789"


def test_second_writer_is_rejected(client: Official, official: Callable[[], Official], scope: str) -> None:
    """The package's writer assumes an empty stream; its data must not be mixed with another writer's."""
    second = official()
    client.manager.create_stream(scope, STREAM, 1)
    writing = client.manager.create_byte_stream(scope, STREAM)
    writing.write(b"first")
    writing.flush()
    other = second.manager.create_byte_stream(scope, STREAM)
    with pytest.raises(OfficialError, match="ConditionalCheckFailure"):
        second.extras.write_bytes(other, b"second")
    writing.write(b" and more")
    writing.flush()
    reading = second.manager.create_byte_stream(scope, STREAM)
    assert second.extras.read_bytes(reading, 14) == b"first and more"


def test_nadi_and_the_package_read_each_others_bytes(
    client: Official, nadi_manager: nadi.StreamManager, scope: str
) -> None:
    content = bytes(range(256)) * 1_000
    for name in ("official", "nadi"):
        client.manager.create_stream(scope, name, 1)
    client.extras.write_bytes(client.manager.create_byte_stream(scope, "official"), content)
    with nadi_manager.create_byte_reader(scope, "official") as reader:
        assert reader.read() == content
    with nadi_manager.create_byte_writer(scope, "official") as writer:
        assert writer.tell() == len(content)
    with nadi_manager.create_byte_writer(scope, "nadi") as writer:
        writer.write(content)
    assert client.extras.read_bytes(client.manager.create_byte_stream(scope, "nadi"), len(content)) == content
