"""Transactions: events that become part of the stream all together, or never.

Events go at once into segments of the transaction's own, one for each segment of the stream; the
commit flushes them and tells the controller, which merges them. A pinger extends the lease while
the transaction is open here.
"""

from __future__ import annotations

import asyncio
import uuid
from types import TracebackType
from uuid import UUID

from nadi.client.control.arguments import check_ack_timeout, checked
from nadi.client.control.patience import TimeLimit
from nadi.client.segments.stores import SegmentStores
from nadi.client.writing.batch import Ack
from nadi.client.writing.blocks import Events, RoutingKeys
from nadi.client.writing.event_time import check_time, leave
from nadi.client.writing.writer import ACK_TIMEOUT_S, EventWriter
from nadi.errors import (
    ClosedError,
    InvalidArgumentError,
    NadiError,
    TransactionFailedError,
    TransactionNotFoundError,
    UnavailableError,
)
from nadi.limits import TXN_LEASE_MAX_MS, TXN_LEASE_MIN_MS
from nadi.model.segments import SegmentRange, Successor
from nadi.naming import segment_name, transaction_segment_name

DEFAULT_LEASE_MS = 90_000
_STATE_PAUSE_S = 0.02
_GIVING_UP_TIMEOUT_S = 5.0  # Ctrl-C, say, waits for it
_BEGIN_ANOTHER = "begin another, and write its events again"


