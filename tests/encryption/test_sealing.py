"""Sealed blocks: they open only whole, with their key, and in their place; no nonce is repeated."""

from __future__ import annotations

import os
import struct
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nadi.client.streamtables.latest_rows import Spill
from nadi.encryption import sealing
from nadi.encryption.sealing import BLOCK_BYTES, PLAIN, Buffer, DataKeys, SealBrokenError, Sealing, block_context
from nadi.errors import EncryptionKeyError
from nadi.segmentstore.state.operations import frame_context, seal_frame

pytest.importorskip("cryptography", reason="encryption needs cryptography")
KEY, OTHER = bytes(range(32)), bytes(32)
CONTEXT = b"frame 7"


def header_of(block: Buffer) -> tuple[int, bytes, int]:
    key, salt, number = struct.unpack_from("<I16sQ", block)
    return key, salt, number


@given(st.binary(max_size=3_000), st.binary(max_size=30))
def test_a_block_opens_to_what_was_sealed_and_hides_it(data: bytes, context: bytes) -> None:
    keys = DataKeys({1: KEY})
    block = bytes(keys.seal(data, context))
    assert len(block) == len(data) + keys.overhead == len(data) + 44
    assert keys.open(block, context) == data
    assert len(data) < 8 or data not in block


def test_a_block_with_any_damaged_byte_does_not_open() -> None:
    keys = DataKeys({1: KEY})
    block = bytes(keys.seal(b"some data", CONTEXT))
    for at in range(4, len(block)):
        damaged = block[:at] + bytes([block[at] ^ 1]) + block[at + 1 :]
        with pytest.raises(SealBrokenError):
            keys.open(damaged, CONTEXT)
    for size in range(len(block)):
        with pytest.raises((SealBrokenError, EncryptionKeyError)):
            keys.open(block[:size], CONTEXT)
    with pytest.raises(EncryptionKeyError, match="data key 0"):
        keys.open(bytes([block[0] ^ 1]) + block[1:], CONTEXT)


def test_a_block_does_not_open_with_another_key_or_context() -> None:
    block = DataKeys({1: KEY}).seal(b"some data", CONTEXT)
    with pytest.raises(SealBrokenError):
        DataKeys({1: OTHER}).open(block, CONTEXT)
    with pytest.raises(SealBrokenError):
        DataKeys({1: KEY}).open(block, b"frame 8")
    with pytest.raises(EncryptionKeyError, match="data key 1"):
        DataKeys({2: KEY}).open(block, CONTEXT)


def test_a_later_data_key_seals_and_the_earlier_ones_still_open() -> None:
    keys = DataKeys({1: KEY})
    old = keys.seal(b"old", CONTEXT)
    keys.use({1: KEY, 2: OTHER})
    new = keys.seal(b"new", CONTEXT)
    assert (header_of(old)[0], header_of(new)[0]) == (1, 2)
    assert (keys.open(old, CONTEXT), keys.open(new, CONTEXT)) == (b"old", b"new")


def test_no_nonce_repeats_in_threads_restarts_forks_and_rotations() -> None:
    nonces: list[tuple[int, bytes, int]] = []
    keys = DataKeys({1: KEY})

    def seal(keys: DataKeys) -> None:
        nonces.extend(header_of(keys.seal(b"x", CONTEXT)) for _ in range(500))

    threads = [threading.Thread(target=seal, args=[keys]) for _ in range(4)]
    for thread in threads:
        thread.start()
    keys.use({1: KEY, 2: OTHER})
    for thread in threads:
        thread.join()
    seal(DataKeys({1: KEY}))  # as after a restart, or in a copy of the store
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, bytes(keys.seal(b"x", CONTEXT)))
        os._exit(0)
    os.waitpid(child, 0)
    nonces += [header_of(os.read(reading, 100)), header_of(keys.seal(b"x", CONTEXT))]
    os.close(reading)
    os.close(writing)
    assert len(set(nonces)) == len(nonces) == 2_502


@pytest.mark.parametrize("keys", [PLAIN, DataKeys({1: KEY})], ids=["plain", "sealed"])
@pytest.mark.parametrize("sizes", [[], [1], [BLOCK_BYTES], [BLOCK_BYTES - 1, 2], [5, 2 * BLOCK_BYTES, 7]])
def test_parts_are_sealed_in_blocks_of_known_size(keys: Sealing, sizes: list[int]) -> None:
    parts = [os.urandom(size) for size in sizes]
    stored, length = b"".join(keys.seal_parts(parts, b"name")), sum(sizes)
    assert len(stored) == keys.stored_bytes(length)
    opened, at = b"", 0
    for number, begin in enumerate(range(0, length, BLOCK_BYTES)):
        size = min(BLOCK_BYTES, length - begin) + keys.overhead
        opened += keys.open(stored[at : at + size], block_context(b"name", number) if keys is not PLAIN else b"")
        at += size
    assert opened == b"".join(parts)


def test_ephemeral_files_are_in_memory_and_leave_with_their_process(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = DataKeys({1: KEY})
    assert keys.scratch is not None
    hidden = keys.hidden(Path("/data/container-0/state"))
    assert hidden.parent == keys.scratch
    assert str(hidden).startswith("/dev/shm/")
    assert hidden == keys.hidden(Path("/data/container-0/state")) != keys.hidden(Path("/data/container-1/state"))
    assert keys.hidden(hidden / "data.mdb") == hidden / "data.mdb", "it is in memory already"
    monkeypatch.setattr(sealing, "_NEW_S", 0.0)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, os.fsencode(DataKeys({1: KEY}).scratch or ""))
        os._exit(0)  # as a kill does: nothing is cleaned up
    os.waitpid(child, 0)
    left_over = Path(os.fsdecode(os.read(reading, 1_000)))
    os.close(reading)
    os.close(writing)
    assert left_over.is_dir()
    assert left_over != keys.scratch
    monkeypatch.setattr(sealing, "_own", None)
    DataKeys({1: KEY})
    assert not left_over.exists()
    assert keys.scratch.is_dir(), "its process is alive"


def test_a_process_with_a_master_key_spills_tables_to_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def places() -> set[str]:
        with Spill(pa.schema([("key", pa.string())]), ["key"], 0) as spill:
            return {os.readlink(f"/proc/self/fd/{file.fileno()}").split("/")[1] for file in spill._files}

    monkeypatch.delenv("NADI_ENCRYPTION_KEY", raising=False)
    assert places() == {"tmp"}
    monkeypatch.setenv("NADI_ENCRYPTION_KEY", "file:/etc/nadi/master.key")
    assert places() == {"dev"}


def test_a_part_of_a_frame_opens_at_its_own_place_only() -> None:
    keys = DataKeys({1: bytes(32)})
    head, first, second = seal_frame([b"head", b"one", b"two"], keys, 7)
    position = len(head)
    assert keys.open(first, frame_context(7, position)) == b"one"
    assert keys.open(second, frame_context(7, position + len(first))) == b"two"
    for context in (frame_context(7, position), frame_context(8, position + len(first)), frame_context(7)):
        with pytest.raises(SealBrokenError):
            keys.open(second, context)
