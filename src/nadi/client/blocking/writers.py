"""The blocking faces of writers and transactions.

`write_event` and `write_batch` add to a batch in the caller's thread; all else is the loop thread's work.
"""

from __future__ import annotations

from types import TracebackType
from uuid import UUID

from nadi.client import aio
from nadi.client.blocking.loop_thread import LoopThread
from nadi.client.writing.batch import Ack
from nadi.client.writing.blocks import Events, RoutingKeys


class EventWriter:
    """See nadi.client.aio.EventWriter; `write_event` waits while too much is pending."""

    def __init__(self, thread: LoopThread, core: aio.EventWriter) -> None:
        self._thread, self._core = thread, core
        self.write_event = core.write_event  # type: ignore[method-assign]  # one call less for each event

    def write_event(self, event: bytes, routing_key: str | None = None) -> Ack:
        """Take one event; `.result(timeout)` of the Ack waits until it is stored."""
        return self._core.write_event(event, routing_key)

    def write_batch(self, events: Events, routing_keys: RoutingKeys = None) -> Ack:
        """Take many events, with one key for all or one each; the Ack is for all of them.

        events: bytes, or an Arrow array of binaries without nulls; keys may be an Arrow array of strings.
        Waits for room before each block of about a megabyte, so any number of events may be given.
        """
        return self._core.write_batch(events, routing_keys)

    def note_time(self, timestamp_ms: int) -> Ack:
        """Say that what was written so far has times up to this one, and what comes later none before it.

        The Ack, which need not be waited for, tells when it or a later time is known to the controller.
        """
        return self._core.note_time(timestamp_ms)

    def flush(self, timeout: float | None = None) -> None:
        """Return once everything written so far is stored; raise the first failure since the last flush."""
        self._thread.run(self._core.flush(timeout))

    def close(self, timeout: float | None = None) -> None:
        """Flush, then end."""
        self._thread.run(self._core.close(timeout))

    def __enter__(self) -> EventWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Transaction:
    """See nadi.client.aio.Transaction."""

    def __init__(self, thread: LoopThread, core: aio.Transaction) -> None:
        self._thread, self._core = thread, core

    @property
    def txn_id(self) -> UUID:
        """By which `get_txn` finds it, here or elsewhere."""
        return self._core.txn_id

    def write_event(self, event: bytes, routing_key: str | None = None) -> Ack:
        """As EventWriter.write_event; the event is seen by readers once the transaction is committed."""
        return self._core.write_event(event, routing_key)

    def write_batch(self, events: Events, routing_keys: RoutingKeys = None) -> Ack:
        """As EventWriter.write_batch."""
        return self._core.write_batch(events, routing_keys)

    def flush(self, timeout: float | None = None) -> None:
        """Return once everything written so far is stored (and not yet part of the stream)."""
        self._thread.run(self._core.flush(timeout))

    def commit(self, *, wait: bool = False, timeout: float | None = 120.0, timestamp_ms: int | None = None) -> None:
        """Make the events part of the stream; with `wait`, return once readers can see them.

        timestamp_ms: the time that the transaction's writer notes with it. TransactionFailedError if it was aborted or
        has timed out; RequestTimeoutError after `timeout` seconds: commit it again, or ask for its `status`.
        """
        self._thread.run(self._core.commit(wait=wait, timeout=timeout, timestamp_ms=timestamp_ms))

    def abort(self, *, wait: bool = False, timeout: float | None = 120.0) -> None:
        """Forget the events; TransactionFailedError if it was committed."""
        self._thread.run(self._core.abort(wait=wait, timeout=timeout))

    def ping(self, lease_ms: int | None = None) -> None:
        """Extend the lease now; that is done in the background too, three times a lease."""
        self._thread.run(self._core.ping(lease_ms))

    def status(self) -> str:
        """OPEN, COMMITTING, COMMITTED, ABORTING or ABORTED."""
        return self._thread.run(self._core.status())

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.run(self._core.__aexit__(kind, error, trace))


class TransactionalEventWriter:
    """See nadi.client.aio.TransactionalEventWriter."""

    def __init__(self, thread: LoopThread, core: aio.TransactionalEventWriter) -> None:
        self._thread, self._core = thread, core

    def begin_txn(self, lease_ms: int | None = None) -> Transaction:
        """A new transaction, which times out if the controller hears nothing of it for the lease."""
        return Transaction(self._thread, self._thread.run(self._core.begin_txn(lease_ms)))

    def get_txn(self, txn_id: UUID | str) -> Transaction:
        """A transaction begun elsewhere or earlier, by its id or its text. TransactionNotFoundError if there is none.

        One that was committed meanwhile can be committed again, without harm; one that has timed out says so when it
        is used.
        """
        return Transaction(self._thread, self._thread.run(self._core.get_txn(txn_id)))

    def close(self) -> None:
        """Let go of the open transactions; each ends with its lease."""
        self._thread.run(self._core.close())

    def __enter__(self) -> TransactionalEventWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
