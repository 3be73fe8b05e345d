"""After a repair that gave up the controller's entries, what their segments hold can be found again.

Real folders, which real servers wrote and read again. The entries are lost in one of two ways: the state has damaged
records and no snapshot, so its other records are whole; or nothing is left but chunks and the end of the log.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import nadi
from nadi.client.tables.key_value_registry import KeyValueTableConfiguration
from nadi.client.tables.key_value_table import TableKey
from nadi.controller.anew.plan import Plan, look
from nadi.controller.anew.records import read as read_records
from nadi.controller.state.metadata import Metadata, StreamName
from nadi.controller.state.records import Stream
from nadi.controller.state.segments import Segments
from nadi.controller.state.store import Store
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_epoch, segment_name
from nadi.runtime import REAL
from nadi.segmentstore.repair import unfinished
from nadi.segmentstore.repair.remains import described_chunks
from nadi.segmentstore.store import SegmentStore
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.standalone import anew
from nadi.wire import commands as wire
from nadi.wire.commands import Command
from tests.cli.test_check_and_repair import command
from tests.segmentstore.state_tables import copy_of, records_of, recovered
from tests.segmentstore.test_lost_state import contents

SCOPE = "power"
KEYS = [f"meter-{number}" for number in range(12)]
STREAMS = {"more": 5, "steady": 4, "uneven": 3, "scaled": 2, "short": 2, "done": 2, "bytes": 1}
LIMITS = "chunk_flush_age_s=0.05,storage_writer_tick_s=0.02,log_file_bytes=1048576,snapshot_interval_s=0.1"


@dataclass(slots=True)
class Ledger:
    """What was written: of each stream the numbers by key, in order; and cuts that were taken."""

    written: dict[str, dict[str, list[int]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    middle: dict[str, StreamCut] = field(default_factory=dict)
    read_before: list[bytes] = field(default_factory=list)


def write(manager: nadi.StreamManager, ledger: Ledger, stream: str, count: int = 60, keys: list[str] = KEYS) -> None:
    with manager.create_writer(SCOPE, stream) as writer:
        for number in range(count):
            key = keys[number % len(keys)]
            known = ledger.written[stream][key]
            writer.write_event(b"%s:%d" % (key.encode(), len(known)), key)
            known.append(len(known))
        writer.flush(60)


def scale(manager: nadi.StreamManager, stream: str, which: slice, ranges: list[tuple[float, float]]) -> None:
    segments = sorted(manager.current_segments(SCOPE, stream), key=lambda segment: segment.low)[which]
    manager.scale_stream(SCOPE, stream, [segment.segment_id for segment in segments], ranges)


def until_in_tier_2(manager: nadi.StreamManager, folder: Path, stream: str) -> None:
    """Until chunks have all of it: the log alone tells no names."""
    chunks = ChunkStore.in_folder(folder / "tier2")
    ends: dict[str, int] = {}
    tail = manager.stream_info(SCOPE, stream).tail
    wanted = {segment_name(SCOPE, stream, segment): offset for segment, offset in tail.positions.items()}
    for _ in range(3_000):
        for container in range(2):
            for parts in asyncio.run(described_chunks(chunks, container)).values():
                for _, part in parts:
                    ends[part.segment] = max(ends.get(part.segment, 0), part.offset + part.length)
        if all(ends.get(name, 0) >= offset for name, offset in wanted.items()):
            return
        time.sleep(0.02)
    raise AssertionError("it is not moved")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Ledger]]:
    folder = tmp_path_factory.mktemp("anew") / "base"
    ledger = Ledger()
    with (
        nadi.embedded(folder, containers=2, environment={"NADI_LIMITS": LIMITS}) as server,
        nadi.StreamManager(server.controller_uri) as manager,
    ):
        manager.create_scope(SCOPE)
        for stream, segments in STREAMS.items():
            manager.create_stream(SCOPE, stream, segments, tags=["t"])
        for stream in ("steady", "scaled", "short", "done"):
            write(manager, ledger, stream)
        write(manager, ledger, "uneven", keys=["meter-3"])
        group = manager.reader_group_manager(SCOPE)
        group.create_reader_group("readers", "steady", dead_after_ms=2_000)
        ledger.middle["steady"] = manager.stream_info(SCOPE, "steady").tail
        write(manager, ledger, "steady")
        scale(manager, "scaled", slice(None), [(0.0, 0.2), (0.2, 0.7), (0.7, 1.0)])  # none that halves would be
        write(manager, ledger, "scaled")
        scale(manager, "scaled", slice(1, 2), [(0.2, 0.3), (0.3, 0.4), (0.4, 0.7)])  # the others stay
        write(manager, ledger, "scaled")
        scale(manager, "scaled", slice(0, 3), [(0.0, 0.1), (0.1, 0.4)])
        write(manager, ledger, "scaled")
        ledger.middle["short"] = manager.stream_info(SCOPE, "short").tail
        scale(manager, "short", slice(0, 1), [(0.0, 0.5)])
        write(manager, ledger, "short")
        manager.truncate_stream(ledger.middle["short"])
        manager.seal_stream(SCOPE, "done")
        with manager.create_byte_writer(SCOPE, "bytes") as file:
            file.write(b"0123456789" * 100)
        table = KeyValueTableConfiguration(primary_key_bytes=4, secondary_key_bytes=4, partitions=2)
        manager.create_key_value_table(SCOPE, "kept", table)
        kept = manager.key_value_table(SCOPE, "kept")
        for number in range(40):
            kept.put(TableKey(b"p%03d" % number, b"s%03d" % number), b"value of %d" % number)
        readers = group.get_reader_group("readers")
        with readers.create_reader("before") as reader:  # as far as it comes with some blocks
            for _ in range(20):
                event = reader.read_next_event(60)
                assert event is not None
                assert event.event is not None
                ledger.read_before.append(event.event)
    for _ in range(2):  # so that the log lets go of its beginning
        with (
            nadi.embedded(folder, environment={"NADI_LIMITS": LIMITS}) as server,
            nadi.StreamManager(server.controller_uri) as manager,
        ):
            write(manager, ledger, "more")
            until_in_tier_2(manager, folder, "more")
    yield folder, ledger
    shutil.rmtree(folder)


@pytest.fixture
def folder(base: tuple[Path, Ledger], tmp_path: Path) -> Path:
    return Path(shutil.copytree(base[0], tmp_path / "data"))


@pytest.fixture
def ledger(base: tuple[Path, Ledger]) -> Ledger:
    return base[1]


def lose_entries(folder: Path, how: str, which: bytes = b"") -> None:
    """which: of the controller's tables, those whose names go on so."""
    shutil.rmtree(folder / "tier2/snapshots", ignore_errors=True)
    for container in folder.glob("container-*"):
        if how == "all states":
            shutil.rmtree(container / "state")
            continue
        file = container / "state/data.mdb"
        records = records_of(container / "state")
        lost = {raw[:-4] for name, raw in records["names"].items() if name.startswith(b"_system/_tables/" + which)}
        data = bytearray(file.read_bytes())
        for key, raw in records["entries"].items():
            if key[:8] in lost:
                at = data.rfind(key + raw)
                while at >= 0:  # older pages may have it too
                    data[at + len(key)] ^= 255
                    at = data.rfind(key + raw, 0, at)
        file.write_bytes(data)
        (container / "state/seal").unlink(missing_ok=True)


