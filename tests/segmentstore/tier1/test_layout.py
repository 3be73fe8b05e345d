"""The bytes of log files: what this version writes, and that what earlier ones wrote is read."""

from __future__ import annotations

from pathlib import Path

import pytest
from crc32c import crc32c

from nadi.segmentstore.tier1.layout import (
    BLOCK_BYTES,
    FRAME_HEADER_BYTES,
    FileHeader,
    FrameHeader,
    checksum_at,
    encode_table,
)

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
