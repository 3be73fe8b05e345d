"""A server, a receiver of syslog beside it, and what came of what was sent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import nadi
from nadi.client import aio
from nadi.errors import StreamSealedError
from nadi.ingest.syslog.choices import Form
from nadi.ingest.syslog.events import Making
from nadi.ingest.syslog.receiver import Receiver

MESSAGES = [b"<34>1 2026-10-11T22:14:15.003Z kitchen su - ID47 - number %d" % number for number in range(300)]
LINES = b"".join(one + b"\n" for one in MESSAGES)


def stored(uri: str, stream: str) -> list[bytes]:
    with nadi.StreamManager(uri) as manager:
        tail = manager.stream_info("in", stream).tail
        return [event.data for event in manager.read_events("in", stream, end=tail)]


@asynccontextmanager
async def receiving(uri: str, stream: str, form: Form = Form.RAW) -> AsyncIterator[Receiver]:
    """Closed at the end, and all that it read is stored then."""
    async with aio.StreamManager(uri) as manager:
        writer = await manager.create_writer("in", stream, ack_timeout=300)
        receiver = Receiver(writer, Making(form))
        try:
            yield receiver
        finally:
            await receiver.close()
            with suppress(StreamSealedError):
                await writer.close(60)
