"""Every public method rejects a wrong argument by name while all other arguments are right."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

import nadi
import nadi.client as client
from nadi.client import KeyValueTableConfiguration, QuotaLimits, ScalingPolicy, StateKind, StreamManager
from nadi.client.serializers import Arrow, Json, Msgpack, Struct
from nadi.client.writing.blocks import as_bytes
from nadi.errors import InvalidArgumentError, InvalidNameError, InvalidStreamCutError

BAD_TIMES = ("5", -1, -0.001, math.nan, math.inf, True)
BAD_TEXTS = (None, 5, b"text", "half \ud83d")
BAD_NUMBERS = ("2", 1.5, True, 1 << 70)
BAD_BYTES = ("text", 5)
BAD_CUTS: tuple[Any, ...] = ("head", 5, [])
BAD_LISTS: tuple[Any, ...] = (5, None)
WRONG: dict[str, tuple[Any, ...]] = {  # by parameter name
    **dict.fromkeys(("timeout", "ack_timeout", "every_s"), BAD_TIMES),
    **dict.fromkeys(
        ("scope", "stream", "table", "name", "new_name", "segment", "text", "reader_id", "field"), BAD_TEXTS
    ),
    **dict.fromkeys(("participant", "note", "controller_uri", "user", "password", "field"), BAD_TEXTS),
    **dict.fromkeys(("tag", "writer_id"), (5, b"text", "half \ud83d")),
    **dict.fromkeys(("start", "end", "cut", "first", "second", "as_of", "position"), BAD_CUTS),
    **dict.fromkeys(("segments", "events", "lease_ms", "refresh_ms", "dead_after_ms"), BAD_NUMBERS),
    **dict.fromkeys(("checkpoint_interval_ms", "timestamp_ms", "timestamp_aggregation_timeout_ms"), BAD_NUMBERS),
    **dict.fromkeys(("page_size", "now_ms", "amount", "index", "before", "expected_number", "offset"), BAD_NUMBERS),
    **dict.fromkeys(("scale_factor", "min_segments", "events_per_s", "kib_per_s", "keep_ms", "most_ms"), BAD_NUMBERS),
    **dict.fromkeys(("keep_bytes", "most_bytes", "primary_key_bytes", "secondary_key_bytes"), BAD_NUMBERS),
    **dict.fromkeys(("partitions", "rollover_size_bytes", "schema_id", "segment_id"), BAD_NUMBERS),
    **dict.fromkeys(("recursive", "follow", "wait", "is_done", "keep_history"), ("no", None, 5)),
    **dict.fromkeys(("over_bookmarks", "by_event_time"), ("no", None, 5)),
    **dict.fromkeys(("automatically_note_time", "validate_host_name"), ("no", None, 5)),
    **dict.fromkeys(("scaling", "retention"), ("fixed", 5)),
    **dict.fromkeys(("config", "kind", "rule", "compatibility", "credentials", "serializer"), ("text", 5)),
    **dict.fromkeys(("entry", "prefix"), BAD_BYTES),
    **dict.fromkeys(("tags", "add", "remove", "routing_keys"), ("abc", 5, [1])),
    **dict.fromkeys(("sealed_segments", "new_ranges", "entries", "keys", "modifications"), BAD_LISTS),
    **dict.fromkeys(("streams", "starts", "ends", "cuts"), (*BAD_LISTS, [5])),
    "to": (5, None, "head", ["head"]),
    "positions": (5, {"o/a/0": "1"}, {"o/a/0": -1}),
    "conditions": (5, {"a": 5}),
    "on_damage": ("no", None, 5),
    "moment": ("x", 1.5, None),
    "time": ("x", 1.5, None),
    "event_time": (5, "", "a..b", ["a"]),
    "delivery": (5, None, "at-best"),
    "txn_id": ("xx", None, 5),
    "transactions": (*BAD_LISTS, [], [5], ["xx"]),
    "version": ("1", 1.5),
    "key": (5, None),
    "value": (5, None),
    "event": ("text", 5, None),
    "routing_key": (5, b"k"),
    "trust_store": (5,),
    "generate": (5, None),
    "function": (5, None),
    "items": (5, None),
    "primary": ("text", 5),
    "token": (5, None),
    "predicate": (5, None),
    "owner": (5, None, "home", "scope/a b", "group/g"),
    "limits": (5, None, {"streams": 1}),
}
OTHERS: dict[str, tuple[Any, ...]] = {  # methods where the parameter has another meaning
    "StreamManager.create_byte_reader.start": ("head", 1.5, -1),
    "StreamManager.create_index_writer.fields": (*BAD_LISTS, "t", [], [5], ["t", "t"]),
    "StreamManager.create_index_writer.record_size": ("64", 1.5, True, 0, 65_537),
    "StreamManager.create_index_writer.ack_timeout": (*BAD_TIMES, 0),
    "IndexWriter.append.fields": (5, None, [("t", 1)], {"u": 1}, {"t": -1}, {"t": 1.5}),
    "IndexWriter.append.after": (5, "t"),
    "IndexWriter.truncate_before.value": (5.5, None, "5", -1),
    "IndexReader.search.value": (5.5, None, "5", -1),
    "IndexReader.read.start": ("head", 1.5, -1, 1),
    "IndexReader.read.end": ("tail", 1.5, -1, 1),
    "StreamManager.read_segment_range.start": BAD_NUMBERS,
    "StreamManager.read_segment_range.end": BAD_NUMBERS,
    "StreamManager.scrub.start": ("no", None, 5),
    "StreamManager.update_stream.tags": ("abc", 5, [1]),
    "StreamManager.create_writer.ack_timeout": (*BAD_TIMES, 0),
    "StreamManager.create_transaction_writer.ack_timeout": (*BAD_TIMES, 0),
    "StreamManager.create_transaction_writer.lease_ms": (*BAD_NUMBERS, 1, 9_999, 10**12),
    "TransactionalEventWriter.begin_txn.lease_ms": (*BAD_NUMBERS, 1, 9_999, 10**12),
    "TransactionalValueWriter.begin_txn.lease_ms": (*BAD_NUMBERS, 1, 9_999, 10**12),
    "ReaderGroupManager.create_reader_group.retention": ("NONE", 5, None),
    "Bookmarks.list.stream": (5, b"text"),
    "NamedSlices.list.stream": (5, b"text"),
    "Bookmarks.list_with_unreadable.stream": (5, b"text"),
    "NamedSlices.list_with_unreadable.stream": (5, b"text"),
    "KeyValueTable.keys.start": BAD_BYTES,
    "KeyValueTable.keys.end": BAD_BYTES,
    "KeyValueTable.entries.start": BAD_BYTES,
    "KeyValueTable.entries.end": BAD_BYTES,
    "KeyValueTable.pages.start": BAD_BYTES,
    "KeyValueTable.pages.end": BAD_BYTES,
    "KeyValueTable.key_pages.start": BAD_BYTES,
    "KeyValueTable.key_pages.end": BAD_BYTES,
    "StreamCuts.between.start": ("x", 1.5, None),
    "StreamCuts.between.end": ("x", 1.5, None),
    "StreamCuts.named.end": ("no", None, 5),
    "StreamCuts.arrival_times.offsets": (5, None, "abc", ["1"], [2, 1], [-1]),
    "Journal.entries.start": ("1", 1.5),
    "SharedCounter.compare_and_set.expected": BAD_NUMBERS,
    "SharedCounter.compare_and_set.value": BAD_NUMBERS,
    "SharedMap.get.key": (),  # accepts any key, like a dict
    "EventWriter.write_batch.events": (5, "abc", b"abc", ["a"]),
    "Transaction.write_batch.events": (5, "abc", b"abc", ["a"]),
}
ANYTHING = {"default", "element", "added", "removed", "state", "value_type", "values", "update", "expected"}
ANYTHING |= {"ValueWriter.write_event.value", "ValueTransaction.write_event.value"}  # the application's types
ANYTHING |= {f"SharedMap.{call}.value" for call in ("put", "put_if_absent", "replace")}
ANYTHING |= {"IndexWriter.append.data"}  # see test_index_stream
ANYTHING |= {"ValueWriter.encode.value", "ValueTransaction.encode.value"}
ANYTHING |= {"EventWriter.write_batch.routing_keys", "ValueWriter.write_batch.routing_keys"}  # see test_write_batch
ANYTHING |= {"Transaction.write_batch.routing_keys", "ValueTransaction.write_batch.routing_keys"}


class World:
    """One object of each class, and valid arguments."""

    def __init__(self, manager: StreamManager) -> None:
        self.manager = manager
        manager.create_scope("o")
        for stream in ("a", "map", "set", "counter", "journal", "election", "bytes", "typed", "index"):
            manager.create_stream("o", stream)
        with manager.create_writer("o", "a") as writer:
            writer.write_event(b"event", "k")
        manager.create_key_value_table("o", "t", KeyValueTableConfiguration(4))
        manager.bookmarks("o").create("mark", manager.cuts("o", "a").head())
        cut = manager.cuts("o", "a").head()
        manager.slices("o").create("mark", cut, cut)
        manager.reader_group_manager("o").create_reader_group("g", "a")
        typed: Any = {"serializer": Json(int)}
        group = manager.reader_group_manager("o").get_reader_group("g")
        manager.reader_group_manager("o").create_reader_group("v", "typed")
        values = manager.reader_group_manager("o").get_reader_group("v")
        table = manager.table("o", "plain")
        table.create()
        self.objects: list[Any] = [
            manager,
            manager.bookmarks("o"),
            manager.slices("o"),
            manager.cuts("o", "a"),
            manager.create_writer("o", "a"),
            manager.create_transaction_writer("o", "a"),
            manager.create_transaction_writer("o", "a").begin_txn(),
            manager.create_reader("o", "a"),
            manager.reader_group_manager("o"),
            group,
            group.create_reader("r"),
            table,
            manager.key_value_table("o", "t"),
            manager.shared_map("o", "map"),
            manager.shared_set("o", "set"),
            manager.shared_counter("o", "counter"),
            manager.journal("o", "journal"),
            manager.leader_election("o", "election", "me"),
            manager.schemas("o", "a"),
            manager.create_index_writer("o", "index", ["t"]),
            manager.create_index_reader("o", "index"),
            manager.create_writer("o", "typed", **typed),
            manager.create_reader("o", "typed", **typed),
            manager.create_transaction_writer("o", "typed", **typed),
            manager.create_transaction_writer("o", "typed", **typed).begin_txn(),
            values.create_reader("r", **typed),
        ]
        cuts = ("start", "end", "cut", "first", "second", "as_of", "position")
        self.good: dict[str, Any] = dict.fromkeys(cuts, cut)
        self.good |= {"scope": "o", "stream": "a", "name": "mark", "new_name": "other", "table": "t", "text": "head"}
        self.good |= {
            "segment": "o/a/0.#epoch.0",
            "sealed_segments": [0],
            "new_ranges": [(0.0, 1.0)],
            "moment": 0,
            "time": 0,
        }
        self.good |= {"streams": "a", "cuts": [cut], "to": [cut], "reader_id": "x", "participant": "me", "events": 1}
        self.good |= {"timestamp_ms": 0, "now_ms": 0, "lease_ms": 20_000, "index": 0, "before": 0, "schema_id": 0}
        self.good |= {"key": b"four", "value": b"v", "keys": [b"four"], "modifications": [], "entry": b"e", "items": {}}
        self.good |= {"primary": b"four", "entries": [b"e"], "element": "e", "added": ["e"], "values": [1]}
        self.good |= {
            "event": b"e",
            "txn_id": "0" * 32,
            "transactions": ["0" * 32],
            "config": KeyValueTableConfiguration(4),
            "expected": 0,
        }
        self.good |= {"owner": "scope/o", "limits": QuotaLimits(streams=1_000)}
        self.good |= {"field": "t", "offset": 0, "data": b"", "after": {}}
        self.good |= {"kind": StateKind.of_types(int, int, int, max), "function": lambda value: value}

    def good_for(self, call: str, name: str) -> Any:
        others = {
            "StreamManager.create_byte_reader.start": 0,
            "StreamManager.create_index_writer.fields": ["t"],
            "IndexWriter.append.fields": {"t": 0},
            "IndexWriter.truncate_before.value": 0,
            "IndexReader.search.value": 0,
            "IndexReader.read.start": 0,
            "IndexReader.read.end": 0,
            "StreamManager.read_segment_range.start": 0,
            "StreamManager.read_segment_range.end": 0,
            "EventWriter.write_batch.events": [b"e"],
            "Transaction.write_batch.events": [b"e"],
            "ValueWriter.write_event.value": 1,
            "ValueTransaction.write_event.value": 1,
            "SharedMap.put.key": "k",
            "SharedCounter.compare_and_set.value": 1,
            "StreamCuts.between.start": 0,
            "StreamCuts.between.end": 0,
            "StreamCuts.arrival_times.segment_id": 0,
            "StreamCuts.arrival_times.offsets": [0],
        }
        return others[f"{call}.{name}"] if f"{call}.{name}" in others else self.good[name]


@pytest.fixture(scope="module")
def world(server: nadi.standalone.EmbeddedServer) -> Iterator[World]:
    with StreamManager(server.controller_uri, timeout=60) as manager:
        yield World(manager)


def public_methods(thing: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, method in inspect.getmembers(thing, inspect.ismethod):
        if not name.startswith("_"):
            yield f"{type(thing).__name__}.{name}", method


def wrong_for(call: str, name: str) -> tuple[Any, ...]:
    if name in ANYTHING or f"{call}.{name}" in ANYTHING:
        return OTHERS.get(f"{call}.{name}", ())
    wrong = OTHERS.get(f"{call}.{name}", WRONG.get(name))
    assert wrong is not None, f"add wrong values for {call}'s {name}, or add it to ANYTHING"
    return wrong


def outcome(call: Callable[..., Any], arguments: dict[str, Any]) -> str | None:
    """Call with a wrong argument; return the complaint, or None if it is rejected properly."""
    try:
        result = call(**arguments)
        if inspect.isgenerator(result):
            next(result)
    except InvalidArgumentError as error:
        return None if len(str(error)) > 20 else f"has only the message {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "is accepted"


def test_every_method_rejects_wrong_arguments(world: World) -> None:
    complaints = []
    for thing in world.objects:
        for call, method in public_methods(thing):
            parameters = inspect.signature(method).parameters.values()
            for wrong in parameters:
                needed = {p.name for p in parameters if p.default is inspect.Parameter.empty}
                if call.endswith(("read_events", "create_reader", "create_writer", "create_transaction_writer")):
                    needed -= {"serializer"}
                for value in wrong_for(call, wrong.name):
                    good = {name: world.good_for(call, name) for name in needed - {wrong.name}}
                    if (complaint := outcome(method, good | {wrong.name: value})) is not None:
                        complaints.append(f"{call}({wrong.name}={value!r}) {complaint}")
    assert not complaints, "\n".join(complaints)


VALUES: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (StreamManager, {}),
    (ScalingPolicy.fixed, {"segments": 1}),
    (ScalingPolicy.by_event_rate, {"events_per_s": 1}),
    (ScalingPolicy.by_data_rate, {"kib_per_s": 1}),
    (client.RetentionPolicy.by_time, {"keep_ms": 1}),
    (client.RetentionPolicy.by_size, {"keep_bytes": 1}),
    (KeyValueTableConfiguration, {"primary_key_bytes": 4}),
    (client.Basic, {"user": "u", "password": "p"}),
    (client.Bearer, {"token": "t"}),
    (client.on_events, {}),
    (client.on_positions, {}),
]


@pytest.mark.parametrize(
    "make",
    [
        lambda: ScalingPolicy.fixed(1 << 31),
        lambda: ScalingPolicy.by_event_rate(1 << 31),
        *(lambda kind=kind: kind(7) for kind in (Arrow, Json, Msgpack, Struct)),
    ],
)
def test_value_out_of_range_or_of_a_wrong_type_is_rejected(make: Callable[[], Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        make()


def test_shared_map_with_a_value_type_that_is_no_type_is_rejected(world: World) -> None:
    manager: Any = world.manager
    with pytest.raises(InvalidArgumentError, match="value_type"):
        manager.shared_map("o", "a", value_type=7)


@pytest.mark.parametrize(("make", "good"), VALUES, ids=lambda value: getattr(value, "__name__", ""))
def test_values_reject_wrong_arguments(make: Callable[..., Any], good: dict[str, Any]) -> None:
    complaints = [
        f"{name}={value!r} {complaint}"
        for name in inspect.signature(make).parameters
        for value in wrong_for(make.__qualname__, name)
        if (complaint := outcome(make, good | {name: value})) is not None
    ]
    assert not complaints, "\n".join(complaints)


def test_right_arguments_are_accepted(world: World) -> None:
    for credentials in (client.Basic("u", "p"), client.Bearer(lambda: "t"), None):
        StreamManager(credentials=credentials, trust_store=Path("none"), timeout=1).close()
    manager: Any = world.manager
    with manager.create_writer("o", "typed", serializer=Json(int)) as writer:
        writer.write_batch([1, 2], ["a", "b"]).result(60)
        writer.write_batch((value for value in (3,)), "a").result(60)
    manager.update_stream("o", "a", scaling=ScalingPolicy.fixed(1), retention=None, tags={"a"})
    manager.table("o", "plain").put(memoryview(b"key"), bytearray(b"value"))
    assert manager.create_reader("o", "a", routing_keys={"k"}).next_block(numpy.float64(60))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: StreamManager("tcp://h:99999"), "port 99999 of 'tcp://h:99999' is out of range: use 1 to 65535"),
        (lambda: nadi.embedded(5), "the data folder can't be 5: pass a path"),  # type: ignore[arg-type]
        (lambda: as_bytes(97), "an event must be bytes, not int: pass a list of events"),  # of `write_batch(b"a")`
    ],
)
def test_messages_say_what_to_pass_instead(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError) as error:
        call()
    assert str(error.value) == message


def test_messages_name_the_parameter_and_the_value(world: World) -> None:
    manager: Any = world.manager
    with pytest.raises(InvalidNameError, match="None"):
        manager.create_writer("o", None)
    with pytest.raises(InvalidStreamCutError, match="None"):
        manager.bookmarks("o").create("x", None)
    with pytest.raises(InvalidArgumentError, match=r"create_stream: segments .* '2'"):
        manager.create_stream("o", "x", "2")
    with pytest.raises(InvalidArgumentError, match=r"timeout .* -1"):
        next(manager.read_events("o", "a", timeout=-1))
    with pytest.raises(InvalidArgumentError, match=r"1 ms .* 10,000"):
        manager.create_transaction_writer("o", "a", lease_ms=1)
    with pytest.raises(TypeError):  # Python's own check
        manager.create_scope()
