"""Storing: messages on their way into the stream, from all peers, one after another.

Messages are taken from a peer's bytes only when the writer has room for them: so what waits while the stream's server
is slow or away are bytes as they came, as many as each peer may have, and what the writer holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from nadi.client.aio import Ack, EventWriter
from nadi.errors import NadiError
from nadi.ingest.syslog.events import Making

Arrived = tuple[bytes, str, datetime]  # a message, the address it is from, and when it came


@dataclass(slots=True)
class Count:
    """Since the start. messages, bytes_: given to the writer; stored: of these messages. lost: datagrams for which
    there was no room here; unreadable: those that can't be syslog. refused: connections beyond the limits; broken:
    those ended for what came. cut: messages."""

    messages: int = 0
    bytes_: int = 0
    stored: int = 0
    lost: int = 0
    unreadable: int = 0
    refused: int = 0
    broken: int = 0
    cut: int = 0


class Storing:
    """error: why nothing is stored any more; `failed` is set then."""

    def __init__(self, writer: EventWriter, making: Making) -> None:
        self.count = Count()
        self.error: NadiError | None = None
        self.failed = asyncio.Event()
        self._writer, self._making = writer, making
        self._turn = asyncio.Lock()

    async def write(self, take: Callable[[], Sequence[Arrived]]) -> Ack | None:
        """Write the messages that `take` returns, once there is room. The Ack of these; None if there were none."""
        async with self._turn:
            if self.error is not None:
                raise self.error
            arrived = take()
            if not arrived:
                return None
            made = [self._making.event(*one) for one in arrived]
            try:
                ack = await self._writer.write_many([event for event, _ in made], [key for _, key in made])
            except NadiError as error:
                self._fail(error)
                raise
        self.count.messages += len(arrived)
        self.count.bytes_ += sum(len(message) for message, _, _ in arrived)
        ack.add_done_callback(lambda done: self._settled(done, len(arrived)))
        return ack

    def _settled(self, ack: Ack, messages: int) -> None:
        try:
            ack.result(0)
        except NadiError as error:
            self._fail(error)
        else:
            self.count.stored += messages

    def _fail(self, error: NadiError) -> None:
        self.error = self.error or error
        self.failed.set()
