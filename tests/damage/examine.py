"""Starts a server on a damaged folder, reads everything, and compares it with the ledger."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import nadi
from nadi.client import StreamManager
from nadi.errors import DamagedDataError, NadiError, StreamNotFoundError
from tests.damage.folder import LAST, READING, SCOPE, STREAM, TABLE, Ledger, key_of

READ_S = 60.0
START_S = 60.0
BAD = ("WRONG", "LOST", "HANG", "DIED", "CRASH", "REFUSED SOUND DATA")


@dataclass(slots=True)
class Verdict:
    """`outcome`: sound, reported (damage was named, all else was correct), refused (no server started), or one of
    BAD."""

    outcome: str = "sound"
    notes: list[str] = field(default_factory=list)

    def worse(self, outcome: str, note: str) -> None:
        order = ["sound", "reported", "refused", *reversed(BAD)]
        if order.index(outcome) > order.index(self.outcome):
            self.outcome = outcome
        self.notes.append(note)


def examine(folder: Path, ledger: Ledger, *, may_lose: bool = False, said: str = "") -> Verdict:
    """may_lose: the folder was repaired, with consent to losses, which are counted, not judged. said: the repair's
    output. A stream may be missing only if that names one of its segments as entirely lost.
    """
    verdict = Verdict()
    try:
        server = nadi.embedded(folder, timeout_s=START_S, environment={"NADI_LIMITS": READING})
    except NadiError as error:
        verdict.worse("refused", f"{type(error).__name__}: {error}")
        return verdict
    except Exception as error:
        verdict.worse("CRASH", repr(error)[:500])
        return verdict
    manager = StreamManager(server.controller_uri)
    try:
        for stream in ledger.streams:
            lines = [line for line in said.splitlines() if f"stream {SCOPE}/{stream}, segment" in line]
            may_be_gone = any("entire" in line for line in lines)
            read = partial(_read, manager, stream, ledger, verdict, may_lose)
            _in_time(verdict, f"reading {stream}", partial(_unless_gone, read, verdict) if may_be_gone else read)
        _in_time(verdict, "reading the table", lambda: _read_table(manager, ledger, verdict, may_lose))
        _in_time(verdict, "writing", lambda: _write(manager, verdict))
        if server._process.poll() is not None:
            verdict.worse("DIED", f"the server ended with {server._process.returncode}")
    finally:
        server.kill()
        threading.Thread(target=manager.close, daemon=True).start()
    return verdict


def _in_time(verdict: Verdict, what: str, function: Callable[[], None]) -> None:
    failed: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(READ_S)
    if thread.is_alive():
        verdict.worse("HANG", f"{what}: no end within {READ_S:.0f} s")
    elif failed and isinstance(failed[0], NadiError):
        verdict.worse("REFUSED SOUND DATA", f"{what}: {type(failed[0]).__name__}: {str(failed[0])[:300]}")
    elif failed:
        verdict.worse("CRASH", f"{what}: {failed[0]!r:.300}")


def _unless_gone(read: Callable[[], None], verdict: Verdict) -> None:
    try:
        read()
    except StreamNotFoundError as error:
        verdict.notes.append(f"lost: {error}")


def _read(manager: StreamManager, stream: str, ledger: Ledger, verdict: Verdict, may_lose: bool) -> None:
    expected = {(segment, offset): data for segment, offset, data in ledger.streams[stream]}
    found: set[tuple[int, int]] = set()
    gaps: list[tuple[int, int, int]] = []
    order: dict[int, int] = {}
    ranks = {place: rank for rank, place in enumerate(expected)}  # in each key's order
    last: dict[int, int] = {}  # by key
    tail = manager.stream_info(SCOPE, stream).tail
    with manager.create_reader(SCOPE, stream, end=tail) as reader:
        while True:
            try:
                block = reader.next_block(READ_S)
            except DamagedDataError as error:
                gaps.append((int(error.segment.split("/")[-1].split(".")[0]), error.offset, error.end_offset))
                verdict.worse("reported", str(error))
                continue
            if block is None:
                break
            segment, events = block
            for data, offset in zip(events.events(), events.offsets().tolist(), strict=True):
                if expected.get((segment, offset)) != data and (data != b"the last frame" or stream != LAST):
                    verdict.worse("WRONG", f"{stream}, segment {segment}, offset {offset}: {data[:40]!r}")
                if offset <= order.get(segment, -1):
                    verdict.worse("WRONG", f"{stream}, segment {segment}: offset {offset} out of order or again")
                order[segment] = offset
                found.add((segment, offset))
                if expected.get((segment, offset)) == data:
                    key, rank = key_of(data), ranks[segment, offset]
                    if rank < last.get(key, -1):
                        verdict.worse("WRONG", f"{stream}, segment {segment}, offset {offset}: out of its key's order")
                    last[key] = rank
    number_of = {segment: segment & 0xFFFF_FFFF for segment, _ in expected}
    lost = [
        (segment, offset)
        for segment, offset in expected
        if (segment, offset) not in found
        and not any(
            gap == number_of[segment] and start < offset + len(expected[segment, offset]) + 8 and offset < end
            for gap, start, end in gaps
        )
    ]
    if lost and not may_lose:
        verdict.worse("LOST", f"{stream}: {len(lost)} of {len(expected)} events are gone unsaid, first {min(lost)}")
    elif lost:
        verdict.notes.append(f"{stream}: {len(lost)} of {len(expected)} events lost")


def _read_table(manager: StreamManager, ledger: Ledger, verdict: Verdict, may_lose: bool) -> None:
    table = manager.table(SCOPE, TABLE)
    gone = 0
    for key, value in ledger.table.items():
        try:
            found = table.get(key)
        except DamagedDataError as error:
            verdict.worse("reported", str(error))
            continue
        if found is None:
            gone += 1
        elif found.value != value and not may_lose:
            verdict.worse("WRONG", f"table: {key!r} has {found.value[:40]!r}")
    if gone and not may_lose:
        verdict.worse("LOST", f"table: {gone} keys are gone unsaid")
    elif gone:
        verdict.notes.append(f"table: {gone} keys lost")


def _write(manager: StreamManager, verdict: Verdict) -> None:
    with manager.create_writer(SCOPE, STREAM) as writer:
        writer.write_event(b"after the damage", "key").result(READ_S)


def repair(folder: Path) -> tuple[int, str]:
    """Run `nadi check`, then `nadi repair --yes`; return the repair's code and both outputs."""
    said = []
    for command in (["check", str(folder)], ["repair", str(folder), "--yes"]):
        run = subprocess.run(
            [sys.executable, "-m", "nadi.cli.app", *command], capture_output=True, text=True, timeout=120, check=False
        )
        said.append(f"$ nadi {command[0]} -> {run.returncode}\n{run.stdout}{run.stderr}")
    return run.returncode, "\n".join(said)