@checked(without=("write_batch", "write_event", "write_many"))
class Transaction:
    """One transaction; as a context manager it commits, or aborts if an exception leaves the block."""

    def __init__(
        self,
        owner: TransactionalEventWriter,
        txn_id: UUID,
        segments: list[SegmentRange],
        lease_ms: int,
        state: str | None = None,
    ) -> None:
        """state: as it was found, of one that was begun before."""
        self.txn_id = txn_id
        self._owner = owner
        self._lease_ms = lease_ms
        self._failure: NadiError | None = None  # of the pinger
        self._over = ""  # why nothing more can be done with it here
        self._was_decided = False  # when it was found, to be committed
        name = f"{owner.scope}/{owner.stream}"

        async def no_successors(_: int) -> list[Successor]:
            raise TransactionFailedError(
                f"transaction {txn_id} of {name} takes no more events: it was ended or has timed out"
            )

        self._writer = EventWriter(
            owner.stores,
            f"{name}, transaction {txn_id}",
            segments,
            name_of=lambda segment_id: transaction_segment_name(
                segment_name(owner.scope, owner.stream, segment_id), txn_id.int
            ),
            find_successors=no_successors,
            ack_timeout_s=owner.ack_timeout_s,
            blocking=owner.blocking,
        )
        # nobody knows how much of its lease is left to one that was begun before
        pause_s = self._lease_ms / 1000 / 3 if state is None else 0.0
        self._pinger = asyncio.create_task(self._ping_for_ever(pause_s))
        if state in ("COMMITTING", "COMMITTED"):
            self._was_decided = True
            self._end(f"is {state}")
        elif state in ("ABORTING", "ABORTED"):
            self._end(f"is {state}, by a call or because its lease ran out: {_BEGIN_ANOTHER}")

    def write_event(self, event: bytes, routing_key: str | None = None) -> Ack:
        """As EventWriter.write_event; the event is seen by readers once the transaction is committed."""
        self._check_open()
        return self._writer.write_event(event, routing_key)

    def write_batch(self, events: Events, routing_keys: RoutingKeys = None) -> Ack:
        """As EventWriter.write_batch; the events are seen by readers once the transaction is committed."""
        self._check_open()
        return self._writer.write_batch(events, routing_keys)

    async def write_many(self, events: Events, routing_keys: RoutingKeys = None) -> Ack:
        """As EventWriter.write_many."""
        self._check_open()
        return await self._writer.write_many(events, routing_keys)

    async def ready(self) -> None:
        """Wait until there is room for more events."""
        await self._writer.ready()

    async def flush(self, timeout: float | None = None) -> None:
        """Return once everything written so far is stored (and not yet part of the stream)."""
        self._check_open()
        await self._writer.flush(timeout)

    async def commit(
        self, *, wait: bool = False, timeout: float | None = 120.0, timestamp_ms: int | None = None
    ) -> None:
        """Make the events part of the stream; with `wait`, return once readers can see them.

        One that was found committed, by its id, is committed again without harm. timestamp_ms: the time that the
        transaction's writer notes with it (see EventWriter.note_time); one before a time that it has noted already is
        ignored. TransactionFailedError if it was aborted or has timed out. RequestTimeoutError if that took more than
        `timeout` seconds: it may have been committed or not, so commit it again, or ask for its `status`.
        """
        if not self._was_decided:
            self._check_open()
        if timestamp_ms is not None:
            check_time(timestamp_ms)
        owner = self._owner
        async with self._within(timeout, "committed"):
            if not self._was_decided:
                await self._writer.flush()
            try:
                await owner.stores.controller.commit_transaction(
                    owner.scope, owner.stream, self.txn_id, owner.writer_id, timestamp_ms
                )
            except TransactionNotFoundError:
                raise TransactionFailedError(
                    f"transaction {self.txn_id} is {await self.status()}: {_BEGIN_ANOTHER}"
                ) from None
            owner.notes_times |= timestamp_ms is not None
            self._end("was committed here already")
            if wait:
                await self._until(("COMMITTED",))

    async def abort(self, *, wait: bool = False, timeout: float | None = 120.0) -> None:
        """Forget the events. TransactionFailedError if it was committed; RequestTimeoutError after `timeout` seconds,
        when it may have been aborted or not."""
        owner = self._owner
        async with self._within(timeout, "aborted"):
            try:
                await owner.stores.controller.abort_transaction(owner.scope, owner.stream, self.txn_id)
            except TransactionNotFoundError:
                raise TransactionFailedError(
                    f"transaction {self.txn_id} is {await self.status()}: too late to abort it"
                ) from None
            self._end("was aborted here already")
            if wait:
                await self._until(("ABORTED",))

    async def ping(self, lease_ms: int | None = None) -> None:
        """Extend the lease now; the pinger does so by itself."""
        owner = self._owner
        await owner.stores.controller.ping_transaction(
            owner.scope, owner.stream, self.txn_id, self._lease_ms if lease_ms is None else lease_ms
        )

    async def status(self) -> str:
        """OPEN, COMMITTING, COMMITTED, ABORTING or ABORTED."""
        owner = self._owner
        return await owner.stores.controller.transaction_state(owner.scope, owner.stream, self.txn_id)

    async def __aenter__(self) -> Transaction:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._over:
            return
        try:
            if error is None:
                await self.commit()
                return
            try:
                await self.abort(timeout=_GIVING_UP_TIMEOUT_S)
            except NadiError as failure:
                error.add_note(f"Transaction {self.txn_id} could not be aborted, and ends with its lease: {failure}")
        finally:
            self.stop()  # whatever failed: nobody is there to go on with it, so its lease must run out

    def stop(self) -> None:
        """Let go of it without ending it: it can be resumed by its id until its lease runs out."""
        self._end("was let go of here: take it up again with get_txn, before its lease runs out")

    # --- inside -----------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._over:
            raise TransactionFailedError(f"transaction {self.txn_id} {self._over}")
        if self._failure is not None:
            raise self._failure

    def _end(self, over: str) -> None:
        self._over = self._over or over
        self._pinger.cancel()
        self._writer.stop(ClosedError(f"transaction {self.txn_id} has ended"))
        self._owner.open_transactions.discard(self)

    def _within(self, timeout: float | None, done: str) -> TimeLimit:
        return TimeLimit(
            timeout,
            lambda: (
                f"transaction {self.txn_id} was not {done} within {timeout} s, as far as is known: "
                "ask for its status, or try again"
            ),
            self._owner.stores.waits_for,
        )

    async def _until(self, states: tuple[str, ...]) -> None:
        while True:
            state = await self.status()
            if state in states:
                return
            if state in ("COMMITTED", "ABORTED"):
                raise TransactionFailedError(f"transaction {self.txn_id} is {state}")
            await asyncio.sleep(_STATE_PAUSE_S)

    async def _ping_for_ever(self, pause_s: float) -> None:
        while True:
            await asyncio.sleep(pause_s)
            try:
                await self.ping()
            except UnavailableError:
                pause_s = min(self._lease_ms / 1000 / 3, 1.0)
                continue
            except NadiError as error:
                self._failure = error
                return
            pause_s = self._lease_ms / 1000 / 3


