"""Automatic scaling in the shell: policies, scaling log, loads and hot keys."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import nadi
from nadi.cli.streams import _first
from nadi.client import ScalingPolicy, StreamManager

from .test_streams import Shell

TARGET = 50
LIMIT_S = 120.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[nadi.standalone.EmbeddedServer]:
    with nadi.embedded(
        tmp_path_factory.mktemp("data"), rest_port=0
    ) as server:  # the default profile splits within seconds
        yield server


@pytest.fixture(scope="module")
def busy(server: nadi.standalone.EmbeddedServer) -> Iterator[Shell]:
    """Two streams that receive 400 events/s each: one with many keys, one with a single key."""
    done = threading.Event()
    with StreamManager(server.controller_uri) as manager:
        manager.create_scope("home")
        for stream in ("spread", "single"):
            manager.create_stream("home", stream, scaling=ScalingPolicy.by_event_rate(TARGET, 4))

        def write() -> None:
            with manager.create_writer("home", "spread") as spread, manager.create_writer("home", "single") as single:
                while not done.is_set():
                    for key in range(20):
                        spread.write_event(b"spread", routing_key=f"{key}")
                        single.write_event(b"single", routing_key="same")
                    time.sleep(0.05)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield Shell(server.controller_uri)
        finally:
            done.set()
            thread.join()


def test_scaling_log_contains_a_split_and_its_reason(busy: Shell) -> None:
    end = time.monotonic() + LIMIT_S
    while not (rows := busy.json("stream", "scaling-log", "home", "spread")) or not rows[0]["is_done"]:
        assert time.monotonic() < end
        time.sleep(0.5)
    split = rows[0]
    assert (split["kind"], split["decision"], split["segments"]) == ("split", "split", ["0.#epoch.0"])
    assert (split["target"], split["unit"], split["profile"], split["is_done"]) == (TARGET, "events/s", "fast", True)
    assert 2 <= len(split["into"]) <= 4
    assert (split["into"][0][0], split["into"][-1][1]) == (0.0, 1.0), "exact values"
    assert all(lower[1] == upper[0] for lower, upper in pairwise(split["into"]))
    output = busy.run("stream", "scaling-log", "home", "spread").output
    assert "0.#epoch.0" in output
    assert "split" in output
    assert re.search(r"\b0-0\.\d", output)
    while not any(row["events_per_s"] for row in busy.json("stream", "segments", "home", "spread")):
        assert time.monotonic() < end, "new segments have a rate half a second after their first events"
        time.sleep(0.1)
    assert len(busy.json("stream", "segments", "home", "spread")) >= 2
    assert busy.json("stream", "scaling-log", "home", "spread", "--last", "1")[0]["number"] >= split["number"]


def test_first_abbreviates_many_segments() -> None:
    assert _first(list("abcdefghi")) == list("abcdefghi")
    assert _first([f"{number}" for number in range(1_208)])[-2:] == ["7", "and 1,200 more"]


def test_stream_show_reports_a_hot_key(busy: Shell) -> None:
    end = time.monotonic() + LIMIT_S
    while not busy.json("stream", "show", "home", "single")[0]["hot_keys"]:
        assert time.monotonic() < end
        time.sleep(0.5)
    output = busy.run("stream", "show", "home", "single").output
    assert "hot key in segment 0.#epoch.0: 100% of its load" in output
    assert "scaling: 50 events/s per segment, at least 1 segment, up to 4 pieces per split" in output
    assert len(busy.json("stream", "segments", "home", "single")) == 1, "splitting wouldn't help"
    (decision,) = busy.json("stream", "scaling-log", "home", "single")
    assert (decision["kind"], decision["into"]) == ("hot-key", [])


def test_stream_create_with_contradictory_policies_fails(busy: Shell) -> None:
    create = ("stream", "create", "home", "odd")
    for options, named in (
        (("--events-per-s", "5", "--kib-per-s", "5"), "--kib-per-s"),
        (("--scale-factor", "4"), "--scale-factor"),
    ):
        refused = busy.run(*create, *options, code=2)
        assert named in refused.output
    assert busy.run(*create, "--events-per-s", "0", code=2).output
    assert busy.run(*create, "--scale-factor", "1", "--events-per-s", "5", code=2).output


def test_embedded_with_an_unknown_scaling_profile_fails(tmp_path: Path) -> None:
    with pytest.raises(nadi.errors.InvalidArgumentError, match="fast, classic"):
        nadi.embedded(tmp_path / "d", scaling="quick")
