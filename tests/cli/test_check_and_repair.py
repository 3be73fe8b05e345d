"""`nadi check` tells what is damaged and changes nothing; `nadi repair` does what can be done, and says its price."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import uvloop
from typer.testing import CliRunner, Result

import nadi
from nadi.cli.app import app
from nadi.errors import DamagedDataError, DataFolderError
from nadi.segmentstore.recovery import snapshotter
from nadi.segmentstore.repair import usedpages
from nadi.segmentstore.repair.stopped import StoppedLog
from nadi.segmentstore.state.checked import STATE_KEY
from nadi.segmentstore.state.file import pages
from nadi.segmentstore.tier1.layout import FRAME_HEADER_BYTES
from tests.segmentstore.harness import open_store
from tests.segmentstore.state_tables import lose_states, records_of, recovered
from tests.segmentstore.test_lost_state import EVENTS, base, contents, event, events_of, folder

__all__ = ["base", "folder"]  # fixtures
HOLD = "checkpoint_interval_s=3600,chunk_flush_age_s=3600"


def command(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("stop", [True, False])
def test_a_sound_folder(folder: Path, stop: bool) -> None:
    if stop:
        recovered(folder)
    before = contents(folder)
    told = command("check", folder)
    assert told.exit_code == 0, told.output
    assert "sound: nothing is damaged" in told.output
    assert contents(folder) == before
    assert command("repair", folder).exit_code == 0
    assert contents(folder) == before


def test_a_lost_state_heals(folder: Path) -> None:
    lose_states(folder)
    before = contents(folder)
    told = command("check", folder)
    assert told.exit_code == 1
    assert "rebuilt without loss" in told.output
    assert "nothing is lost" in told.output
    assert contents(folder) == before

    repaired = command("repair", folder, "--yes")
    assert repaired.exit_code == 0, repaired.output
    assert command("check", folder).exit_code == 0
    assert {event(number) for number in range(EVENTS)} <= events_of(folder)


def test_a_missing_chunk_is_named_by_its_stream(folder: Path) -> None:
    chunks = sorted((folder / "tier2").glob("container-*/*/*"), key=lambda path: path.stat().st_size)
    chunks[-1].unlink()
    before = contents(folder)
    told = command("check", folder)
    assert told.exit_code == 1
    assert re.search(
        r"LOST +stream s/t, segment .*: bytes [\d,]+ to [\d,]+ can't be read: chunk .* is missing", told.output
    )
    assert contents(folder) == before


def late_events(folder: Path) -> tuple[Path, int]:
    """Events in frames of their own that only the log has; the file, and where the frame of one begins."""
    recovered(folder)
    with nadi.embedded(folder, environment={"NADI_LIMITS": HOLD}) as server:
        with nadi.StreamManager(server.controller_uri) as manager, manager.create_writer("s", "t") as writer:
            for number in range(40):
                writer.write_event(b"late-%d" % number, "key").result(60)
        server.kill()
    logs = [path for path in folder.glob("container-*/log/log-*.nadi") if b"late-20" in path.read_bytes()]
    assert len(logs) == 1
    return logs[0], logs[0].read_bytes().index(b"late-20") // 4096 * 4096  # small frames have a block each


def frames_of(log: Path) -> list[int]:
    data = log.read_bytes()
    return [at for at in range(4096, len(data), 4096) if data[at : at + 4] == b"nad2"]


def frames_after(log: Path, at: int) -> int:
    """How many frames follow: the events' and what the server itself noted meanwhile."""
    return sum(frame > at for frame in frames_of(log))


