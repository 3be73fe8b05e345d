"""The same load from nadi's client and from the official one, in small; what can't be had is left out with a word."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import msgspec
import pytest

import nadi
from bench.java.client import JavaMissingError, command
from bench.java.spread import PROGRAM, spread_java, warmed
from bench.measure import Figure, open_stream
from bench.part import ROOT, Part, PartFailedError
from bench.spread import Load, Written, spread
from tests.compatibility.java_run import FIRST_JAVA_TIMEOUT_S

SEGMENTS = 40  # four times the connections of a pool
SMALL = Load(segments=(1, 8), rate=500, size=200, seconds=3, warm_s=1)


def check(figures: list[Figure], who: str) -> None:
    found = {figure.name: figure.value for figure in figures}
    assert len(found) == len(figures) == 13, "names tell figures apart, in --json too"
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


def test_what_the_java_program_says_is_parsed_strictly() -> None:
    decode = partial(msgspec.json.decode, type=Written)
    said = {"p50_ms": 1.5, "p95_ms": 2.5, "p99_ms": 3.5, "rate": 500.0, "cpu_us": 20.0}
    assert decode(json.dumps(said)) == Written(1.5, 2.5, 3.5, 500.0, 20.0)
    for wrong in (said | {"p50_ms": "1.5"}, said | {"p90_ms": 2.0}, {"rate": 500.0}):
        with pytest.raises(msgspec.ValidationError):
            decode(json.dumps(wrong))
    with pytest.raises(msgspec.DecodeError):
        decode(json.dumps(said) * 2)


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


SAYS = "import sys, time; print('ready', flush=True); time.sleep(60 * (not sys.stdin.readline())); print('an answer')"


def test_a_process_answers_once_it_is_told(tmp_path: Path) -> None:
    with Part("one", [sys.executable, "-c", SAYS], tmp_path) as part:
        part.await_ready()
        with pytest.raises(PartFailedError, match="has not answered"):
            part.await_answer(0.2)
    with Part("one", [sys.executable, "-c", SAYS], tmp_path) as part:
        part.await_ready()
        part.tell()
        assert part.await_answer(60) == "an answer\n"


def test_a_process_that_fails_has_no_answer(tmp_path: Path) -> None:
    with Part("one", [sys.executable, "-c", f"{SAYS}; sys.exit('no more')"], tmp_path) as part:
        part.await_ready()
        part.tell()
        with pytest.raises(PartFailedError, match="no more"):
            part.await_answer(60)
