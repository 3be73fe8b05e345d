"""What an update of a stream's configuration changes and what it keeps, in both faces."""

from __future__ import annotations

from dataclasses import replace

from nadi.client import RetentionPolicy, ScalingPolicy, StreamManager, aio
from nadi.client.manager.streams import stores_of
from nadi.testing import RestartableServer


def test_what_is_not_named_is_kept_and_retention_can_end(nadi_manager: StreamManager, nadi_scope: str) -> None:
    hour = RetentionPolicy.by_time(3_600_000)
    nadi_manager.create_stream(nadi_scope, "s", 2, retention=hour, tags=["a"], timestamp_aggregation_timeout_ms=5)
    nadi_manager.update_stream(nadi_scope, "s", tags=["b"])
    changed = nadi_manager.stream_configuration(nadi_scope, "s")
    assert changed.retention == hour
    assert (changed.scaling, changed.tags) == (ScalingPolicy.fixed(2), ("b",))
    nadi_manager.update_stream(nadi_scope, "s", retention=None)
    assert nadi_manager.stream_configuration(nadi_scope, "s") == replace(changed, retention=None)
    nadi_manager.update_stream(nadi_scope, "s", retention=hour)
    assert nadi_manager.stream_configuration(nadi_scope, "s") == changed


async def test_what_another_client_set_is_kept(
    nadi_server: RestartableServer, nadi_manager: StreamManager, nadi_scope: str
) -> None:
    nadi_manager.create_stream(nadi_scope, "s", retention=RetentionPolicy.by_size(1_000))

    async with aio.StreamManager(nadi_server.controller_uri) as manager:
        controller = stores_of(manager).controller
        old = await manager.stream_configuration(nadi_scope, "s")
        await controller.update_stream(nadi_scope, "s", replace(old, rollover_size_bytes=1 << 20))
        await manager.update_stream(nadi_scope, "s", retention=None, tags=["a"])
        changed = await manager.stream_configuration(nadi_scope, "s")
        assert changed == replace(old, retention=None, tags=("a",), rollover_size_bytes=1 << 20)