def lose_seals(folder: Path, stream: str) -> None:
    """The records of the stream's segments: that some are sealed stood there alone."""
    shutil.rmtree(folder / "tier2/snapshots")
    for container in folder.glob("container-*"):
        file = container / "state/data.mdb"
        records = records_of(container / "state")
        ids = {raw[:-4] for name, raw in records["names"].items() if name.startswith(f"{SCOPE}/{stream}/".encode())}
        data = bytearray(file.read_bytes())
        for key in ids:
            place = key + records["segments"][key]
            at = data.rfind(place)
            while at >= 0:
                data[at + len(key)] ^= 255
                at = data.rfind(place, 0, at)
        file.write_bytes(data)
        (container / "state/seal").unlink(missing_ok=True)


LOST = pytest.mark.parametrize("how", ["entries", "all states"])


def repaired(folder: Path) -> str:
    done = command("repair", folder, "--yes")
    assert done.exit_code == 1, done.output
    assert "a server can be started" in done.output, done.output
    return str(done.output)


def read(manager: nadi.StreamManager, stream: str, start: StreamCut | None = None) -> dict[str, list[int]]:
    """The numbers by key, in the order in which they were read."""
    found: dict[str, list[int]] = defaultdict(list)
    tail = manager.stream_info(SCOPE, stream).tail
    for event in manager.read_events(SCOPE, stream, start=start, end=tail):
        key, _, number = event.data.decode().partition(":")
        found[key].append(int(number))
    return found


