"""Consumer lag of reader groups in the shell, over REST and from Python."""

from __future__ import annotations

import time
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path

import httpx
import pytest

import nadi
from nadi.client import StreamManager, aio
from nadi.config import ServerConfig
from nadi.controller.external_scaler import unread
from nadi.controller.state.metadata import GroupName, StreamName
from nadi.errors import ConflictError, ReaderGroupNotFoundError
from nadi.standalone.embedded import EmbeddedServer
from nadi.standalone.server import Server

from .test_streams import Shell

EVENT, HEADER = b"." * 92, 8


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with nadi.embedded(tmp_path_factory.mktemp("data"), rest_port=0) as server:
        yield server


@pytest.fixture(scope="module")
def manager(server: EmbeddedServer) -> Iterator[StreamManager]:
    """A stream that was split after 100 of its 400 events, and a group that has read 10."""
    with StreamManager(server.controller_uri) as manager:
        manager.create_scope("home")
        manager.create_stream("home", "meters", 1)
        manager.create_stream("home", "idle", 2)
        groups = manager.reader_group_manager("home")
        groups.create_reader_group("billing", ["meters", "idle"])
        groups.create_reader_group("news", "meters", starts=[manager.stream_info("home", "meters").tail])
        with manager.create_writer("home", "meters") as writer:
            writer.write_batch([EVENT] * 100, "key")
            writer.flush()
            (only,) = manager.current_segments("home", "meters")
            manager.scale_stream("home", "meters", [only.segment_id], [(0.0, 0.5), (0.5, 1.0)])
            for number in range(300):
                writer.write_event(EVENT, routing_key=f"{number}")
        with groups.get_reader_group("billing").create_reader("r") as reader:
            seen = 0
            while seen < 10:
                seen += reader.read_next_event(10) is not None
        yield manager


@pytest.fixture(scope="module")
def shell(server: EmbeddedServer, manager: StreamManager) -> Shell:
    return Shell(server.controller_uri)


def test_group_lag_includes_events_after_a_split(shell: Shell, manager: StreamManager) -> None:
    group = manager.reader_group_manager("home").get_reader_group("billing")
    idle, meters = sorted(shell.json("group", "show", "home", "billing"), key=lambda row: str(row["stream"]))
    assert (meters["stream"], idle["stream"]) == ("home/meters", "home/idle")
    assert meters["bytes"] == group.unread_bytes() == 390 * (len(EVENT) + HEADER)
    assert meters["readers"] == 0
    assert meters["segments"] == meters["unassigned"] == 1
    assert (idle["bytes"], idle["events"], idle["seconds"], idle["segments"]) == (0, 0, 0, 2)
    assert meters["source"] == "readers"
    assert meters["why"] == ""


def test_group_lag_estimates_events_from_mean_size(shell: Shell) -> None:
    end = time.monotonic() + 60
    while (meters := max(shell.json("group", "show", "home", "billing"), key=itemgetter("bytes")))["events"] is None:
        assert time.monotonic() < end, "rates of a segment are known after half a second"
        time.sleep(0.1)
    assert meters["events"] == pytest.approx(390, rel=0.05)


def test_group_list_sums_up_all_streams(shell: Shell) -> None:
    billing, news = shell.json("group", "list", "home")
    assert (billing["group"], news["group"]) == ("billing", "news")
    assert billing["bytes"] == 390 * 100
    assert news["bytes"] == 400 * 100
    output = shell.run("group", "list", "home").output
    assert "39,000" in output
    assert "~" in output
    assert "home/idle" in shell.run("group", "show", "home", "billing").output
    assert shell.json("group", "list", "_system") == []


def test_group_lag_of_a_missing_group_fails(shell: Shell, manager: StreamManager) -> None:
    assert "billings" in shell.run("group", "show", "home", "billings", code=1).output
    with pytest.raises(ReaderGroupNotFoundError):
        manager.reader_group_manager("home").lag("billings")


def test_lags_of_a_stream_include_all_its_groups(server: EmbeddedServer, manager: StreamManager) -> None:
    lags = manager.reader_lags("home", "meters")
    assert [(lag.group, lag.lag_bytes) for lag in lags] == [("news", 40_000), ("billing", 39_000)]
    assert [lag.group for lag in manager.reader_lags("home", "idle")] == ["billing"]
    with httpx.Client(base_url=f"{server.rest_uri}/v1/scopes/home", timeout=60) as rest:
        shown = rest.get("/streams/meters/lag").json()
        assert [lag["group"] for lag in shown["groups"]] == ["news", "billing"]
        assert [(piece["low"], piece["high"]) for piece in shown["segments"]] == [(0.0, 0.5), (0.5, 1.0)]
        assert [piece["end_offset"] for piece in shown["replaced"]] == [100 * 100]
        assert rest.get("/streams/none/lag").status_code == 404
        behind = {row["stream"]: row["lag_bytes"] for row in rest.get("/readergroups/billing/lag").json()}
        assert behind == {"home/meters": 39_000, "home/idle": 0}
        assert rest.get("/readergroups/none/lag").status_code == 404


async def test_autoscaler_reads_recorded_positions_of_a_group(tmp_path: Path) -> None:
    """Even if the group doesn't delay retention."""
    async with (
        Server(ServerConfig(data=tmp_path, store_port=0, port=0)) as server,
        aio.StreamManager(server.controller_uri) as manager,
    ):
        for stream in ("meters", "others"):
            await manager.create_scope("home")
            await manager.create_stream("home", stream, 1)
        groups = manager.reader_group_manager("home")
        await groups.create_reader_group("billing", "meters")
        writer = await manager.create_writer("home", "meters")
        writer.write_batch([EVENT] * 10, "key")
        await writer.close()
        flow, name = server.controller._flow, GroupName("home", "billing")
        assert await unread(flow, name, StreamName("home", "meters")) == 1000
        async with await (await groups.get_reader_group("billing")).create_reader("r") as reader:
            for _ in range(4):
                assert await reader.read_next_event(60) is not None
        assert 600 <= await unread(flow, name, StreamName("home", "meters")) <= 700
        with pytest.raises(ConflictError, match="home/others"):
            await unread(flow, name, StreamName("home", "others"))
