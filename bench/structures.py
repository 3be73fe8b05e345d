"""Byte streams in pieces of 1 MiB, updates of shared state, and changes of a key-value table."""

from __future__ import annotations

import os
import time
from pathlib import Path

import nadi
from bench.measure import SCOPE, STREAM, Figure
from nadi.client import KeyValueTableConfiguration

PIECES = 512
PIECE_BYTES = 1 << 20
CHANGES = 500


def byte_stream(folder: Path) -> list[Figure]:
    piece, buffer = os.urandom(PIECE_BYTES), bytearray(PIECE_BYTES)
    megabytes = PIECES * PIECE_BYTES / 1e6
    with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
        manager.create_scope(SCOPE)
        manager.create_stream(SCOPE, STREAM)
        with manager.create_byte_writer(SCOPE, STREAM) as writer:
            began = time.perf_counter()
            for _ in range(PIECES):
                writer.write(piece)
            writer.flush()
            written_s = time.perf_counter() - began
        with manager.create_byte_reader(SCOPE, STREAM) as reader:
            began = time.perf_counter()
            while reader.readinto(buffer):
                pass
            read_s = time.perf_counter() - began
    return [
        Figure("write a byte stream, 1 MiB pieces", megabytes / written_s, "MB/s", 200),
        Figure("read a byte stream, 1 MiB pieces", megabytes / read_s, "MB/s", 200),
    ]


def changes(folder: Path) -> list[Figure]:
    with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
        manager.create_scope(SCOPE)
        manager.create_stream(SCOPE, STREAM)
        counter = manager.shared_counter(SCOPE, STREAM)
        began = time.perf_counter()
        for _ in range(CHANGES):
            counter.add()
        counted_s = time.perf_counter() - began
        manager.create_key_value_table(SCOPE, "table", KeyValueTableConfiguration(8))
        table = manager.key_value_table(SCOPE, "table")
        began = time.perf_counter()
        version = table.insert(b"the key ", b"0")
        for number in range(CHANGES):
            version = table.put(b"the key ", b"%d" % number, version)
        changed_s = time.perf_counter() - began
    return [
        Figure("updates of a shared counter, one client", CHANGES / counted_s, "updates/s"),
        Figure("conditional changes of a table's key, one client", CHANGES / changed_s, "changes/s"),
    ]