def test_what_a_cut_gives_up_is_named(folder: Path) -> None:
    """Damage that refuses a start: before and after, all is told, and nothing but that is given up."""
    log, at = late_events(folder)
    flip(log, at + 9)
    with pytest.raises(DataFolderError):
        nadi.embedded(folder)
    before = contents(folder)

    asked = command("repair", "--cut-log", log, "--at", at)
    assert asked.exit_code == 1  # nobody said yes
    assert f"given up with it: {frames_after(log, at)} acknowledged frames" in asked.output
    assert "stream s/t, segment" in asked.output
    assert contents(folder) == before

    repaired = command("repair", "--cut-log", log, "--at", at, "--yes")
    assert repaired.exit_code == 1, repaired.output
    found = events_of(folder)
    assert {b"late-%d" % number for number in range(20)} <= found
    assert not {b"late-%d" % number for number in range(20, 40)} & found
    assert list(log.parent.glob("*.damaged-*"))


@pytest.mark.parametrize("place", [9, 100], ids=["header", "head"])
def test_one_frame_that_can_not_be_read_costs_no_other(folder: Path, place: int) -> None:
    log, at = late_events(folder)
    begin = events_of_log(log, at)
    flip(log, at + place)
    before = contents(folder)
    told = command("check", folder)
    assert told.exit_code == 1
    kept = frames_after(log, at)
    assert kept >= 19
    assert re.search(rf"LOST +frame \d+ can't be read; the {kept} after that are kept", told.output), told.output
    lost = re.findall(r"LOST +stream s/t, segment 1.#epoch.0: bytes ([\d,]+) to ([\d,]+) can't be read", told.output)
    assert [tuple(int(number.replace(",", "")) for number in found) for found in lost] == [(begin, begin + 15)]
    assert contents(folder) == before

    repaired = command("repair", folder, "--yes")
    assert repaired.exit_code == 1, "something is lost"
    assert "a server can be started" in repaired.output, repaired.output
    assert list(log.parent.parent.glob("state.damaged-*"))
    assert not list(log.parent.glob("*.damaged-*"))
    for _ in range(2):
        with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
            tail = manager.stream_info("s", "t").tail
            found = set()
            gaps = []
            with manager.create_reader("s", "t", end=tail) as reader:
                while True:
                    try:
                        block = reader.next_block(60)
                    except DamagedDataError as error:
                        gaps.append((error.offset, error.end_offset))
                        continue
                    if block is None:
                        break
                    found |= set(block[1].events())
            assert gaps == [(begin, begin + 15)]
            assert found >= {event(number) for number in range(EVENTS)}
            assert {b"late-%d" % number for number in range(40)} - found == {b"late-20"}
            skipped = {read.data for read in manager.read_events("s", "t", end=tail, on_damage="skip")}
            assert skipped == found
    assert command("repair", folder, "--yes").exit_code == 1, "it is still lost"
    assert len(list(log.parent.parent.glob("state.damaged-*"))) == 1, "and there is nothing to do about it"


def test_a_file_without_its_header_and_first_frame_has_lost_no_more(tmp_path: Path) -> None:
    """It passed for one that was only prepared, and all that it holds was named as lost."""
    folder = tmp_path / "data"
    with nadi.embedded(folder, containers=1) as server, nadi.StreamManager(server.controller_uri) as manager:
        manager.create_scope("s")
        manager.create_stream("s", "t", 1)
    with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
        with manager.create_writer("s", "t") as writer:
            for number in range(20):
                writer.write_event(b"late-%02d" % number, "key").result(60)
        server.kill()
    log = max(path for path in folder.glob("container-0/log/log-*.nadi") if b"late-19" in path.read_bytes())
    for later in folder.glob("container-0/log/log-*.nadi"):
        if later.name > log.name:  # prepared, and not used
            later.unlink()
    with log.open("r+b") as stream:
        stream.write(bytes(2 * 4096))
    told = command("repair", folder, "--yes")
    assert told.exit_code == 1
    assert set(re.findall(r"bytes [\d,]+ to [\d,]+ can't be read", told.output)) == {"bytes 0 to 15 can't be read"}
    assert "285 bytes read and correct" in told.output, told.output