def test_a_segment_that_was_replaced_is_sealed_again(folder: Path, ledger: Ledger) -> None:
    """A reader waited for ever for what was to come in it."""
    lose_seals(folder, "scaled")
    said = repaired(folder)
    assert re.search(r"stream power/scaled: \d segments that it had sealed: sealed again", said), said
    with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
        tail = manager.stream_info(SCOPE, "scaled").tail
        found: dict[str, list[int]] = defaultdict(list)
        with manager.create_reader(SCOPE, "scaled", end=tail) as reader:
            while (block := reader.next_block(60)) is not None:
                for payload in block[1].payloads().to_pylist():
                    key, _, number = payload.decode().partition(":")
                    found[key].append(int(number))
        assert found == ledger.written["scaled"]


@LOST
def test_what_is_in_the_segments_is_read_again_and_writers_go_on(folder: Path, ledger: Ledger, how: str) -> None:
    """Clients got "scope not found"; the bytes were all there."""
    lose_entries(folder, how)
    said = repaired(folder)
    assert re.search(r"stream power/steady: rebuilt from its 4 segments; its policies and tags.* lost", said), said
    assert re.search(r"stream power/scaled: rebuilt from its 10 segments; .*followed which is lost", said), said
    written = {stream: {key: list(some) for key, some in keys.items()} for stream, keys in ledger.written.items()}
    new = Ledger(written=defaultdict(lambda: defaultdict(list), written))
    for _ in range(2):
        with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
            for stream in ("steady", "uneven", "scaled", "more"):
                assert read(manager, stream) == new.written[stream], stream
                write(manager, new, stream, keys=["meter-3"] if stream == "uneven" else KEYS)
                assert read(manager, stream) == new.written[stream], stream
            assert read(manager, "done") == ledger.written["done"]
            assert manager.stream_info(SCOPE, "done").is_sealed == (how == "entries"), "else the seals are lost"
            with manager.create_byte_reader(SCOPE, "bytes") as file:
                assert file.read() == b"0123456789" * 100
            with manager.create_byte_writer(SCOPE, "bytes") as end:
                assert end.tell() == 1_000
    assert "rebuilt from" not in command("check", folder).output


