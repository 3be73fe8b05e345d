"""Long connection timeouts between servers, so that a machine that pauses for a moment breaks no connection."""

from __future__ import annotations

import pytest

from nadi import limits
from nadi.client.control import channel
from nadi.cluster.proxy import request_proxy, segment_router


@pytest.fixture(autouse=True)
def _patient_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (limits, request_proxy, segment_router):
        monkeypatch.setattr(module, "PEER_CONNECT_S", 60.0)
    one_try = {"grpc.min_reconnect_backoff_ms": 60_000}  # time limit of the first attempt
    monkeypatch.setattr(channel, "_OPTIONS", [*(dict(channel._OPTIONS) | one_try).items()])