def events_of_log(log: Path, at: int) -> int:
    """Where in its segment the frame at that place of a log appends."""
    from nadi.segmentstore.state.operations import Append, decode_frame

    operations, _ = decode_frame(log.read_bytes()[at + FRAME_HEADER_BYTES : at + 4096])
    assert isinstance(operations[0], Append)
    return operations[0].offset


def test_a_cut_that_would_empty_the_store_is_refused(folder: Path) -> None:
    """What the start itself advised once its state was gone."""
    lose_states(folder)
    shutil.rmtree(folder / "tier2/snapshots")
    before = contents(folder)
    first = min(folder.glob("container-0/log/log-*.nadi"))
    told = command("repair", "--cut-log", first, "--at", 0, "--yes")
    assert told.exit_code == 1
    assert "would be empty" in told.output
    assert contents(folder) == before


def spoil(state: Path, table: str, key: bytes) -> None:
    """Damage one record as a disk would."""
    file = state / "data.mdb"
    raw = records_of(state)[table][key]
    data = bytearray(file.read_bytes())
    at = data.rindex(key + raw)
    while at >= 0:  # older pages may have it too
        data[at + len(key)] ^= 255
        at = data.rfind(key + raw, 0, at)
    file.write_bytes(data)
    (state / "seal").unlink(missing_ok=True)