@pytest.mark.parametrize("how", ["entries", pytest.param("all states", marks=pytest.mark.slow)])
def test_a_cut_taken_before_is_good(folder: Path, ledger: Ledger, how: str) -> None:
    lose_entries(folder, how)
    repaired(folder)
    with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
        found = read(manager, "steady", ledger.middle["steady"])
        assert found == {key: written[len(written) // 2 :] for key, written in ledger.written["steady"].items()}
        head, is_truncated = manager.stream_info(SCOPE, "short").head, how == "entries"  # else chunks have it still
        assert (head == ledger.middle["short"]) == is_truncated
        places = {key: len(written) // 2 if is_truncated else 0 for key, written in ledger.written["short"].items()}
        assert read(manager, "short") == {key: ledger.written["short"][key][at:] for key, at in places.items()}


def test_a_reader_group_goes_on(folder: Path, ledger: Ledger) -> None:
    lose_entries(folder, "entries")
    assert "reader group power/readers: rebuilt" in repaired(folder)
    with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
        groups = manager.reader_group_manager(SCOPE)
        assert not groups.create_reader_group("readers", "steady"), "it is the one of before"
        found = list(ledger.read_before)
        wanted = sum(map(len, ledger.written["steady"].values()))
        with groups.get_reader_group("readers").create_reader("after") as reader:
            while len(found) < wanted:
                event = reader.read_next_event(60)
                assert event is not None
                assert event.event is not None
                found.append(event.event)
            write(manager, Ledger(), "steady", 1)
            event = reader.read_next_event(60)
            assert event is not None
    by_key: dict[str, list[int]] = defaultdict(list)
    for data in found:
        key, _, number = data.decode().partition(":")
        by_key[key].append(int(number))
    assert by_key == ledger.written["steady"]


def test_segments_that_no_stream_has_keep_nothing_from_being_made(folder: Path, ledger: Ledger) -> None:
    """The store takes any name. One of these had the server wait for all memory, another had nothing made at all."""
    odd = [
        f"{SCOPE}/odd/9999999999.#epoch.0",
        f"{SCOPE}/steady/7.#epoch.2147483647",
        f"{SCOPE}/steady/2147483647.#epoch.0",
        f"{SCOPE}/kept_kvtable/2147483647.#epoch.0",
    ]

    async def create() -> None:
        store = SegmentStore(folder)
        await store.start()
        for number, name in enumerate(odd[:3]):
            assert isinstance(await store.exchange(wire.CreateSegment(number, name, 0, 0, "")), wire.SegmentCreated)
        table = wire.CreateTableSegment(9, odd[3], "", False, 8, 0)
        assert isinstance(await store.exchange(table), wire.SegmentCreated)
        await store.close()

    asyncio.run(create())
    lose_entries(folder, "entries")
    said = repaired(folder)
    for name in odd[1:3]:
        assert f"segment {name}: no stream can have it: it stays unused" in said
    with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
        for stream in ("steady", "scaled", "more"):
            assert read(manager, stream) == ledger.written[stream], stream
        assert "odd" not in manager.list_streams(SCOPE)
        entry = manager.key_value_table(SCOPE, "kept").get(TableKey(b"p001", b"s001"))
        assert entry is not None
        assert entry.value == b"value of 1"
    assert not unfinished.is_noted(folder)


def test_a_note_that_can_not_go_keeps_no_server_from_starting(folder: Path, ledger: Ledger) -> None:
    (folder / "unfinished-repair").mkdir()
    with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
        assert read(manager, "steady") == ledger.written["steady"]


def test_a_key_value_table_is_found_again(folder: Path) -> None:
    lose_entries(folder, "entries")
    assert "key-value table power/kept: rebuilt" in repaired(folder)
    with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
        table = manager.key_value_table(SCOPE, "kept")
        assert (table.configuration.primary_key_bytes, table.configuration.secondary_key_bytes) == (4, 4)
        for number in range(40):
            entry = table.get(TableKey(b"p%03d" % number, b"s%03d" % number))
            assert entry is not None
            assert entry.value == b"value of %d" % number


@pytest.mark.parametrize(
    "which",
    [
        "stream/",
        "scope/power",
        *(pytest.param(rest, marks=pytest.mark.slow) for rest in ("scopes", "tags/", "groups/")),
    ],
)
def test_what_is_left_of_the_records_is_kept(folder: Path, ledger: Ledger, which: str) -> None:
    lose_entries(folder, "entries", which.encode())
    repaired(folder)
    with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
        for stream in ("steady", "uneven", "scaled", "done", "more"):
            assert read(manager, stream) == ledger.written[stream], stream
        assert set(manager.list_streams(SCOPE, tag="t")) == STREAMS.keys()
        is_kept = which != "scope/power"
        assert manager.stream_configuration(SCOPE, "scaled").tags == (("t",) if is_kept else ())
        epochs = {segment_epoch(segment.segment_id) for segment in manager.current_segments(SCOPE, "scaled")}
        assert (epochs == {1, 2, 3}) == (which != "stream/"), "a history that is whole is used as it is"


# --- once, whatever comes between --------------------------------------------------------------------


class Killed(BaseException):
    """As if the process were: nothing of it goes on."""


async def finished(folder: Path, commands: int | None = None) -> tuple[int, dict[StreamName, Stream], Plan]:
    """What a start does with what a repair left, up to a number of commands; how many it took, and what there is then,
    and would still be to be done."""
    store = SegmentStore(folder)
    await store.start()
    count = 0

    async def exchange(command: Command) -> Command:
        nonlocal count
        if count == commands:
            raise Killed
        count += 1
        return await store.exchange(command)

    try:
        with suppress(Killed):
            await anew.finish(folder, store.containers, exchange)
        known = await read_records(Metadata(Store(Segments(store.exchange, REAL))), {SCOPE})
        plan = await look(anew._flow(store.exchange), anew.found_in(store.containers))
    finally:
        await store.close()
    return count, {name: held.value for name, held in known.streams.items()}, plan


def shape(streams: dict[StreamName, Stream]) -> dict[str, object]:
    """Without the times at which it was made."""
    return {str(name): (s.state, s.epoch, s.head, s.segments, s.config) for name, s in streams.items()}


@pytest.mark.parametrize(
    ("how", "kills"),
    [
        ("entries", 3),
        pytest.param("entries", 30, marks=pytest.mark.slow),
        pytest.param("all states", 30, marks=pytest.mark.slow),
    ],
)
def test_killed_at_any_step_it_is_done_by_the_next_start(folder: Path, ledger: Ledger, how: str, kills: int) -> None:
    lose_entries(folder, how)
    repaired(folder)
    repaired_again = command("repair", folder, "--yes")
    assert "stream power/scaled: rebuilt" in repaired_again.output, "it isn't forgotten"
    steps, whole, plan = asyncio.run(finished(copy_of(folder, "whole")))
    assert plan.is_empty
    assert steps > 100
    for kill_at in range(steps // 3, steps, max(1, steps * 2 // 3 // kills)):
        copy = copy_of(folder, "killed")
        taken, _, _ = asyncio.run(finished(copy, kill_at))
        assert taken == kill_at
        assert unfinished.is_noted(copy)
        _, streams, plan = asyncio.run(finished(copy))
        assert plan.is_empty
        assert not unfinished.is_noted(copy)
        assert shape(streams) == shape(whole), f"killed after {kill_at} of {steps} commands"
        shutil.rmtree(folder.with_name("last"), ignore_errors=True)
        last = copy.rename(folder.with_name("last"))
    with nadi.embedded(last) as server, nadi.StreamManager(server.controller_uri) as manager:
        for stream in ("steady", "scaled", "uneven"):
            assert read(manager, stream) == ledger.written[stream]


def test_a_repair_that_is_killed_leaves_it_to_the_next_start(
    folder: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the states took their places, and before anything was said of streams."""
    lose_entries(folder, "entries")

    def killed(*_: object, **__: object) -> list[str]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("nadi.cli.admin.repair.made_anew", killed)
        assert "a server can be started" not in command("repair", folder, "--yes").output
    assert "stream power/steady: rebuilt" in command("check", folder).output
    with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
        assert read(manager, "steady") == ledger.written["steady"]
    assert command("repair", folder, "--yes").exit_code == 0


def test_what_is_whole_is_not_touched(folder: Path) -> None:
    """As after a repair that gave up nothing of the controller's: all records are there, of streams of any kind."""
    with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
        manager.create_stream(SCOPE, "open", 3)
        with manager.create_transaction_writer(SCOPE, "open") as writer:
            writer.begin_txn().write_event(b"never committed", "k")
            scale(manager, "open", slice(0, 1), [(0.0, 0.1), (0.1, 1 / 3)])
            server.kill()
    with nadi.embedded(folder):
        pass
    unfinished.note(folder)
    _, before, plan = asyncio.run(finished(copy_of(folder, "looked-at"), 0))
    assert plan.is_empty
    assert not plan.lines()
    _, after, _ = asyncio.run(finished(folder))
    assert after == before
    sound = contents(folder)
    assert command("repair", folder).exit_code == 0
    assert contents(folder) == sound


def test_a_create_of_the_same_name_can_not_come_first(folder: Path, ledger: Ledger) -> None:
    """Who finds no stream makes it, and would write in the middle of what was there."""
    lose_entries(folder, "entries")
    repaired(folder)
    with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
        assert not manager.create_scope(SCOPE)
        assert not manager.create_stream(SCOPE, "steady", 1)
        assert read(manager, "steady") == ledger.written["steady"]


def test_transaction_ids_are_not_given_again(folder: Path) -> None:
    """One that was begun under an id of before would take over what is left in its segments."""
    with (
        nadi.embedded(folder) as server,
        nadi.StreamManager(server.controller_uri) as manager,
        manager.create_transaction_writer(SCOPE, "bytes") as writer,
    ):
        former = writer.begin_txn()
        former.write_event(b"never committed")
        former.flush()
        server.kill()
    recovered(folder)
    lose_entries(folder, "entries")
    assert "whether these of its transactions were committed is lost" in repaired(folder)
    with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
        with manager.create_transaction_writer(SCOPE, "bytes") as writer:
            transaction = writer.begin_txn()
            assert transaction.txn_id.int > former.txn_id.int + 1_000
            transaction.write_event(b"committed")
            transaction.commit(wait=True, timeout=60)
        with manager.create_byte_reader(SCOPE, "bytes") as file:
            data = file.read()
        assert b"never" not in data
        assert data.endswith(b"committed")
