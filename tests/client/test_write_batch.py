"""write_batch stores the same as single writes, for every form of events and despite faults."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nadi
from nadi.client.serializers import Text
from nadi.client.writing.blocks import NO_KEY, BatchKeys, Blocks, Routes
from nadi.client.writing.sender import EventSender
from nadi.errors import ClosedError, EventTooLargeError, InvalidArgumentError, StreamSealedError, UnavailableError
from nadi.limits import MIB, WRITER_BLOCK_BYTES, WRITER_PENDING_BYTES
from nadi.model.keyspace import key_position
from tests.support.waiting import until_async

from .fake_server import Chaos
from .test_writer import in_order, rescale_somehow
from .world import World, world

EVENTS = st.one_of(
    st.lists(st.binary(max_size=60), max_size=80),
    st.integers(0, 20).flatmap(lambda size: st.lists(st.binary(min_size=size, max_size=size), max_size=80)),
)
KEYS = st.one_of(st.none(), st.sampled_from([f"key{i}" for i in range(12)] + ["", "\ud800", "ключ"]))


@contextmanager
def small_blocks(block_bytes: int = 300, few: int = 3) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nadi.client.writing.blocks.BLOCK_BYTES", block_bytes)
        patch.setattr("nadi.client.writing.blocks.SMALL_BYTES", 10)
        patch.setattr("nadi.client.writing.sender.FEW_EVENTS", few)
        yield


def chunked(draw: Any, array: pa.Array) -> pa.ChunkedArray:
    borders = sorted(draw(st.lists(st.integers(0, len(array)), max_size=4)))
    pieces = [array[a:b] for a, b in zip([0, *borders], [*borders, len(array)], strict=True)]
    return pa.chunked_array(pieces, array.type)


@st.composite
def batches(draw: Any) -> tuple[list[bytes], list[str | None], Any, Any]:
    """Events (prefixed by `+` if they have a key, else `-`) and keys as lists, and both in forms for write_batch."""
    payloads: list[bytes] = draw(EVENTS)
    kinds_of_keys = ["one", "list", "strings", "large", "view", "nulls", "dictionary", "chunked", "chunked dictionary"]
    kinds_of_keys += ["dictionary of views"]
    kind = draw(st.sampled_from(kinds_of_keys))
    keys = [draw(KEYS)] * len(payloads) if kind == "one" else [draw(KEYS) for _ in payloads]
    if kind == "nulls":
        keys = [None] * len(payloads)
    if kind not in ("one", "list"):
        keys = [key if key != "\ud800" else "x" for key in keys]  # which UTF-8 can't encode
    events = [(b"-" if key is None else b"+") + payload for key, payload in zip(keys, payloads, strict=True)]
    form = draw(
        st.sampled_from(["list", "tuple", "mutable", "iterator", "binary", "large", "view", "slice", "chunked"])
    )
    given: Any = events
    if form == "tuple":
        given = tuple(events)
    elif form == "mutable":
        given = [bytearray(event) if i % 2 else memoryview(event) for i, event in enumerate(events)]
    elif form == "iterator":
        given = iter(events)
    elif form in ("binary", "chunked"):
        given = pa.array(events, pa.binary())
        given = chunked(draw, given) if form == "chunked" else given
    elif form == "view":
        given = pa.array(events, pa.binary_view())
    elif form == "large":
        given = pa.array(events, pa.large_binary())
    elif form == "slice":
        given = pa.array([b"before", *events, b"after"], pa.binary())[1:-1]
    if kind in ("one", "list"):
        return events, keys, given, keys if kind == "list" else (keys or [None])[0]
    if kind == "nulls":
        return events, keys, given, pa.nulls(len(events))
    kinds = {"large": pa.large_string(), "view": pa.string_view()}
    array = pa.array(keys, kinds.get(kind, pa.string()))
    if "dictionary" in kind:
        array = array.dictionary_encode()
    if kind == "dictionary of views":
        array = pa.DictionaryArray.from_arrays(array.indices, array.dictionary.cast(pa.string_view()))
    return events, keys, given, chunked(draw, array) if "chunked" in kind else array


@settings(max_examples=120, deadline=None)
@given(st.lists(batches(), min_size=1, max_size=3), st.integers(1, 4), st.integers(30, 800), st.booleans())
def test_write_batch_stores_the_same_as_single_writes(
    written: list[tuple[list[bytes], list[str | None], Any, Any]], segments: int, block_bytes: int, waits: bool
) -> None:
    async def run() -> tuple[list[list[bytes]], list[list[bytes]]]:
        async with world(segments) as single, world(segments) as batch:
            singly = await single.manager.create_writer("sc", "st")
            at_once = await batch.manager.create_writer("sc", "st")
            for events, keys, given_events, given_keys in written:
                for event, key in zip(events, keys, strict=True):
                    singly.write_event(event, key)
                if waits:
                    await at_once.write_many(given_events, given_keys)
                else:
                    at_once.write_batch(given_events, given_keys)
            await singly.flush()
            await at_once.flush()
            return [single.stored(i) for i in range(segments)], [batch.stored(i) for i in range(segments)]

    with small_blocks(block_bytes):
        expected, stored = asyncio.run(run())
    if segments > 1:  # any segment may take events without a key
        assert keyless(stored) == keyless(expected)
        stored, expected = [with_key(events) for events in stored], [with_key(events) for events in expected]
    assert stored == expected


def keyless(segments: list[list[bytes]]) -> list[bytes]:
    return sorted(event for events in segments for event in events if event.startswith(b"-"))


def with_key(events: list[bytes]) -> list[bytes]:
    return [event for event in events if event.startswith(b"+")]


@given(
    st.one_of(st.lists(st.integers(0, 2_000)), st.lists(st.integers(0, 40), min_size=12, max_size=40)), st.booleans()
)
def test_blocks_contain_all_events_and_have_similar_sizes(sizes: list[int], arrow: bool) -> None:
    events = [b"%d" % i + bytes(size) for i, size in enumerate(sizes)]
    with small_blocks(300):
        cut = [
            list(block.one_by_one())
            for block in Blocks(pa.array(events, pa.binary()) if arrow else events, "k", Routes(()))
        ]
    assert [event for block in cut for event, _ in block] == events
    framed = [sum(8 + len(event) for event, _ in block) for block in cut]
    assert all(size <= 450 or len(block) == 1 for size, block in zip(framed, cut, strict=True))
    if len(framed) > 1 and max(sizes) < 50:
        assert min(framed) > 90  # of 300: the last block is not tiny


@given(st.lists(KEYS, max_size=50), st.lists(st.floats(0.01, 0.99), max_size=5, unique=True))
def test_codes_are_the_segments_of_the_keys(keys: list[str | None], borders: list[float]) -> None:
    ends = [*sorted(borders), 1.0]
    routes = Routes((low, high, f"to {high}") for low, high in zip([0.0, *ends], ends, strict=False))
    for key, code in zip(keys, routes.codes(keys).tolist(), strict=True):
        if key is None:
            assert code == NO_KEY
        else:
            assert routes.segments[code] == routes.segment(key)
            assert float(routes.segments[code].removeprefix("to ")) >= key_position(key)


@given(st.data(), st.lists(KEYS, min_size=1, max_size=50), st.booleans())
def test_keys_are_looked_up_again_in_other_routes(data: st.DataObject, names: list[str | None], indexed: bool) -> None:
    before, after = Routes([(0.0, 1.0, "old")]), Routes([(0.0, 0.4, "low"), (0.4, 1.0, "high")])
    numbers = st.lists(st.integers(0, len(names) - 1), min_size=1, max_size=80)
    indices = np.array(data.draw(numbers), np.int64) if indexed else None
    keys = BatchKeys(names, before, indices)
    chosen = np.array(data.draw(st.lists(st.integers(0, len(keys) - 1), min_size=1)), np.int64)
    for routes in (before, after):
        expected = routes.codes([keys.of(event) for event in chosen.tolist()])
        assert keys.codes(chosen, routes).tolist() == expected.tolist()


@pytest.mark.parametrize("seed", [*range(1, 4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 9))])
async def test_exactly_once_and_in_order_under_random_disconnects_and_scaling(seed: int) -> None:
    with small_blocks():
        async with world(2, Chaos(seed, before=0.1, after=0.1)) as w:
            choice = random.Random(seed)
            writer = await w.manager.create_writer("sc", "st")
            counts = dict.fromkeys((f"key{i}" for i in range(20)), 0)
            for step in range(150):
                keys = choice.choices(list(counts), k=choice.randint(1, 60))
                events = []
                for key in keys:
                    events.append(f"{key}:{counts[key]}".encode())
                    counts[key] += 1
                if step % 4 == 3:
                    for event, key in zip(events, keys, strict=True):
                        writer.write_event(event, key)
                elif step % 4 == 2:
                    writer.write_batch(pa.array(events), pa.array(keys))
                else:
                    writer.write_batch(events, keys)
                if step % 30 == 15:
                    rescale_somehow(w, choice)
                if choice.random() < 0.5:
                    await asyncio.sleep(choice.choice([0, 0, 0.002]))
                if choice.random() < 0.03:
                    w.store.drop_all()
            await writer.flush(60)
            assert in_order(w.all_stored()) == {key.encode(): list(range(n)) for key, n in counts.items() if n}


@pytest.mark.parametrize("arrow", [False, True])
async def test_split_divides_unacknowledged_batches(arrow: bool) -> None:
    async with world() as w:
        writer = await w.manager.create_writer("sc", "st")
        await writer.write_event(b"a:0", "a")
        keys = [name for name in "abcdefgh" for _ in range(20)]
        events = [b"%s:%d" % (key.encode(), 1 + i % 20) for i, key in enumerate(keys)]
        w.store.silent = True
        first = writer.write_batch(pa.array(events), pa.array(keys)) if arrow else writer.write_batch(events, keys)
        alone = writer.write_batch([b"z:%d" % i for i in range(40)], "z")
        keyless = writer.write_batch([b"-:%d" % i for i in range(40)])
        await asyncio.sleep(0.02)
        w.controller.rescale("sc", "st", [0], [(0.0, 0.3), (0.3, 0.6), (0.6, 1.0)])
        w.store.silent = False
        w.store.drop_all()
        later = writer.write_batch([b"%s:21" % name.encode() for name in "abcdefgh"], list("abcdefgh"))
        for ack in (first, alone, keyless, later):
            await ack
        assert w.stored(0) == [b"a:0"]
        stored = in_order(w.all_stored())
        assert sorted(stored.pop(b"-")) == list(range(40))
        assert stored.pop(b"z") == list(range(40))
        expected = {name.encode(): list(range(1, 22)) for name in "abcdefgh"}
        assert stored == expected | {b"a": list(range(22))}


def test_threads_keep_the_order_of_their_keys_over_splits(manager: nadi.StreamManager) -> None:
    """One thread writes batches, another single events, to the same keys, while segments split and merge."""
    names = [f"k{i}" for i in range(8)]
    manager.create_stream("sc", "threads", 2)
    with manager.create_writer("sc", "threads") as writer:

        def in_batches() -> None:
            for step in range(100):
                writer.write_batch(
                    [b"%s/batch:%d" % (name.encode(), step * 50 + i) for i in range(50) for name in names], names * 50
                )

        def singly() -> None:
            for i in range(4000):
                for name in names:
                    writer.write_event(b"%s/single:%d" % (name.encode(), i), name)

        threads = [threading.Thread(target=in_batches), threading.Thread(target=singly)]
        for thread in threads:
            thread.start()
        manager.scale_stream("sc", "threads", [0], [(0.0, 0.2), (0.2, 0.5)])
        current = sorted(manager.current_segments("sc", "threads"), key=lambda piece: piece.low)
        manager.scale_stream("sc", "threads", [piece.segment_id for piece in current], [(0.0, 0.4), (0.4, 1.0)])
        for thread in threads:
            thread.join()
    end = manager.stream_info("sc", "threads").tail
    stored = in_order([event for events in manager.read_batches("sc", "threads", end=end) for event in events])
    expected = {f"{name}/batch".encode(): list(range(5000)) for name in names}
    assert stored == expected | {f"{name}/single".encode(): list(range(4000)) for name in names}


@pytest.mark.parametrize(
    ("events", "keys", "message"),
    [
        ([b"a"] * 50 + ["text"], "k", "event .* not str"),
        ("text", "k", "event .* not str"),
        (b"bytes", "k", "event .* not int"),
        ([b"a"] * 50, ["k"] * 49, "49 routing keys .* 50 events"),
        ([b"a"] * 50, ["k"] * 49 + [5], "routing key .* not int"),
        ([b"a"] * 50, [["k"]] * 50, "routing key .* not list"),
        ([b"a"] * 50, pa.array([1] * 50), "routing keys .* not int64"),
        (pa.array([b"a"] * 50 + [None]), "k", "^1 events"),
        (pa.chunked_array([[b"a"], [None, None]]), "k", "^2 events"),
        (pa.array(["text"] * 50), "k", "not string"),
        (pa.array([b"a"] * 50), pa.array(["k"] * 51), "51 routing keys .* 50 events"),
        ([b"a"] * 50, 5, "routing keys .* not int"),
        (None, "k", "not NoneType"),
        (pa.table({"reading": [b"a"]}), "k", "table"),
        (pa.array([b"a", None], pa.binary_view()), "k", "^1 events"),
        (pa.nulls(3), "k", "not string"),
    ],
)
async def test_invalid_batch_is_rejected_as_a_whole(events: Any, keys: Any, message: str) -> None:
    with small_blocks():
        async with world() as w:
            writer = await w.manager.create_writer("sc", "st")
            for write in (writer.write_batch, writer.write_many):
                with pytest.raises(InvalidArgumentError, match=message):
                    await write(events, keys)
            for key in (5, ["k"]):
                with pytest.raises(InvalidArgumentError, match=type(key).__name__):
                    writer.write_event(b"a", key)  # type: ignore[arg-type]
            await writer.write_event(b"only")
            assert w.stored(0) == [b"only"]


async def test_batch_with_an_event_over_the_limit_is_rejected_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.client.writing.blocks.MAX_LARGE_EVENT_BYTES", 10_000)
    with small_blocks():
        async with world() as w:
            writer = await w.manager.create_writer("sc", "st")
            events = [b"x"] * 50 + [b"x" * 10_001]
            for given_events in (events, pa.array(events)):
                with pytest.raises(EventTooLargeError) as caught:
                    writer.write_batch(given_events)
                assert caught.value.size_bytes == 10_001
            await writer.flush()
            assert w.stored(0) == []


async def test_iterator_with_another_number_of_keys_is_rejected() -> None:
    async with world() as w:
        writer = await w.manager.create_writer("sc", "st")
        with pytest.raises(InvalidArgumentError):
            writer.write_batch(iter([b"a"]), ["k", "l"])
        with pytest.raises(InvalidArgumentError):
            writer.write_batch(iter([b"a", b"b"]), ["k"])


@pytest.mark.parametrize("form", ["list", "large_binary", "iterator"])
async def test_large_events_are_stored_in_order(form: str) -> None:
    async with world() as w:
        writer = await w.manager.create_writer("sc", "st")
        events = [b"a"] * 50 + [b"b" * (9 * MIB)] + [b"c"] * 50 + [b"d" * (2 * MIB), b"e" * (9 * MIB), b"f"]
        given_events: Any = events
        if form == "large_binary":
            given_events = pa.array(events, pa.large_binary())
        elif form == "iterator":
            given_events = iter(events)
        await writer.write_many(given_events, ["k"] * len(events))
        await writer.flush()
        assert w.stored(0) == events


def pending_bytes(sender: EventSender) -> int:
    with sender.lock:
        return sum(batch.size for output in sender.outputs.values() for batch in output.pending())


async def test_write_many_waits_at_the_memory_limit() -> None:
    async with world() as w:
        writer = await w.manager.create_writer("sc", "st")
        w.store.hold = True
        events = [b"%05d" % i + b"x" * 995 for i in range(50_000)]
        task = asyncio.create_task(writer.write_many(events, "k"))
        await until_async(lambda: pending_bytes(writer._sender) >= WRITER_PENDING_BYTES // 2)
        done, _ = await asyncio.wait([task], timeout=0.5)
        assert not done
        assert pending_bytes(writer._sender) <= WRITER_PENDING_BYTES // 2 + WRITER_BLOCK_BYTES
        w.store.hold = False
        w.store.drop_all()
        await (await task)
        assert w.stored(0) == events
        w.store.silent = True
        with pytest.raises(UnavailableError):
            writer.write_batch(events * 2)


async def blocking_sender(w: World) -> EventSender:
    w.manager._blocking = True
    return (await w.manager.create_writer("sc", "st", ack_timeout=120))._sender


async def test_blocking_write_batch_waits_at_the_memory_limit() -> None:
    async with world() as w:
        writer = await blocking_sender(w)
        w.store.hold = True
        events = [b"%05d" % i + b"x" * 995 for i in range(50_000)]
        task = asyncio.create_task(asyncio.to_thread(writer.write_batch, events, "k"))
        await until_async(lambda: pending_bytes(writer) >= WRITER_PENDING_BYTES)
        done, _ = await asyncio.wait([task], timeout=0.5)
        assert not done
        assert pending_bytes(writer) <= WRITER_PENDING_BYTES + WRITER_BLOCK_BYTES
        w.store.hold = False
        w.store.drop_all()
        await (await task)
        assert w.stored(0) == events
        await writer.close()


async def test_waiting_batch_of_a_closed_writer_raises() -> None:
    async with world() as w:
        writer = await blocking_sender(w)
        w.store.silent = True
        task = asyncio.create_task(asyncio.to_thread(writer.write_batch, [b"x" * 1000] * 50_000, "k"))
        await until_async(lambda: pending_bytes(writer) >= WRITER_PENDING_BYTES)
        writer.stop(ClosedError("closed"))
        with pytest.raises(ClosedError):
            await task


async def test_a_batch_for_a_sealed_stream_fails() -> None:
    async with world(2) as w:
        writer = await w.manager.create_writer("sc", "st")
        keys = [f"k{i}" for i in range(100)]
        w.controller.seal_all("sc", "st")
        with pytest.raises(StreamSealedError):
            await writer.write_batch([b"x"] * 100, keys)
        with pytest.raises(StreamSealedError):
            writer.write_batch([b"x"] * 100, keys)


async def test_empty_batch_is_done_at_once() -> None:
    async with world() as w:
        writer = await w.manager.create_writer("sc", "st")
        empty: Any
        for empty in ([], iter([]), pa.array([], pa.binary()), pa.chunked_array([], pa.binary())):
            ack = writer.write_batch(empty, [])
            assert ack.done()


async def test_list_may_be_changed_after_the_call() -> None:
    async with world() as w:
        writer = await w.manager.create_writer("sc", "st")
        w.store.silent = True
        events, keys = [bytearray(b"a:%d" % i) for i in range(50)], ["a"] * 50
        ack = writer.write_batch(events, keys)
        for event in events:
            event[:] = b"?"
        keys[:] = ["b"] * 50
        w.controller.rescale("sc", "st", [0], [(0.0, 0.5), (0.5, 1.0)])
        w.store.silent = False
        w.store.drop_all()
        await ack
        assert in_order(w.all_stored()) == {b"a": list(range(50))}
        assert [] in [w.stored(i) for i in list(w.controller.streams["sc", "st"].epochs[-1])]


async def test_subclass_of_bytes_is_stored_by_its_content() -> None:
    class Odd(bytes):
        def __len__(self) -> int:
            return 1

    async with world() as w:
        writer = await w.manager.create_writer("sc", "st")
        writer.write_event(Odd(b"alone"), "a")
        await writer.write_batch([Odd(b"one of %d" % i) for i in range(50)], "a")
        assert w.stored(0) == [b"alone", *(b"one of %d" % i for i in range(50))]


async def test_write_many_of_values_and_transactions_stores_all() -> None:
    async with world(2) as w:
        words = [f"{i} слово" for i in range(5_000)]
        keys = [f"key{i % 7}" for i in range(5_000)]
        values = await w.manager.create_writer("sc", "st", serializer=Text())
        await (await values.write_many(words, keys))
        assert sorted(w.all_stored()) == sorted(word.encode() for word in words)
        transactions = await w.manager.create_transaction_writer("sc", "st")
        async with await transactions.begin_txn() as txn:
            await txn.write_many([b"bytes"] * 5_000, keys)
        assert w.all_stored().count(b"bytes") == 5_000
        of_values = await w.manager.create_transaction_writer("sc", "st", serializer=Text())
        async with await of_values.begin_txn() as txn_of_values:
            await txn_of_values.write_many(words, keys)
        assert len(w.all_stored()) == 15_000
