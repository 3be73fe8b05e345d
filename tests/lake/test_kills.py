"""A lake's writer is killed at each step: the table has each event once, each dead letter is stored once, and no file
is orphaned."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time

import pytest

import nadi
from nadi.lake import LakeDefinition, LakeWriter
from nadi.testing import RestartableServer

from .world import Killed, Meters, files_of_snapshots, in_table, places, table_of

STEPS = ("planned", "written", "committed", "letters", "released")


def writer(uri: str, lake: LakeDefinition, step: str = "", number: int = 0) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.lake.writer_main", uri, lake.scope, lake.name, step, str(number)]
    )


@pytest.mark.parametrize("step", STEPS)
def test_writer_failing_at_a_step_is_resumed_exactly(meters: Meters, step: str) -> None:
    def kill(done: str) -> None:
        if done == step:
            raise Killed

    lake = meters.lake()
    for first in range(0, 300, 100):
        meters.write(first, first + 100, wrong=7)
        with pytest.raises(Killed):
            LakeWriter(meters.manager, lake, step=kill).commit()
    meters.catch_up(lake)
    _check(meters, lake)


@pytest.mark.crash
@pytest.mark.parametrize("step", ["written", pytest.param("committed", marks=pytest.mark.slow)])
def test_writer_killed_at_a_step_is_resumed_exactly(nadi_server: RestartableServer, meters: Meters, step: str) -> None:
    lake = meters.lake()
    meters.write(0, 100, wrong=7)
    assert writer(nadi_server.controller_uri, lake, step, 1).wait(120) == -signal.SIGKILL
    meters.write(100, 150, wrong=7)
    meters.catch_up(lake)
    _check(meters, lake)


def _check(meters: Meters, lake: LakeDefinition) -> None:
    meters.check(lake)
    meters.write(1_000, 1_001)
    meters.catch_up(lake)  # a new writer sweeps after its first commit
    assert meters.files() == files_of_snapshots(lake)


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_after_fifty_kills_counts_and_sums_are_the_streams_at_the_cut_of_the_snapshot(
    nadi_server: RestartableServer, meters: Meters
) -> None:
    """Two writers are killed at steps and at random, while the stream is written, split, merged and truncated."""
    lake = meters.lake(commit_bytes=1 << 20)
    chance, stopping, written = random.Random(31), threading.Event(), [0]

    def writing() -> None:
        with nadi.StreamManager(nadi_server.controller_uri) as own:
            while not stopping.is_set():
                Meters(own, meters.scope, meters.folder, None).write(written[0], written[0] + 500, wrong=11)
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
            _note(meters, seen)
            _change(meters, lake, kills, chance)
    finally:
        stopping.set()
        thread.join()
    _note(meters, seen)
    meters.catch_up(lake)
    meters.write(written[0], written[0] + 10)
    _note(meters, seen)
    meters.catch_up(lake)
    found = in_table(lake)
    assert places(found) == sorted(place for place, is_wrong in seen.items() if not is_wrong)
    assert meters.letter_places() == sorted(place for place, is_wrong in seen.items() if is_wrong)
    numbers = [number for number in range(written[0]) if number % 11]
    expected = sorted([*numbers, *range(written[0], written[0] + 10)])
    assert sorted(found["wh"].to_pylist()) == expected
    assert meters.files() == files_of_snapshots(lake)


def _note(meters: Meters, seen: dict[tuple[int, int], bool]) -> None:
    good, wrong = meters.in_stream()
    seen |= dict.fromkeys(good, False) | dict.fromkeys(wrong, True)


def _change(meters: Meters, lake: LakeDefinition, number: int, chance: random.Random) -> None:
    """Split, merge, or truncate before the table's cut."""
    tail = list(meters.tail.positions)
    if number % 7 == 1:
        middle = chance.uniform(0.3, 0.7)
        meters.scale(tail, [(0.0, middle / 2), (middle / 2, middle), (middle, 1.0)])
    elif number % 7 == 4:
        meters.scale(tail, [(0.0, 0.5), (0.5, 1.0)])
    elif number % 7 == 6:
        from nadi.lake.rows import newest_mark
        from nadi.lake.writer import write_dead_letters

        mark = newest_mark(table_of(lake), meters.scope, "meters")
        if mark is not None:
            write_dead_letters(meters.manager, lake, table_of(lake).metadata.table_uuid, mark)
            meters.manager.truncate_stream(mark.end_cut)
