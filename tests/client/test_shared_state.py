"""Shared structures against the whole server in a process of its own."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

import nadi
from nadi.client import StateKind, StreamManager, aio
from nadi.errors import (
    ClosedError,
    ContentionError,
    EventTooLargeError,
    InvalidArgumentError,
    InvalidStreamCutError,
    ProtocolError,
    RequestTimeoutError,
    TruncatedError,
)
from nadi.model.framing import frame_events
from nadi.model.streamcut import StreamCut


@pytest.fixture
def stream(manager: StreamManager, request: pytest.FixtureRequest) -> str:
    name: str = request.node.name.replace("_", "-")
    manager.create_stream("sc", name)
    return name


def test_a_map(manager: StreamManager, stream: str) -> None:
    here, there = (manager.shared_map("sc", stream, value_type=int) for _ in range(2))
    assert here.put_if_absent("a", 1)
    assert not there.put_if_absent("a", 2)
    assert there["a"] == 1
    assert there.replace("a", 1, 3)
    assert not here.replace("a", 1, 4)
    assert here.compute("a", lambda value: (value or 0) + 1) == 4
    here.put_all({"b": 5, "c": 6})
    there.refresh()
    assert there.as_dict() == {"a": 4, "b": 5, "c": 6}
    assert there.compute("b", lambda _: None) is None
    assert there.remove("c")
    assert not there.remove("c")
    here.refresh()
    assert (list(here), len(here), "a" in here, here.get("b"), here.get("b", 0)) == (["a"], 1, True, None, 0)
    here.clear()
    assert len(here) == 0
    with pytest.raises(InvalidArgumentError, match="MessagePack"):
        here.put("a", object())
    with pytest.raises(InvalidArgumentError, match="not an update"):
        here.put("a", "text")
    assert here.revision == manager.stream_info("sc", stream).tail.positions[0]


def test_a_set(manager: StreamManager, stream: str) -> None:
    here, there = (manager.shared_set("sc", stream) for _ in range(2))
    assert here.add("x")
    assert not there.add("x")
    assert there.change(["y", 7, b"z"], ["x"])
    assert not there.discard("x")
    here.refresh()
    assert here.as_set() == set(there) == {"y", 7, b"z"}
    assert 7 in here
    assert len(here) == 3
    with pytest.raises(InvalidArgumentError):
        here.add((1, 2))
    with pytest.raises(InvalidArgumentError):
        here.discard([1])


def test_a_counter(manager: StreamManager, stream: str) -> None:
    here, there = (manager.shared_counter("sc", stream) for _ in range(2))
    assert [here.add(), there.add(10), here.add(-1)] == [1, 11, 10]
    assert there.compare_and_set(10, 3)
    assert not here.compare_and_set(10, 4)
    assert here.value == 3
    with pytest.raises(InvalidArgumentError):
        here.add(1 << 70)
    with pytest.raises(InvalidArgumentError):
        here.add((1 << 63) - 1)
    with pytest.raises(InvalidArgumentError):
        here.add("1")  # type: ignore[arg-type]


def test_a_journal(manager: StreamManager, stream: str) -> None:
    here, there = (manager.journal("sc", stream) for _ in range(2))
    assert [here.append(b"a"), there.append_all([b"b", b"c"]), here.append(b"d")] == [0, 1, 3]
    assert there.append_at(4, b"e")
    assert not here.append_at(4, b"f")
    assert here.entries(2) == [b"c", b"d", b"e"]
    here.trim(3)
    there.refresh()
    assert (there.first_index, there.next_index, len(there), there.entries()) == (3, 5, 2, [b"d", b"e"])
    assert there.entries(4) == [b"e"]
    assert there.append(b"g") == 5


def test_an_election(manager: StreamManager, stream: str) -> None:
    ann, bob, other_ann = (manager.leader_election("sc", stream, name) for name in ("ann", "bob", "ann"))
    assert ann.campaign(now_ms=0, lease_ms=100) == 1
    assert bob.campaign(now_ms=99, lease_ms=100) is None
    assert other_ann.campaign(now_ms=99, lease_ms=100) is None
    lease = bob.leader(99)
    assert lease is not None
    assert (lease.leader, lease.token, lease.until_ms) == ("ann", 1, 100)
    assert ann.campaign(now_ms=50, lease_ms=100) == 1
    assert bob.campaign(now_ms=100, lease_ms=100) is None
    assert bob.campaign(now_ms=150, lease_ms=100) == 2
    assert ann.token(140) == 1
    assert ann.token(150) is None
    assert ann.campaign(now_ms=160, lease_ms=100) is None
    assert ann.leader(160) == bob.leader(160)
    assert not ann.resign()
    assert bob.resign()
    assert bob.token(160) is None
    assert ann.campaign(now_ms=161, lease_ms=100) == 3
    for lease_ms in (0, -5):
        with pytest.raises(InvalidArgumentError):
            ann.campaign(now_ms=200, lease_ms=lease_ms)
    assert bob.campaign(now_ms=200, lease_ms=100) is None


def test_as_of_a_stream_cut(manager: StreamManager, stream: str) -> None:
    shared = manager.shared_map("sc", stream)
    cuts = []
    for n in range(4):
        shared.put("n", n)
        cuts.append(manager.stream_info("sc", stream).tail)
        if n == 1:
            shared.compact()
    for n, cut in enumerate(cuts):
        then = manager.shared_map("sc", stream, as_of=cut)
        then.refresh()
        assert then.as_dict() == {"n": n}
        with pytest.raises(InvalidArgumentError, match="as of"):
            then.put("n", 9)
    assert len(manager.shared_map("sc", stream, as_of=manager.stream_info("sc", stream).head)) == 0
    with pytest.raises(InvalidStreamCutError):
        manager.shared_map("sc", stream, as_of=StreamCut("sc", stream, {0: cuts[0].positions[0] - 1}))
    with pytest.raises(InvalidStreamCutError):
        manager.shared_map("sc", stream, as_of=StreamCut("sc", "other", {0: 0}))
    shared.compact(keep_history=False)
    assert manager.shared_map("sc", stream, as_of=cuts[2]).as_dict() == {"n": 2}
    with pytest.raises(TruncatedError):
        manager.shared_map("sc", stream, as_of=cuts[0])


def test_who_lags_behind_a_truncating_compaction(manager: StreamManager, stream: str) -> None:
    here, late = (manager.shared_counter("sc", stream) for _ in range(2))
    for _ in range(3):
        here.add()
        here.compact(keep_history=False)
    assert manager.stream_info("sc", stream).head.positions[0] > 0
    assert late.add() == 4
    assert manager.shared_counter("sc", stream).value == 4


def test_a_truncation_that_loses_the_state_is_noticed(manager: StreamManager, stream: str) -> None:
    here = manager.shared_counter("sc", stream)
    here.add()
    cut = manager.stream_info("sc", stream).tail
    here.add()
    manager.truncate_stream(cut)
    with pytest.raises(ProtocolError, match="truncated away"):
        manager.shared_counter("sc", stream)


class Note(msgspec.Struct):
    text: str = ""
    length: int = 0


def test_state_of_ones_own(manager: StreamManager, stream: str) -> None:
    def noted(state: Note, update: str) -> Note:
        return Note(state.text + update, state.length + len(update))

    kind = StateKind.of_types(Note, str, Note, noted)
    here, there = (manager.state_synchronizer("sc", stream, kind) for _ in range(2))
    assert here.initialize(Note("begin", 5))
    assert not there.initialize(Note("else", 4))
    assert there.state == Note("begin", 5)
    assert there.update(lambda state: ["!"] * state.length) == ["!"] * 5
    assert there.update(lambda _: []) == []
    assert here.refresh() == Note("begin!!!!!", 10)
    with pytest.raises(EventTooLargeError):
        here.update(lambda _: ["x" * (9 << 20)])
    with pytest.raises(ZeroDivisionError):
        here.update(lambda state: ["x"] * (state.length // 0))
    assert here.update(lambda _: ["?"]) == ["?"]


def test_records_lie_as_pravegas_synchronizer_writes_them(manager: StreamManager, stream: str) -> None:
    counter = manager.shared_counter("sc", stream)
    counter.add(7)
    counter.compact()
    with manager.create_byte_reader("sc", stream) as reader:
        updates, whole = b"\0\0\0\2" + b"\0\0\0\1\7", b"\0\0\0\1" + b"\7"
        assert reader.read() == frame_events([updates, whole])


def test_an_update_gives_up_when_others_are_always_faster(
    uri: str, manager: StreamManager, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nadi.client.state_sync.state_synchronizer.STATE_UPDATE_ATTEMPTS", 3)

    async def contend() -> None:
        async with aio.StreamManager(uri) as third:
            rival = await third.shared_counter("sc", stream)
            tries = 0
            mine = await third.shared_counter("sc", stream)
            synchronizer = mine._synchronizer
            append = synchronizer._log.append

            async def append_late(data: bytes, expected_end: int) -> int:
                nonlocal tries
                tries += 1
                await rival.add()
                return await append(data, expected_end)

            synchronizer._log.append = append_late  # type: ignore[method-assign]
            with pytest.raises(ContentionError, match="each of 3 tries"):
                await mine.add()
            assert tries == 3

    asyncio.run(contend())
    assert manager.shared_counter("sc", stream).value == 3


def test_a_server_that_is_gone_and_a_client_that_is_closed(tmp_path: Path) -> None:
    with nadi.embedded(tmp_path) as server:
        manager = StreamManager(server.controller_uri)
        manager.create_scope("sc")
        manager.create_stream("sc", "st")
        counter = manager.shared_counter("sc", "st")
        counter.add()
    started = time.monotonic()
    with pytest.raises(RequestTimeoutError, match=r"sc/st .*within 0.5 s"):
        counter.add(timeout=0.5)
    assert time.monotonic() - started < 20
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(counter.add, timeout=None)
        with pytest.raises(TimeoutError):
            waiting.result(0.1)
        manager.close()
        assert isinstance(waiting.exception(60), ClosedError)
