"""The benches in their smallest form: each runs its work, verifies it, and reports figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import nadi
from bench import amplification, busy, encryption, long, mixed, settle, steady, transactions
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
    figures_by_name = {figure.name: figure.value for figure in figures}
    assert len(figures_by_name) == len(figures), "names of figures must be unique"
    return figures_by_name


@pytest.mark.slow
def test_mixed_reports_all_and_a_slow_reader(tmp_path: Path) -> None:
    figures_by_name = values(mixed.mixed(tmp_path, mixed.Load(readers=5, processes=2, rate=100, seconds=2, full_s=0.5)))
    assert all(value > 0 for value in figures_by_name.values())
    assert (
        figures_by_name["and a slow reader, acknowledged, p50"]
        <= figures_by_name["and a slow reader, acknowledged, p99"]
    )
    assert "p99 of the fast ones beside a slow one, of that without" in figures_by_name


@pytest.mark.slow
def test_transactions_are_committed_and_found(tmp_path: Path) -> None:
    figures_by_name = values(transactions.transactions(tmp_path, rate=20, seconds=1.0, warm_s=0.2))
    assert 1 < figures_by_name["transactions of 10 events, committed"] <= 21
    assert figures_by_name["from begin to committed, p50"] > 1
    assert figures_by_name["a transaction's CPU, server"] > 0


@pytest.mark.slow
def test_busy_streams_are_compared_with_themselves_alone(tmp_path: Path) -> None:
    figures_by_name = values(busy.busy_streams(tmp_path, 60, busy=20, seconds=1.0, warm_s=0.2))
    assert figures_by_name["p95 among all, of that alone"] > 0
    assert {name for name in figures_by_name if name.endswith("acknowledged, p99")} == {
        "20 busy streams alone, acknowledged, p99",
        "20 busy streams among 60, acknowledged, p99",
    }


@pytest.mark.slow
def test_long_reports_each_minute_and_a_verdict(tmp_path: Path) -> None:
    lines: list[str] = []
    figures_by_name = values(long.long(tmp_path, 2, minute_s=1.0, say=lines.append))
    assert [line.split(":")[0] for line in lines] == ["minute 1", "minute 2", "verdict"]
    assert figures_by_name["files of the log at the end"] > 5
    assert figures_by_name["p99 of the last third of minutes, of the first third's"] > 0


@pytest.mark.slow
def test_encryption_is_compared_with_plain_stores(tmp_path: Path) -> None:
    figures_by_name = values(encryption.encryption(tmp_path, 2_000, rounds=1))
    for what in ("read 1 KB", "write 1 KB"):
        part = figures_by_name[f"{what}, encrypted"] / figures_by_name[f"{what}, plain"]
        assert figures_by_name[f"{what}: encrypted, of plain"] == part


def minute(p99_ms: float, memory_mb: float) -> long.Minute:
    return long.Minute(Waits([p99_ms / 1e3], 5_000.0), memory_mb, 100.0, 0.0)


def test_verdict_names_drifting_values() -> None:
    even = [minute(2.0, 100.0), minute(9.0, 100.0), minute(2.0, 100.0)]
    assert long.verdict(even) == "nothing drifts"
    assert long.verdict([*even[:2], minute(2.0, 160.0)]) == "drifts: memory to 1.6 times of the first third"
    assert long.verdict([*even[:2], minute(4.0, 100.0)]) == "drifts: p99 to 2.0 times of the first third"


@pytest.mark.slow
def test_full_load_is_followed_by_a_steady_rate(tmp_path: Path) -> None:
    figures_by_name = values(settle.settle(tmp_path, steady_s=1.5, load_s=0.5))
    assert all(value > 0 for value in figures_by_name.values())
    after, rest = (figures_by_name[f"{when}, p99"] for when in ("right after it, at 5,000 events/s", REST))
    assert figures_by_name["p99 right after full load, of that at rest"] == pytest.approx(after / rest)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("least", "low", "high"), [(1 << 40, 1.9, 3.0), (65_536, 1.0, 1.7)])
def test_byte_stored_through_the_log_is_written_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: int, low: float, high: float
) -> None:
    """About once if it bypasses the log. least: bytes of a run that bypasses it."""
    monkeypatch.setattr(amplification, "SIZES", (1_000,))
    monkeypatch.setenv("NADI_LIMITS", f"chunk_flush_age_s=0.5,run_least_bytes={least}")
    figures_by_name = values(amplification.amplification(tmp_path, stored_bytes=40_000_000))
    assert low < figures_by_name["1,000-byte events, write_batch: disk bytes a stored byte"] < high
    zeros = figures_by_name["1,000-byte events, write_batch: and zeros in new files of the log"]
    assert 0 < zeros < 4, "a file of 16 to 64 MiB is filled meanwhile"


def test_steadily_counts_late_events_but_not_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steady, "time", OnlySleeps())
    acks: list[Ack] = []

    def write(number: int) -> Ack:
        acks.append(Ack())
        if number >= 100:  # after a second; earlier ones wait for the end
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
    figures_by_name = values(splits(tmp_path, SplitsLoad(events=40_000, turns=1_000)))
    largest = [value for name, value in figures_by_name.items() if name.startswith("largest of ")]
    assert len(largest) == len(COUNTS)
    assert all(1 <= value < 1.1 for value in largest)
    for name in ("raw events", "typed JSON"):
        one, two = (figures_by_name[f"splits of {name}, {count}"] for count in ("one process", "two processes"))
        assert 0.1 < one < 100_000
        assert figures_by_name[f"splits of {name}, two processes over one"] == pytest.approx(two / one)
        assert figures_by_name[f"splits of {name}, the readers' CPU"] > 0.01
    assert figures_by_name["counting, two processes over one"] > 0


@pytest.mark.slow
def test_each_container_is_written_while_it_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "ROUNDS", 1)
    monkeypatch.setattr(moves, "_SETTLED_S", 0.2)
    figures = moves.hand_over(tmp_path, filled=50)
    assert all(0.0 < figure.value < 60.0 for figure in figures)


def check(figures: list[Figure], client_name: str) -> None:
    figures_by_name = values(figures)
    assert len(figures_by_name) == 13
    medians, rates = [], []
    for segments in ("1 segment", "8 segments"):
        name = f"{client_name}0.1 MB/s of 0.2 KB on {segments}"
        p50, p95, p99 = (figures_by_name[f"{name}, acknowledged, {part}"] for part in ("p50", "p95", "p99"))
        assert 0.02 < p50 <= p95 <= p99 < 10_000
        medians.append(p50)
        rates.append(figures_by_name[f"{name}, rate that was kept"])
        assert 1 < figures_by_name[f"{name}, an event's CPU, client"] < 5_000
        assert 1 < figures_by_name[f"{name}, an event's CPU, server"] < 5_000
    assert min(medians) < 300  # the machine may pause during one of them
    assert min(rates) > 50
    assert max(rates) == pytest.approx(500, rel=0.3)
    ratio = figures[-1]
    assert ratio.name == f"{client_name}p95 on 8 segments, of that on one"
    of_one, of_eight = (
        figures_by_name[f"{client_name}0.1 MB/s of 0.2 KB on {name}, acknowledged, p95"]
        for name in ("1 segment", "8 segments")
    )
    assert ratio.value == pytest.approx(of_eight / of_one)
    assert ratio.reached(3.0)
    assert not ratio.reached(3.1)


def test_nadis_client(tmp_path: Path) -> None:
    check(spread(tmp_path, SMALL), "")


@pytest.mark.compatibility
@pytest.mark.timeout(FIRST_JAVA_TIMEOUT_S)
@pytest.mark.slow
@pytest.mark.parametrize(("pooled", "client_name"), [(False, "Java client: "), (True, "Java client, pooled: ")])
def test_the_official_java_client(tmp_path: Path, pooled: bool, client_name: str) -> None:
    try:
        check(spread_java(tmp_path, SMALL, pooled=pooled), client_name)
    except JavaMissingError as error:
        pytest.skip(str(error))


@pytest.mark.compatibility
@pytest.mark.timeout(FIRST_JAVA_TIMEOUT_S)
@pytest.mark.slow
@pytest.mark.parametrize("pooled", [False, True])
def test_java_client_opens_a_connection_per_segment_unless_pooled(tmp_path: Path, pooled: bool) -> None:
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
    """Return the number of open sockets of a process, whose files may change meanwhile."""
    count = 0
    for path in Path(f"/proc/{pid}/fd").iterdir():
        try:
            count += path.readlink().name.startswith("socket:")
        except FileNotFoundError:
            continue
    return count


def test_bench_without_java_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "programs").mkdir()
    report = tmp_path / "figures.json"
    arguments = ["spread-java", "disk", "--runs=1", f"--data={tmp_path}", f"--json={report}"]
    environment = os.environ | {"PATH": str(tmp_path / "programs"), "COLUMNS": "200"}
    command = [sys.executable, "-m", "bench", *arguments]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert "spread-java" in run.stdout
    names = [row["name"] for row in json.loads(report.read_text())]
    assert names == ["fdatasync of 4 KB, p50", "fdatasync of 4 KB, p99", "1 MiB writes with fdatasync"]
