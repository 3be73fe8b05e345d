"""Table requests of many keys: looked up some in a turn, answered in order, and bounded."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from nadi import limits
from nadi.errors import ProtocolError
from nadi.limits import LIST_MAX_ENTRIES, TABLE_READ_KEYS
from nadi.segmentstore.container import table_segments
from nadi.segmentstore.state.metadata import Metadata
from nadi.wire import commands as wire
from nadi.wire.codec import encode
from nadi.wire.fields import NO_VERSION, NOT_EXISTS, TableEntry, TableKey
from tests.segmentstore.harness import open_store
from tests.support.decoder import Decoder

T = "scope/table/0.#epoch.0"


def test_many_keys_are_read_some_in_a_turn_and_answered_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, sizes = table_segments.read, list[int]()

    def counted(keys: Any, *arguments: Any) -> Any:
        sizes.append(len(keys))
        return read(keys, *arguments)

    monkeypatch.setattr(table_segments, "read", counted)
    count = 3 * TABLE_READ_KEYS + 7
    keys = [b"%05d" % number for number in range(count)]

    async def main() -> None:
        async with open_store(tmp_path) as (_, peer):
            await peer.ask(wire.CreateTableSegment(1, T, ""))
            odd = tuple(TableEntry(key, NO_VERSION, key) for key in keys[1::2])
            assert isinstance(await peer.ask(wire.UpdateTableEntries(2, T, "", odd)), wire.TableEntriesUpdated)
            reply = await peer.ask(wire.ReadTable(3, T, "", tuple(map(TableKey, keys))))
            assert [entry.key for entry in reply.entries] == keys
            assert [bytes(entry.value) for entry in reply.entries[1::2]] == keys[1::2]
            assert {entry.version for entry in reply.entries[::2]} == {NOT_EXISTS}
            assert (await peer.ask(wire.ReadTable(4, T, "", ()))).entries == ()
            assert isinstance(await peer.ask(wire.ReadTable(5, "scope/none/0.#epoch.0", "", ())), wire.NoSuchSegment)

    asyncio.run(main())
    assert max(sizes) == TABLE_READ_KEYS
    assert sum(sizes) == count


async def test_an_answer_that_no_frame_holds_is_refused_also_over_several_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_FRAME_SENT_BYTES", 100_000)
    keys = tuple(TableKey(b"%05d" % number) for number in range(3 * TABLE_READ_KEYS))

    async with open_store(tmp_path) as (_, peer):
        await peer.ask(wire.CreateTableSegment(1, T, ""))
        few = await peer.ask(wire.ReadTable(2, T, "", keys[: 2 * TABLE_READ_KEYS]))
        assert len(few.entries) == 2 * TABLE_READ_KEYS
        assert isinstance(await peer.ask(wire.ReadTable(3, T, "", keys * 2)), wire.ErrorMessage)


def test_a_list_has_a_most() -> None:
    keys = tuple(TableKey(b"%05d" % number) for number in range(LIST_MAX_ENTRIES))
    (found,) = Decoder().receive(encode(wire.ReadTable(1, T, "", keys)))
    assert isinstance(found, wire.ReadTable)
    assert len(found.keys) == LIST_MAX_ENTRIES >= 20_000, "as many as two epochs of a stream have segments"
    with pytest.raises(ProtocolError, match="exceeds"):
        Decoder().receive(encode(wire.ReadTable(1, T, "", (*keys, TableKey(b"one more")))))


async def test_a_command_looks_at_what_is_stored_once_or_twice_however_many_keys_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for its conditions and once to apply it; each key by itself made the largest command take 350 ms."""
    looks = 0

    def counted(inner: Any) -> Any:
        def look(*arguments: Any) -> Any:
            nonlocal looks
            looks += 1
            return inner(*arguments)

        return look

    for name in ("entry", "versions"):
        monkeypatch.setattr(Metadata, name, counted(getattr(Metadata, name)), raising=False)

    async with open_store(tmp_path, 1) as (_, peer):
        await peer.ask(wire.CreateTableSegment(1, T, ""))
        entries = tuple(TableEntry(b"k%d" % n, NOT_EXISTS, b"v") for n in range(500))
        keys = tuple(TableKey(b"k%d" % n, NO_VERSION) for n in range(700))
        for command, reply in (
            (wire.UpdateTableEntries(2, T, "", entries), wire.TableEntriesUpdated),
            (wire.UpdateTableEntries(3, T, "", entries), wire.TableKeyBadVersion),
            (wire.RemoveTableKeys(4, T, "", (*keys, *keys)), wire.TableKeysRemoved),
            (wire.RemoveTableKeys(5, T, "", keys), wire.TableKeysRemoved),
        ):
            looks = 0
            assert isinstance(await peer.ask(command), reply)
            assert looks <= 2
        info = await peer.ask(wire.GetTableSegmentInfo(6, T, ""))
        assert info.entry_count == 0
