"""EventWriter: what users write events with. `sender` sends them."""

from __future__ import annotations

from nadi.client.control.arguments import checked
from nadi.client.control.closing import Closing
from nadi.client.writing.ack import Ack
from nadi.client.writing.blocks import Events, RoutingKeys
from nadi.client.writing.sender import EventSender


@checked()
class Writing(Closing):
    """What writers of events and of values have in common."""

    def __init__(self, sender: EventSender) -> None:
        self._sender = sender

    async def ready(self) -> None:
        """Wait until there is room for more events."""
        await self._sender.ready()

    def note_time(self, timestamp_ms: int) -> Ack:
        """Declare that all events so far are at or before this timestamp, and that later ones are not before it.

        The Ack, which need not be awaited, completes when the controller has recorded it or a later time.
        """
        return self._sender.note_time(timestamp_ms)

    async def flush(self, timeout: float | None = None) -> None:
        """Return once everything written so far is stored; raise the first failure since the last flush."""
        await self._sender.flush(timeout)

    async def close(self, timeout: float | None = None) -> None:
        """Flush, then close; writes not stored by then fail with ClosedError."""
        await self._sender.close(timeout)


@checked(without=("write", "write_batch", "write_event", "write_many"))
class EventWriter(Writing):
    """Writes events to one stream, in order for each routing key; made by `StreamManager.create_writer`."""

    def __init__(self, sender: EventSender) -> None:
        super().__init__(sender)
        self.name = sender.name
        self.write_event = sender.write_event  # type: ignore[method-assign]  # saves one call per event

    def write_event(self, event: bytes, routing_key: str | None = None) -> Ack:
        """Accept one event and return the Ack, shared by its batch, which completes when it is stored.

        Events of one routing key keep their order. Raises EventTooLargeError, StreamSealedError, ClosedError. While
        too much is pending, the blocking writer waits here for room; asynchronous callers use `write`, or get
        UnavailableError once twice the limit is pending.
        """
        return self._sender.write_event(event, routing_key)

    def write_batch(self, events: Events, routing_keys: RoutingKeys = None) -> Ack:
        """Accept many events, with one key for all or one each; return one Ack for all of them.

        events: bytes, or an Arrow array of binaries without nulls; keys may be an Arrow array of strings, where null
        means no key. Invalid lists and arrays are rejected before any of it is accepted. The blocking writer waits
        for room before each block of about half a megabyte, so any number of events may be passed; the asyncio one
        raises UnavailableError once twice the limit is pending, with the events before accepted: use `write_many`.
        """
        return self._sender.write_batch(events, routing_keys)

    async def write_many(self, events: Events, routing_keys: RoutingKeys = None) -> Ack:
        """Accept any number of events: `write_batch`, with `ready` before each block."""
        return await self._sender.write_many(events, routing_keys)

    async def write(self, event: bytes, routing_key: str | None = None) -> Ack:
        """Wait until there is `ready` room, then `write_event`."""
        await self._sender.ready()
        return self._sender.write_event(event, routing_key)
