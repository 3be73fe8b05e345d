"""A server with authentication and a bit of every kind of activity."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest

import nadi
from nadi.client import StreamManager
from nadi.standalone.embedded import EmbeddedServer
from tests.access.support import PASSWORD, user, users_file
from tests.metrics.support import Auth
from tests.support.waiting import until

ADMIN: Auth = ("root", PASSWORD)
AT_ONCE = ("snapshot_interval", "chunk_flush_age", "chunk_garbage_delay", "retention_period")
PATIENT = ("metrics_names", "metrics_lags", "metrics_cache")  # so that a slow machine omits nothing
LIMITS = ",".join(
    [*(f"{name}_s=0.2" for name in AT_ONCE), *(f"{name}_s=60" for name in PATIENT), "metrics_cached_s=0.05"]
)


@pytest.fixture(scope="package")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A server that was written to, read, scaled, truncated and scrubbed, and has refused a login."""
    folder = tmp_path_factory.mktemp("busy")
    security = nadi.ServerSecurity(users_file=str(users_file(folder / "settings")))
    with (
        nadi.embedded(
            folder / "data", rest_port=0, containers=2, security=security, environment={"NADI_LIMITS": LIMITS}
        ) as server,
        httpx.Client(base_url=server.rest_uri, auth=ADMIN, timeout=60) as rest,
        StreamManager(server.controller_uri, credentials=user("root")) as manager,
    ):
        work(manager, rest)
        assert httpx.get(f"{server.rest_uri}/metrics", auth=("root", "wrong"), timeout=60).status_code == 401
        manager.scrub(start=True)
        until(lambda: "nadi_store_scrub_damages 0.0" in rest.get("/metrics").text)
        until(lambda: not re.search("nadi_store_(checkpoint|snapshot)_seconds_count 0.0", rest.get("/metrics").text))
        until(lambda: 'nadi_stream_bytes_per_second{scope="home",stream="meters"}' in rest.get("/metrics").text)
        until(lambda: "nadi_reader_group_lag_events{" in rest.get("/metrics").text)
        yield server


def work(manager: StreamManager, rest: httpx.Client) -> None:
    manager.create_scope("home")
    manager.create_stream("home", "meters", 2)
    retention = {"type": "LIMITED_SIZE_MB", "value": 1}
    scaling = {"type": "FIXED_NUM_SEGMENTS", "minSegments": 1}
    kept = {"streamName": "kept", "scalingPolicy": scaling, "retentionPolicy": retention}
    rest.post("/v1/scopes/home/streams", json=kept).raise_for_status()
    groups = manager.reader_group_manager("home")
    groups.create_reader_group("readers", "meters")
    with manager.create_writer("home", "meters") as writer:
        for number in range(200):
            writer.write_event(b"." * 100, routing_key=f"{number}")
    with manager.create_writer("home", "kept") as writer:
        for _ in range(300):
            writer.write_event(bytes(10_000), routing_key="one")
    until(lambda: "nadi_retention_truncations_total 0.0" not in rest.get("/metrics").text)
