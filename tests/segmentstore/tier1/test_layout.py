"""The bytes of log files: what this version writes, and that what earlier ones wrote is read."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from crc32c import crc32c

from nadi.errors import CorruptLogError
from nadi.segmentstore.tier1.files import FileLog
from nadi.segmentstore.tier1.layout import (
    BLOCK_BYTES,
    FRAME_HEADER_1_BYTES,
    FRAME_HEADER_BYTES,
    FileHeader,
    FrameHeader,
    checksum_at,
    encode_table,
    log_file_name,
)
from nadi.segmentstore.tier1.log import LogAddress
from tests.support.replayed import replayed

LOG_ID = bytes(range(16))
FILE_HEADER = bytes.fromhex(
    "6e6164692d6c6f67 02000000 000102030405060708090a0b0c0d0e0f 0c00000000000000 2200000000000000 0500000000000000"
    "e7b68c26 0000010000000000 44de50c4"
)
FRAME_HEADER = bytes.fromhex(
    "6e616432 18000000 2200000000000000 0500000000000000 0c00000000000000 0020000000000000"
    "08000000 79d52c5d 02000000 bce296db eb703992"
)
PAYLOAD = b"the headfirstsecond part"
TABLE = bytes.fromhex("05000000 faeda2cd 0b000000 830eb39b")


def test_golden_file_header() -> None:
    header = FileHeader(LOG_ID, 12, 34, 5, 65_536)
    assert header.encode() == FILE_HEADER.ljust(BLOCK_BYTES, b"\0")
    assert FileHeader.decode(header.encode(), Path("log")) == header


def test_golden_frame() -> None:
    log_crc, place = crc32c(LOG_ID), 8_192 + FRAME_HEADER_BYTES
    table, checksums = encode_table([b"first", b"second part"], log_crc, 12, place + 8)
    crcs = checksum_at(b"the head", log_crc, 12, place), checksum_at(table, log_crc, 12, place + 24)
    header = FrameHeader(24, 34, 5, 12, 8_192, 8, crcs[0], 2, crcs[1])
    block = bytearray(BLOCK_BYTES)
    header.encode_into(memoryview(block), log_crc)
    assert (table, checksums) == (TABLE, TABLE[4:8] + TABLE[12:])
    assert block == FRAME_HEADER.ljust(BLOCK_BYTES, b"\0")
    assert FrameHeader.decode(memoryview(block), log_crc, 12, 8_192) == header
    for number, offset in ((11, 8_192), (12, 4_096)):
        assert FrameHeader.decode(memoryview(block), log_crc, number, offset) is None


@pytest.mark.parametrize("at", range(len(FRAME_HEADER) + len(PAYLOAD) + len(TABLE)))
def test_every_byte_of_a_frame_is_under_a_checksum(at: int) -> None:
    frame = bytearray(FRAME_HEADER + PAYLOAD + TABLE)
    frame[at] ^= 1
    header = FrameHeader.decode(memoryview(frame), crc32c(LOG_ID), 12, 8_192)
    assert (header is None) == (at < FRAME_HEADER_BYTES)
    if header is not None:
        check = header.check(memoryview(frame), crc32c(LOG_ID))
        place = at - FRAME_HEADER_BYTES
        damaged = () if place < 8 else (0,) if place < 13 else (1,) if place < 24 else (0, 1)
        assert (check.head_is_whole, check.damaged_parts) == (place >= 8, damaged)
        assert not check.is_whole


# --- format 1 --------------------------------------------------------------------------------------


def old_file(number: int, first_sequence: int, payloads: list[bytes]) -> tuple[bytes, list[LogAddress]]:
    """As versions up to 0.9 wrote a log file of epoch 1."""
    header = struct.pack("<8sI16sQQQ", b"nadi-log", 1, LOG_ID, number, first_sequence, 1)
    data = (header + struct.pack("<I", crc32c(header))).ljust(4096, b"\0")
    addresses = []
    for sequence, payload in enumerate(payloads, first_sequence):
        header = struct.pack("<4sIQQQQI", b"nadf", len(payload), sequence, 1, number, len(data), crc32c(payload))
        frame = header + struct.pack("<I", crc32c(header, crc32c(LOG_ID))) + payload
        addresses.append(LogAddress(sequence, number, len(data) + 48))
        data += frame + bytes(-len(frame) % 4096)
    return data.ljust(65_536, b"\0"), addresses


PAYLOADS = [os.urandom(size) for size in (10, 5_000, 4_048, 4_049, 20_000)]


@pytest.fixture
def old_log(tmp_path: Path) -> tuple[Path, list[LogAddress]]:
    first, addresses = old_file(1, 1, PAYLOADS[:2])
    second, more = old_file(2, 3, PAYLOADS[2:])
    (tmp_path / log_file_name(1)).write_bytes(first)
    (tmp_path / log_file_name(2)).write_bytes(second)
    (tmp_path / log_file_name(3)).write_bytes(bytes(65_536))
    return tmp_path, addresses + more


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


async def test_a_log_of_format_1_is_read_and_goes_on_in_format_2(old_log: tuple[Path, list[LogAddress]]) -> None:
    folder, addresses = old_log

    for life in range(2):
        log = FileLog.open(folder, file_bytes=65_536)
        frames = await replayed(log)
        assert [frame.payload for frame in frames] == [*PAYLOADS, b"new"][: 5 + life]
        assert [frame.address for frame in frames[:5]] == addresses
        assert not any(frame.checksums or frame.damaged_parts for frame in frames)
        for address, payload in zip(addresses, PAYLOADS, strict=True):
            assert await log.read_at(address, 3, 5) == payload[3:8]
        if not life:
            await log.append([b"new"])
        await log.close()


async def test_damage_in_a_log_of_format_1(old_log: tuple[Path, list[LogAddress]]) -> None:
    """Such a frame has one checksum: what it changed can't be told any more, so it must be known already."""
    folder, addresses = old_log
    flip(folder / log_file_name(1), addresses[1].offset + 4_000)

    log = FileLog.open(folder, file_bytes=65_536)
    with pytest.raises(CorruptLogError):
        await replayed(log)
    await log.close()
    log = FileLog.open(folder, file_bytes=65_536)
    assert [frame.payload for frame in await replayed(log, 2)] == PAYLOADS[2:]
    with pytest.raises(CorruptLogError, match="checksum"):
        await log.read_at(addresses[1], 0, 10)
    with pytest.raises(CorruptLogError, match="not there"):
        await log.read_at(addresses[0]._replace(sequence=7), 0, 10)
    assert await log.read_at(addresses[0], 0, 10) == PAYLOADS[0]
    await log.close()


def test_a_whole_header_of_format_1_has_its_size() -> None:
    data, addresses = old_file(1, 1, [b"payload"])
    header = FrameHeader.decode(memoryview(data)[BLOCK_BYTES:], crc32c(LOG_ID), 1, BLOCK_BYTES)
    assert header is not None
    assert (header.header_bytes, header.head_bytes, header.frame_bytes) == (FRAME_HEADER_1_BYTES, 7, BLOCK_BYTES)
    assert addresses[0].offset == BLOCK_BYTES + header.header_bytes
