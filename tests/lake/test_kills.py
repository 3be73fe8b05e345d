"""Whatever step a lake's writer is killed at, the table has each event once, each letter is there once, and no file is
left."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import nadi
from nadi.lake import LakeDefinition, LakeWriter
from nadi.testing import RestartableServer

from .world import (
    a_lake,
    catch_up,
    files_in,
    files_of_snapshots,
    in_stream,
    in_table,
    letter_places,
    places,
    streams,
    table_of,
    write,
)

STEPS = ("planned", "written", "committed", "letters", "released")


def writer(uri: str, lake: LakeDefinition, step: str = "", number: int = 0) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.lake.writer_main", uri, lake.scope, lake.name, step, str(number)]
    )


class Killed(BaseException):
    """What no part of a writer expects, as a kill is."""


@pytest.mark.parametrize("step", STEPS)
def test_a_writer_that_ends_at_a_step_leaves_nothing_undone_or_done_twice(
    manager: nadi.StreamManager, scope: str, tmp_path: Path, step: str
) -> None:
    def kill(done: str) -> None:
        if done == step:
            raise Killed

    streams(manager, scope)
    lake = a_lake(manager, scope, tmp_path)
    for first in range(0, 300, 100):
        write(manager, scope, first, first + 100, wrong=7)
        with pytest.raises(Killed):
            LakeWriter(manager, lake, step=kill).commit()
    catch_up(manager, lake)
    _check(manager, scope, lake, tmp_path)


@pytest.mark.crash
@pytest.mark.parametrize("step", ["written", pytest.param("committed", marks=pytest.mark.slow)])
def test_a_writer_killed_at_a_step_leaves_nothing_undone_or_done_twice(
    nadi_server: RestartableServer, manager: nadi.StreamManager, scope: str, tmp_path: Path, step: str
) -> None:
    streams(manager, scope)
    lake = a_lake(manager, scope, tmp_path)
    write(manager, scope, 0, 100, wrong=7)
    assert writer(nadi_server.controller_uri, lake, step, 1).wait(120) == -signal.SIGKILL
    write(manager, scope, 100, 150, wrong=7)
    catch_up(manager, lake)
    _check(manager, scope, lake, tmp_path)


def _check(manager: nadi.StreamManager, scope: str, lake: LakeDefinition, folder: Path) -> None:
    good, wrong = in_stream(manager, scope)
    assert (places(in_table(lake)), letter_places(manager, scope)) == (good, wrong)
    write(manager, scope, 1_000, 1_001)
    catch_up(manager, lake)  # a new writer, which sweeps behind its first commit
    assert files_in(folder) == files_of_snapshots(lake)


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_after_fifty_kills_counts_and_sums_are_the_streams_at_the_cut_of_the_snapshot(
    nadi_server: RestartableServer, manager: nadi.StreamManager, scope: str, tmp_path: Path
) -> None:
    """Killed at steps and at any moment, two at a time, while the stream is written, split, merged and truncated."""
    streams(manager, scope)
    lake = a_lake(manager, scope, tmp_path, commit_bytes=1 << 20)
    chance, stopping, written = random.Random(31), threading.Event(), [0]

    def writing() -> None:
        with nadi.StreamManager(nadi_server.controller_uri) as own:
            while not stopping.is_set():
                write(own, scope, written[0], written[0] + 500, wrong=11)
                written[0] += 500
                time.sleep(0.05)

    thread = threading.Thread(target=writing)
    thread.start()
    seen: dict[tuple[int, int], bool] = {}
    kills = 0
    try:
        while kills < 50:
            step = chance.choice([*STEPS, ""])
            pair = [writer(nadi_server.controller_uri, lake, step, chance.randint(1, 3)) for _ in range(1 + kills % 2)]
            until = time.monotonic() + (chance.uniform(1.5, 4.0) if not step else 20.0)
            while time.monotonic() < until and any(one.poll() is None for one in pair):
                time.sleep(0.02)
            for one in pair:
                one.kill()
                kills += one.wait() == -signal.SIGKILL
            _note(manager, scope, seen)
            _change(manager, scope, lake, kills, chance)
    finally:
        stopping.set()
        thread.join()
    _note(manager, scope, seen)
    catch_up(manager, lake)
    write(manager, scope, written[0], written[0] + 10)
    _note(manager, scope, seen)
    catch_up(manager, lake)
    found = in_table(lake)
    assert places(found) == sorted(place for place, is_wrong in seen.items() if not is_wrong)
    assert letter_places(manager, scope) == sorted(place for place, is_wrong in seen.items() if is_wrong)
    numbers = [number for number in range(written[0]) if number % 11]
    expected = sorted([*numbers, *range(written[0], written[0] + 10)])
    assert sorted(found["wh"].to_pylist()) == expected
    assert files_in(tmp_path) == files_of_snapshots(lake)


def _note(manager: nadi.StreamManager, scope: str, seen: dict[tuple[int, int], bool]) -> None:
    good, wrong = in_stream(manager, scope)
    seen |= dict.fromkeys(good, False) | dict.fromkeys(wrong, True)


def _change(manager: nadi.StreamManager, scope: str, lake: LakeDefinition, number: int, chance: random.Random) -> None:
    """Split, merge, or truncate behind the table."""
    tail = list(manager.stream_info(scope, "meters").tail.positions)
    if number % 7 == 1:
        middle = chance.uniform(0.3, 0.7)
        manager.scale_stream(scope, "meters", tail, [(0.0, middle / 2), (middle / 2, middle), (middle, 1.0)])
    elif number % 7 == 4:
        manager.scale_stream(scope, "meters", tail, [(0.0, 0.5), (0.5, 1.0)])
    elif number % 7 == 6:
        from nadi.lake.marks import newest_mark
        from nadi.lake.writer import write_letters  # what was truncated can't be a letter any more

        mark = newest_mark(table_of(lake), scope, "meters")
        if mark is not None:
            write_letters(manager, lake, table_of(lake).metadata.table_uuid, mark)
            manager.truncate_stream(mark.end_cut)
