"""Server processes with their chunks in a fake S3: killed at each step of an upload, and without the store until the
log is full."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

import nadi
from nadi.standalone.embedded import EmbeddedServer, embedded
from nadi.testing import fill_stream, read_stream
from tests.segmentstore.tier2.elsewhere import URL, chunks
from tests.support.fake_s3.requests import Answer, Request
from tests.support.fake_s3.server import FakeS3
from tests.support.ports import free_port

LIMITS = (
    "chunk_flush_age_s=0.2,chunk_flush_bytes=65536,checkpoint_interval_s=0.1,storage_writer_tick_s=0.05,"
    "chunk_garbage_delay_s=0.3,log_file_bytes=262144,run_least_bytes=8192,run_file_bytes=65536,run_idle_s=0.05,"
    "snapshot_interval_s=0.2,cache_max_bytes=1048576"
)
EVENTS = [bytes([number]) * 3_000 for number in range(60)] + [bytes([number]) * 20_000 for number in range(10)]


def serve(folder: Path, fake: FakeS3, port: int = 0, log_max_bytes: int | None = None) -> EmbeddedServer:
    return embedded(
        folder,
        port=port,
        tier2=URL,
        tier2_options=fake.config(),
        log_max_bytes=log_max_bytes,
        environment={"NADI_LIMITS": LIMITS},
    )


class KillingS3(FakeS3):
    """Kills the server that puts an object with `part` in its name, before or after it is stored, once."""

    def __init__(self, part: str, *, is_stored: bool) -> None:
        super().__init__()
        self.part, self.is_stored = part, is_stored
        self.pid = 0
        self.has_killed, self._has_stored = asyncio.Event(), asyncio.Event()

    async def _put(self, request: Request) -> Answer:
        if not self.pid or self.part not in request.key or "proof" in request.key:
            answer = await super()._put(request)
            self._has_stored.set()
            return answer
        pid, self.pid = self.pid, 0
        if self.is_stored:
            await super()._put(request)
        os.kill(pid, signal.SIGKILL)
        self.has_killed.set()
        raise ConnectionError("the server is gone")

    async def has_chunks(self, size_bytes: int) -> None:
        """Wait until the fake S3 has chunks of that total size."""
        while sum(len(found.body) for found in chunks(self).values()) < size_bytes:
            self._has_stored.clear()
            await self._has_stored.wait()


@pytest.mark.parametrize(
    ("part", "is_stored"),
    [
        ("chunks/container-0", False),
        pytest.param("chunks/container-0", True, marks=pytest.mark.slow),
        pytest.param("snapshots", True, marks=pytest.mark.slow),
        pytest.param("snapshots", False, marks=pytest.mark.slow),
    ],
)
async def test_server_killed_during_a_put_loses_nothing(tmp_path: Path, part: str, is_stored: bool) -> None:
    port = free_port()
    async with KillingS3(part, is_stored=is_stored) as fake:
        server = await asyncio.to_thread(serve, tmp_path, fake, port)
        try:
            with nadi.StreamManager(server.controller_uri) as manager:
                await asyncio.to_thread(manager.create_scope, "s")
                fake.pid = server.pid
                writing = asyncio.create_task(asyncio.to_thread(fill_stream, manager, "s", "t", EVENTS))
                async with asyncio.timeout(60):
                    await fake.has_killed.wait()
                server.kill()
                server = await asyncio.to_thread(serve, tmp_path, fake, port)
                await writing
                assert await asyncio.to_thread(read_stream, manager, "s", "t") == EVENTS
                async with asyncio.timeout(60):
                    await fake.has_chunks(300_000)
                server.kill()
                server = await asyncio.to_thread(serve, tmp_path, fake, port)
                assert await asyncio.to_thread(read_stream, manager, "s", "t") == EVENTS
        finally:
            server.kill()


async def test_writers_wait_for_an_unavailable_store(tmp_path: Path) -> None:
    """No event is lost or duplicated, and earlier events are readable once the store is back."""
    async with FakeS3() as fake:
        server = await asyncio.to_thread(serve, tmp_path, fake, 0, 900_000)
        try:
            events = [bytes([number % 250]) * 8_000 for number in range(1_200)]

            with nadi.StreamManager(server.controller_uri) as manager:
                await asyncio.to_thread(manager.create_scope, "s")
                fake.faults.update(slow_down=1.0)
                writing = asyncio.create_task(asyncio.to_thread(fill_stream, manager, "s", "t", events))
                await asyncio.sleep(3)
                assert not writing.done()
                fake.faults.update(slow_down=0.0)
                async with asyncio.timeout(60):
                    await writing
                assert await asyncio.to_thread(read_stream, manager, "s", "t") == events
        finally:
            server.kill()