@checked()
class TransactionalEventWriter:
    """Begins and resumes the transactions of one writer on one stream."""

    def __init__(
        self,
        stores: SegmentStores,
        scope: str,
        stream: str,
        *,
        writer_id: str | None = None,
        lease_ms: int = DEFAULT_LEASE_MS,
        ack_timeout_s: float = ACK_TIMEOUT_S,
        blocking: bool = False,
    ) -> None:
        _check_lease(lease_ms)
        check_ack_timeout(ack_timeout_s)
        self.stores = stores
        self.scope, self.stream = scope, stream
        self.writer_id = writer_id or str(uuid.uuid4())
        self.notes_times = False
        self.lease_ms = lease_ms
        self.ack_timeout_s = ack_timeout_s
        self.blocking = blocking
        self.open_transactions: set[Transaction] = set()
        self._closed = False

    @property
    def is_closed(self) -> bool:
        return self._closed

    async def begin_txn(self, lease_ms: int | None = None) -> Transaction:
        """A new transaction, which times out if the controller hears nothing of it for the lease: the writer's own
        unless another is given."""
        self._check_open()
        lease_ms = self.lease_ms if lease_ms is None else lease_ms
        _check_lease(lease_ms)
        txn_id, segments = await self.stores.controller.create_transaction(self.scope, self.stream, lease_ms)
        return self._opened(txn_id, segments, lease_ms)

    async def get_txn(self, txn_id: UUID | str) -> Transaction:
        """A transaction begun elsewhere or earlier, by its id (or the id's text), to be written, committed or aborted
        here. One that was committed meanwhile can be committed again, without harm.

        What an earlier writer of it had not seen acknowledged may or may not be in it. TransactionNotFoundError if
        there is none; one that has timed out says so when it is used.
        """
        self._check_open()
        known_id = _id_of(txn_id)
        controller = self.stores.controller
        state = await controller.transaction_state(self.scope, self.stream, known_id)
        segments = await controller.epoch_segments(self.scope, self.stream, known_id.int >> 96)
        return self._opened(known_id, segments, self.lease_ms, state)

    async def close(self) -> None:
        """Let go of the open transactions; each ends with its lease. The writer's times hold no watermark back then,
        unless one of its commits is still being merged."""
        self._closed = True
        for txn in list(self.open_transactions):
            txn.stop()
        if self.notes_times:
            self.notes_times = False
            await leave(self.stores.controller, self.scope, self.stream, self.writer_id)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"this transaction writer of {self.scope}/{self.stream} was closed")

    def _opened(
        self, txn_id: UUID, segments: list[SegmentRange], lease_ms: int, state: str | None = None
    ) -> Transaction:
        txn = Transaction(self, txn_id, segments, lease_ms, state)
        if state in (None, "OPEN"):
            self.open_transactions.add(txn)
        return txn


def _check_lease(lease_ms: int) -> None:
    if not TXN_LEASE_MIN_MS <= lease_ms <= TXN_LEASE_MAX_MS:
        raise InvalidArgumentError(
            f"a lease of {lease_ms:,} ms is outside {TXN_LEASE_MIN_MS:,} to {TXN_LEASE_MAX_MS:,} ms, as servers give it"
        )


def _id_of(txn_id: UUID | str) -> UUID:
    if isinstance(txn_id, UUID):
        return txn_id
    try:
        return UUID(txn_id)
    except (ValueError, TypeError, AttributeError):
        raise InvalidArgumentError(f"{txn_id!r} is no transaction's id: give its txn_id, or the text of that") from None
