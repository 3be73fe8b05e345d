"""The benches of mixed and odd work in their smallest form: each does its work, checks it, and gives its figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from bench import amplification, busy, long, mixed, settle, steady, transactions
from bench.measure import Figure
from bench.steady import Waits, steadily
from nadi.client.aio import Ack
from nadi.errors import UnavailableError
from tests.support.clocks import OnlySleeps


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


def test_lengths_are_of_all_kinds() -> None:
    events = mixed.Events()
    assert min(events.lengths) >= mixed.LEAST_BYTES
    assert max(events.lengths) <= mixed.MOST_BYTES
    assert 500 < sorted(events.lengths)[mixed.LENGTHS // 2] < 2_000
    assert [len(events.make(number)) for number in range(mixed.LENGTHS)] == events.lengths


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


REST = "at rest, acknowledged at 5,000 events/s"


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


def test_a_steady_rate_fails_with_what_the_flush_raises() -> None:
    def flush() -> None:
        raise UnavailableError("the server is away")

    with pytest.raises(UnavailableError):
        steadily(lambda _: Ack(), 100, 0.1, flush)
