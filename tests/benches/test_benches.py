"""The benches in their smallest form: each does its work, checks it, and gives its figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import nadi
from bench import amplification, busy, long, mixed, settle, steady, transactions
from bench.cluster import moves
from bench.java.client import JavaMissingError, command
from bench.java.spread import PROGRAM, spread_java, warmed
from bench.measure import Figure, open_stream
from bench.part import ROOT
from bench.splits import COUNTS, splits
from bench.splits import Load as SplitsLoad
from bench.spread import Load, spread
from bench.steady import Waits, steadily
from nadi.client.aio import Ack
from tests.compatibility.java_run import FIRST_JAVA_TIMEOUT_S
from tests.support.clocks import OnlySleeps

SEGMENTS = 40  # four times the connections of a pool
SMALL = Load(segments=(1, 8), rate=500, size=200, seconds=3, warm_s=1)
REST = "at rest, acknowledged at 5,000 events/s"


def values(figures: Sequence[Figure]) -> dict[str, float]:
    found = {figure.name: figure.value for figure in figures}
    assert len(found) == len(figures), "names tell figures apart, in --json too"
    return found


@pytest.mark.slow
def test_mixed_lengths_are_read_by_all_and_a_slow_one(tmp_path: Path) -> None:
    found = values(mixed.mixed(tmp_path, mixed.Load(readers=5, processes=2, rate=100, seconds=2, full_s=0.5)))
    assert all(value > 0 for value in found.values())
    assert found["and a slow reader, acknowledged, p50"] <= found["and a slow reader, acknowledged, p99"]
    assert "p99 of the fast ones beside a slow one, of that without" in found


@pytest.mark.slow
def test_transactions_are_committed_and_found(tmp_path: Path) -> None:
    found = values(transactions.transactions(tmp_path, rate=20, seconds=1.0, warm_s=0.2))
    assert 1 < found["transactions of 10 events, committed"] <= 21
    assert found["from begin to committed, p50"] > 1
    assert found["a transaction's CPU, server"] > 0


@pytest.mark.slow
def test_busy_streams_are_compared_with_themselves_alone(tmp_path: Path) -> None:
    found = values(busy.busy_streams(tmp_path, 60, busy=20, seconds=1.0, warm_s=0.2))
    assert found["p95 among all, of that alone"] > 0
    assert {name for name in found if name.endswith("acknowledged, p99")} == {
        "20 busy streams alone, acknowledged, p99",
        "20 busy streams among 60, acknowledged, p99",
    }


@pytest.mark.slow
def test_a_long_run_tells_each_minute_and_a_verdict(tmp_path: Path) -> None:
    said: list[str] = []
    found = values(long.long(tmp_path, 2, minute_s=1.0, say=said.append))
    assert [line.split(":")[0] for line in said] == ["minute 1", "minute 2", "verdict"]
    assert found["files of the log at the end"] > 5
    assert found["p99 of the last third of minutes, of the first third's"] > 0


def minute(p99_ms: float, memory_mb: float) -> long.Minute:
    return long.Minute(Waits([p99_ms / 1e3], 5_000.0), memory_mb, 100.0, 0.0)


def test_what_drifts_is_told() -> None:
    even = [minute(2.0, 100.0), minute(9.0, 100.0), minute(2.0, 100.0)]
    assert long.verdict(even) == "nothing drifts"
    assert long.verdict([*even[:2], minute(2.0, 160.0)]) == "drifts: memory to 1.6 times of the first third"
    assert long.verdict([*even[:2], minute(4.0, 100.0)]) == "drifts: p99 to 2.0 times of the first third"


@pytest.mark.slow
def test_full_load_is_followed_by_a_steady_rate(tmp_path: Path) -> None:
    found = values(settle.settle(tmp_path, steady_s=1.5, load_s=0.5))
    assert all(value > 0 for value in found.values())
    after, rest = (found[f"{when}, p99"] for when in ("right after it, at 5,000 events/s", REST))
    assert found["p99 right after full load, of that at rest"] == pytest.approx(after / rest)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("least", "low", "high"), [(1 << 40, 1.9, 3.0), (65_536, 1.0, 1.7)])
def test_a_stored_byte_is_written_twice_if_it_goes_through_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: int, low: float, high: float
) -> None:
    """And about once if it goes beside it. least: bytes of a run that does."""
    monkeypatch.setattr(amplification, "SIZES", (1_000,))
    monkeypatch.setenv("NADI_LIMITS", f"chunk_flush_age_s=0.5,run_least_bytes={least}")
    found = values(amplification.amplification(tmp_path, stored_bytes=40_000_000))
    assert low < found["1,000-byte events, write_batch: disk bytes a stored byte"] < high
    zeros = found["1,000-byte events, write_batch: and zeros in new files of the log"]
    assert 0 < zeros < 4, "a file of 16 MiB at least is filled meanwhile, and none of more than 64"


def test_a_steady_rate_counts_late_ones_and_not_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steady, "time", OnlySleeps())
    acks: list[Ack] = []

    def write(number: int) -> Ack:
        acks.append(Ack())
        if number >= 100:  # at a second; the others wait for the end
            acks[-1].settle(None)
        return acks[-1]

    def flush() -> None:
        for ack in acks[:100]:
            ack.settle(None)

    waits = steadily(write, 100, 1.5, flush, warm_s=0.5)
    assert len(waits.seconds) == 100
    assert 450 < waits.ms(100) < 1_500
    assert waits.ms(10) < 50
    assert waits.rate == pytest.approx(100, rel=0.2)


@pytest.mark.slow  # nine processes start
def test_splits_are_measured(tmp_path: Path) -> None:
    found = values(splits(tmp_path, SplitsLoad(events=40_000, turns=1_000)))
    largest = [value for name, value in found.items() if name.startswith("largest of ")]
    assert len(largest) == len(COUNTS)
    assert all(1 <= value < 1.1 for value in largest)
    for name in ("raw events", "typed JSON"):
        one, two = (found[f"splits of {name}, {count}"] for count in ("one process", "two processes"))
        assert 0.1 < one < 100_000
        assert found[f"splits of {name}, two processes over one"] == pytest.approx(two / one)
        assert found[f"splits of {name}, the readers' CPU"] > 0.01
    assert found["counting, two processes over one"] > 0


@pytest.mark.slow
def test_each_container_is_written_while_it_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "ROUNDS", 1)
    monkeypatch.setattr(moves, "_SETTLED_S", 0.2)
    figures = moves.hand_over(tmp_path, filled=50)
    assert all(0.0 < figure.value < 60.0 for figure in figures)


def check(figures: list[Figure], who: str) -> None:
    found = values(figures)
    assert len(found) == 13
    medians, rates = [], []
    for segments in ("1 segment", "8 segments"):
        name = f"{who}0.1 MB/s of 0.2 KB on {segments}"
        p50, p95, p99 = (found[f"{name}, acknowledged, {part}"] for part in ("p50", "p95", "p99"))
        assert 0.02 < p50 <= p95 <= p99 < 10_000
        medians.append(p50)
        rates.append(found[f"{name}, rate that was kept"])
        assert 1 < found[f"{name}, an event's CPU, client"] < 5_000
        assert 1 < found[f"{name}, an event's CPU, server"] < 5_000
    assert min(medians) < 300  # the machine may stand still, for one of them
    assert min(rates) > 50
    assert max(rates) == pytest.approx(500, rel=0.3)
    ratio = figures[-1]
    assert ratio.name == f"{who}p95 on 8 segments, of that on one"
    of_one, of_eight = (
        found[f"{who}0.1 MB/s of 0.2 KB on {name}, acknowledged, p95"] for name in ("1 segment", "8 segments")
    )
    assert ratio.value == pytest.approx(of_eight / of_one)
    assert ratio.reached(3.0)
    assert not ratio.reached(3.1)


def test_nadis_client(tmp_path: Path) -> None:
    check(spread(tmp_path, SMALL), "")


@pytest.mark.compatibility
@pytest.mark.timeout(FIRST_JAVA_TIMEOUT_S)
@pytest.mark.slow
@pytest.mark.parametrize(("pooled", "who"), [(False, "Java client: "), (True, "Java client, pooled: ")])
def test_the_official_java_client(tmp_path: Path, pooled: bool, who: str) -> None:
    try:
        check(spread_java(tmp_path, SMALL, pooled=pooled), who)
    except JavaMissingError as error:
        pytest.skip(str(error))


@pytest.mark.compatibility
@pytest.mark.timeout(FIRST_JAVA_TIMEOUT_S)
@pytest.mark.slow
@pytest.mark.parametrize("pooled", [False, True])
def test_the_java_client_has_a_connection_for_each_segment_unless_they_are_pooled(tmp_path: Path, pooled: bool) -> None:
    try:
        java = command(PROGRAM, tmp_path)
    except JavaMissingError as error:
        pytest.skip(str(error))
    with nadi.embedded(tmp_path / "server") as server:
        before = sockets(server.pid)
        with nadi.StreamManager(server.controller_uri) as manager:
            open_stream(manager, SEGMENTS)
        with warmed(java, tmp_path, pooled, server.controller_uri, SMALL):
            opened = sockets(server.pid) - before
    assert opened <= SEGMENTS / 2 if pooled else opened >= SEGMENTS


def sockets(pid: int) -> int:
    """Open in a process; its files come and go meanwhile."""
    found = 0
    for path in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found += path.readlink().name.startswith("socket:")
        except FileNotFoundError:
            continue
    return found


def test_without_java_a_bench_is_left_out_and_the_others_go_on(tmp_path: Path) -> None:
    (tmp_path / "programs").mkdir()
    report = tmp_path / "figures.json"
    arguments = ["spread-java", "disk", "--runs=1", f"--data={tmp_path}", f"--json={report}"]
    environment = os.environ | {"PATH": str(tmp_path / "programs"), "COLUMNS": "200"}
    command = [sys.executable, "-m", "bench", *arguments]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert "spread-java is left out: the official Java client needs a JDK and Maven (`mvn`)" in run.stdout
    names = [row["name"] for row in json.loads(report.read_text())]
    assert names == ["fdatasync of 4 KB, p50", "fdatasync of 4 KB, p99", "1 MiB writes with fdatasync"]
