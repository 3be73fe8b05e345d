"""Sends a connection's replies and acknowledgements, as far as its peer reads them and memory allows."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from nadi.access.budget import Pool
from nadi.errors import ChunksUnavailableError, NadiError, ProtocolError, StorageFullError, UnavailableError
from nadi.limits import CONNECTION_REPLIES_BYTES, CONNECTION_UNSENT_BYTES, SEND_TIMEOUT_S
from nadi.wire import commands as wire
from nadi.wire.errors import error_reply
from nadi.wire.outgoing import Outgoing
from nadi.wire.send_backlog import SendBacklog

log = logging.getLogger(__name__)

_KEPT = 2  # a reply keeps its source block alive: up to twice its size


class Replies:
    """The sending side of one connection; does nothing before `open` and after `lost`. pool: memory for all
    connections' replies. report: called with the peer and reason when the connection is closed. resume: called when the
    peer accepts more, or memory is available again."""

    def __init__(self, pool: Pool, report: Callable[[object, object], None], resume: Callable[[], None]) -> None:
        self._pool, self._report, self._resume = pool, report, resume
        self.held = pool.account()
        self._transport: asyncio.Transport | None = None
        self._outgoing: Outgoing | None = None
        self._unsent: SendBacklog | None = None
        self._unsent_bytes = 0
        self.writable = asyncio.Event()  # the peer accepts data
        self.writable.set()
        self._is_writable = True  # mirrors `writable`

    def open(self, transport: asyncio.Transport) -> None:
        self._transport, self._outgoing, self._unsent = (
            transport,
            Outgoing(transport, self.flushed),
            SendBacklog(transport),
        )

    def lost(self) -> None:
        self._transport = self._outgoing = self._unsent = None
        self._pool.forget(self._on_capacity)
        self.held.give(_KEPT * self._unsent_bytes)
        self._unsent_bytes = 0
        self._is_writable = True
        self.writable.set()

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    def close(self) -> None:
        """Close the connection once queued data has been sent."""
        if self._transport is not None:
            self.flush()
            self._transport.close()

    def abort(self) -> None:
        """Close the connection now, even with unsent data."""
        if self._transport is not None:
            self._transport.abort()

    def refuse(self, reason: object) -> None:
        """Close the connection because of its peer, and report that."""
        self.report(reason)
        self.close()

    def report(self, reason: object) -> None:
        host, port = ((self._transport and self._transport.get_extra_info("peername")) or ("unknown", 0))[:2]
        self._report(f"{host}:{port}", reason)

    def broken(self, error: Exception) -> None:
        """Close the connection because of received data, or an error while handling it."""
        if isinstance(error, ProtocolError):
            self.refuse(error)
        else:
            log.error("closed a connection after an unexpected error", exc_info=error)
            self.close()

    def send(self, command: wire.Command) -> None:
        if self._outgoing is not None:
            self._outgoing.send(command)

    def send_all(self, commands: list[wire.DataAppended], *, now: bool) -> None:
        """Send acknowledgements, at once or at the end of this turn of the loop."""
        if commands and self._outgoing is not None:
            self._outgoing.send_all(commands)
            if now:
                try:
                    self.flush()
                except Exception:  # the connection is closed; the calling container isn't at fault
                    log.exception("replies could not be sent")

    def flush(self) -> None:
        if self._outgoing is not None:
            self._outgoing.flush()

    def fail(self, error: Exception, request_id: int, segment: str, offset: int = -1) -> None:
        """Send the error to the peer; an error that the protocol can't express closes the connection."""
        try:
            self.send(error_reply(error, request_id, segment, offset))
        except UnavailableError:
            self.close()
        except NadiError as unexpected:
            self.refuse(unexpected)
        if isinstance(error, (StorageFullError, ChunksUnavailableError)):
            self.close()

    @property
    def capacity_bytes(self) -> int:
        """The largest reply allowed now; 0: none, and `resume` is called when that changes."""
        if not self._is_writable:
            return 0
        pool = self._pool
        share, used = pool.share_bytes, self.held.buffered_bytes
        capacity = ((share if share < CONNECTION_REPLIES_BYTES else CONNECTION_REPLIES_BYTES) - used) // _KEPT
        if self._outgoing is not None:
            capacity -= self._outgoing.queued_bytes
        if capacity > 0:
            return capacity
        pool.wait(self._on_capacity)
        return 0

    @property
    def is_full(self) -> bool:
        """Whether too much data is unsent to accept more requests."""
        return self._unsent_bytes > CONNECTION_UNSENT_BYTES

    def pause(self) -> None:
        self._is_writable = False
        self.writable.clear()

    def resume(self) -> None:
        self.flushed(0)
        self._is_writable = True
        self.writable.set()

    async def may_reply(self) -> None:
        await self.writable.wait()
        while not self.held.capacity_bytes:
            await self.held.wait_for_capacity()
            await self.writable.wait()

    def flushed(self, size_bytes: int) -> None:
        """Account for bytes handed to the transport, and for those it has sent."""
        if self._unsent is not None:
            unsent, before = self._unsent.flushed(size_bytes), self._unsent_bytes
            if unsent != before:
                self._unsent_bytes = unsent
                self.held.take(_KEPT * (unsent - before))

    def _on_capacity(self) -> None:
        self.flushed(0)
        self._resume()

    def stalled(self, now_s: float) -> str:
        """Return the reason to close the connection for data its peer didn't receive, or ""."""
        if self._unsent is None:
            return ""
        if self._unsent.stalled_s(now_s) > SEND_TIMEOUT_S:
            return f"it received none of {self._unsent.size_bytes:,} bytes for {SEND_TIMEOUT_S:.0f} s"
        if self._unsent_bytes:
            self.flushed(0)
        return ""