@pytest.mark.parametrize("table", ["segments", "extents", "names", "entries", "logged"])
def test_without_a_snapshot_what_is_whole_of_a_state_is_kept(folder: Path, table: str) -> None:
    """One damaged record, of a segment of the stream where it is one, costs that record, and no more."""
    if table == "logged":  # all of it may have been moved to tier 2 by now
        with (
            nadi.embedded(folder) as server,
            nadi.StreamManager(server.controller_uri) as manager,
            manager.create_writer("s", "t") as writer,
        ):
            writer.write_event(b"fresh", "key").result(60)
    recovered(folder)
    expected = events_of(folder)
    chosen = None
    for number in range(2):
        container = folder / f"container-{number}"
        records = records_of(container / "state")
        ids = [key for name, key in ((n, v[:-4]) for n, v in records["names"].items()) if name.startswith(b"s/t/")]
        keys = sorted(key for key in records[table] if table in ("names", "entries") or key[:8] in ids)
        if table == "names":
            keys = [name for name in keys if name.startswith(b"s/t/")]
        if keys and not chosen:
            chosen = container, keys[len(keys) // 2]
        shutil.rmtree(folder / f"tier2/snapshots/container-{number}")
    assert chosen is not None
    spoil(chosen[0] / "state", table, chosen[1])
    with pytest.raises(DataFolderError, match="nadi repair"):
        nadi.embedded(folder)
    before = contents(folder)
    told = command("check", folder)
    assert told.exit_code == 1
    assert "can recover what is intact" in told.output, told.output
    assert contents(folder) == before

    repaired = command("repair", folder, "--yes")
    assert repaired.exit_code == 1, repaired.output
    assert f"given up: {chosen[0].name}: " in repaired.output
    assert list(chosen[0].glob("state.damaged-*"))
    if table != "entries":  # which may be of the controller's own
        assert events_of(folder) == expected


def pages_of(state: Path, what: str) -> list[int]:
    """Pages of a state that hold no segment's records."""
    data = (state / "data.mdb").read_bytes()
    with (state / "data.mdb").open("rb") as stream:
        meta = pages.read_meta(stream.fileno())
        used = usedpages.used_pages(stream.fileno())
    own = STATE_KEY + records_of(state)["state"][STATE_KEY]
    lists = [number for number in range(2, meta.last_page + 1) if b"attributes" in data[number * 4096 :][:4096]]
    branches = [number for number in used.sure if data[number * 4096 + 10] == 1]
    return {
        "head": [meta.transaction % 2],
        "both heads": [0, 1],
        "both heads, lists of tables": [0, 1, *lists],
        "free list": [meta.free.root],
        "own record": [number for number in used.sure if own in data[number * 4096 :][:4096]],
        "free list, branches": [meta.free.root, *branches],
    }[what]


STALE = ["free list, branches", "both heads, lists of tables"]


@pytest.mark.parametrize("what", ["head", "both heads", "free list", "own record", *STALE])
def test_one_damaged_page_of_a_state_costs_no_other(folder: Path, what: str) -> None:
    """All was given up, and made up for by what chunks and the log tell."""
    recovered(folder)
    expected = events_of(folder)
    shutil.rmtree(folder / "tier2/snapshots")
    for number in range(2):
        state = folder / f"container-{number}/state"
        data = bytearray((state / "data.mdb").read_bytes())
        for page in pages_of(state, what):
            data[page * 4096 : (page + 1) * 4096] = bytes(4096)
        (state / "data.mdb").write_bytes(data)
    told = command("check", folder)
    assert told.output.count("what follows is from the intact part of state") == 2, told.output
    assert ("some records may be outdated" in told.output) == (what in STALE), told.output
    repaired = command("repair", folder, "--yes")
    assert repaired.exit_code == 1, repaired.output
    assert "given up: container-1: " in repaired.output
    assert events_of(folder, may_be_stale=what in STALE) == expected


def test_a_missing_snapshot_is_told_and_nothing_is_called_lost(folder: Path) -> None:
    recovered(folder)
    shutil.rmtree(folder / "tier2/snapshots/container-0")
    told = command("check", folder)
    assert told.exit_code == 1
    assert told.output.count("renews the state's snapshot is missing") == 1, told.output
    assert "damaged, and nothing is lost" in told.output
    repaired = command("repair", folder, "--yes")
    assert repaired.exit_code == 0, repaired.output
    assert "a server can be started" in repaired.output
    assert "what is LOST" not in repaired.output
    recovered(folder)
    assert command("check", folder).exit_code == 0, "a server has made it"


def test_what_is_no_data_folder(tmp_path: Path) -> None:
    assert command("check", tmp_path / "none").exit_code == 1
    assert not (tmp_path / "none").exists()
    told = command("check", tmp_path)
    assert told.exit_code == 1
    assert "not a nadi data folder" in told.output
    assert command("repair").exit_code == 1
    assert command("repair", tmp_path, "--cut-log", tmp_path / "x").exit_code == 1


def test_a_folder_in_use_is_left_alone(folder: Path) -> None:
    with nadi.embedded(folder):
        told = command("check", folder)
    assert told.exit_code == 1
    assert "in use" in told.output


def test_a_log_that_has_lost_its_beginning_is_not_cut(folder: Path) -> None:
    """An end put to it would leave nothing of it: what it still has is kept."""
    log, _ = late_events(folder)
    with (
        nadi.embedded(folder, environment={"NADI_LIMITS": HOLD}) as server,
        nadi.StreamManager(server.controller_uri) as manager,
        manager.create_writer("s", "t") as writer,
    ):
        for number in range(10):
            writer.write_event(b"later-%d" % number, "key").result(60)
        server.kill()
    for path in log.parent.glob("log-*.nadi"):
        if path.name <= log.name:
            path.unlink()
    with pytest.raises(DataFolderError, match="nadi check"):
        nadi.embedded(folder)
    told = command("check", folder)
    assert re.search(r"LOST +frames [\d,]+ to [\d,]+ can't be read; the \d+ after that are kept", told.output), (
        told.output
    )
    repaired = command("repair", folder, "--yes")
    assert "end the log" not in repaired.output
    assert "a server can be started" in repaired.output, repaired.output
    assert not list(log.parent.glob("*.damaged-*"))
    with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
        tail = manager.stream_info("s", "t").tail
        found = {read.data for read in manager.read_events("s", "t", end=tail, on_damage="skip")}
    assert {b"later-%d" % number for number in range(10)} <= found


def test_a_table_that_has_lost_changes_is_told_and_the_log_ends_there(folder: Path) -> None:
    """Its readers would not be told: so nothing that follows is kept, and the report says why."""
    recovered(folder)
    with (
        nadi.embedded(folder, environment={"NADI_LIMITS": HOLD}) as server,
        nadi.StreamManager(server.controller_uri) as manager,
    ):
        table = manager.table("s", "tab")
        for number in range(9):
            table.put(b"late", b"value-%d" % number)
        server.kill()
    log = next(path for path in folder.glob("container-*/log/log-*.nadi") if b"value-4" in path.read_bytes())
    at = log.read_bytes().index(b"value-4") // 4096 * 4096
    later = frames_after(log, at)
    assert later >= 4
    flip(log, at + 9)
    told = command("check", folder)
    assert re.search(r"LOST +frame \d+ can't be left out", told.output), told.output
    assert "some keys have older values" in told.output
    repaired = command("repair", folder, "--yes")
    assert "end the log" in repaired.output
    assert f"given up with it: {later} acknowledged frames" in repaired.output, repaired.output
    with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
        value = manager.table("s", "tab").get(b"late")
        assert value is not None
        assert value.value == b"value-3"


@pytest.mark.parametrize("what", ["head", "header", "table", "file"])
def test_what_a_lost_state_would_need_of_the_log_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Frames between the snapshot and the state: nobody needs them today, and `nadi check` tells as the scrub does."""
    monkeypatch.setattr(snapshotter, "PACE", snapshotter.SnapshotPace(interval_s=10_000.0))
    name = "s/t/0.#epoch.0"

    async def fill() -> None:
        async with open_store(tmp_path, 1) as (store, peer):
            await peer.create(name)
            last = await peer.setup(name)
            for number in range(6):
                await peer.append([bytes([number]) * 3_000], max(last, 0) + number + 1)
            sequences.append(store.containers[0].parts.snapshots.sequence)

    sequences: list[int] = []
    uvloop.run(fill())
    monkeypatch.setattr(snapshotter.Snapshotter, "_is_quick", lambda _: False)  # so that none is made at the stop
    uvloop.run(fill())
    assert sequences[1] > 0
    assert command("check", tmp_path).exit_code == 0
    frame = StoppedLog(tmp_path / "container-0/log").readable(sequences[1])[-4]
    header = frame.header
    within = header.offset + FRAME_HEADER_BYTES
    place = {"head": within + 8, "header": header.offset + 20, "table": within + header.payload_bytes + 5}
    if what == "file":
        frame.path.unlink()
    else:
        flip(frame.path, place[what])
    before = contents(tmp_path)
    told = command("check", tmp_path)
    assert told.exit_code == 1, told.output
    output = " ".join(told.output.split())
    assert "snapshot to replace it" in output
    assert what == "file" or re.search(rf"frames? {header.sequence:,} ", output)
    assert contents(tmp_path) == before


def test_a_place_that_is_none_is_refused_before_anything_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reads(*_: object) -> None:
        raise AssertionError("nothing is to be read")

    monkeypatch.setattr("nadi.segmentstore.repair.inspection.inspect_container", reads)
    before = contents(folder)
    log = folder / "container-0/log"
    last = max(log.glob("log-*.nadi"))
    places = [(last, -1, "is not in"), (last, 1 << 40, "is not in"), (log / "log-0000000000000099.nadi", 0, "no file")]
    for file, at, what in [*places, (log / "epoch", 0, "is not a log file")]:
        told = command("repair", "--yes", "--cut-log", file, "--at", at)
        assert told.exit_code == 1
        assert what in told.output
    assert contents(folder) == before


def test_a_damaged_place_is_printed_once(folder: Path) -> None:
    chunk = next(path for path in sorted((folder / "tier2/container-0").rglob("*")) if path.is_file())
    chunk.unlink()
    told = subprocess.run(
        [sys.executable, "-m", "nadi.cli.app", "check", str(folder)], capture_output=True, text=True, check=False
    )
    assert told.returncode == 1
    assert told.stdout.count(chunk.name) == 1
    assert chunk.name not in told.stderr
