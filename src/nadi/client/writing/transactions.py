"""Transactions: events that become part of the stream all together, or never.

Events go straight into the transaction's own segments, one for each segment of the stream; the
commit flushes them and asks the controller to merge them. A pinger extends the lease while the
transaction is open here.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, Self, TypeVar
from uuid import UUID

from nadi.client.control.arguments import check_ack_timeout, checked
from nadi.client.control.closing import Closing
from nadi.client.control.time_limit import TimeLimit
from nadi.client.segments.info import was_recreated
from nadi.client.segments.stores import SegmentStores
from nadi.client.writing.ack import Ack
from nadi.client.writing.blocks import Events, RoutingKeys
from nadi.client.writing.event_time import check_time, leave
from nadi.client.writing.sender import ACK_TIMEOUT_S, EventSender
from nadi.errors import (
    ClosedError,
    EpochGoneError,
    InvalidArgumentError,
    NadiError,
    StreamRecreatedError,
    TransactionFailedError,
    TransactionNotFoundError,
    UnavailableError,
)
from nadi.limits import TXN_LEASE_MAX_MS, TXN_LEASE_MIN_MS, TXN_TOGETHER_MAX
from nadi.model.segments import SegmentRange, Successor
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_name, transaction_segment_name

Own = TypeVar("Own", bound="OpenTransaction")
DEFAULT_LEASE_MS = 90_000
_STATE_PAUSE_S = 0.02
_GIVING_UP_TIMEOUT_S = 5.0  # Ctrl-C, say, waits this long
_BEGIN_ANOTHER = "begin another, and write its events again"


@checked()
class OpenTransaction:
    """What transactions of events and of values have in common."""

    def __init__(
        self,
        owner: TransactionWriter[Any],
        txn_id: UUID,
        segments: list[SegmentRange],
        lease_ms: int,
        state: str | None = None,
    ) -> None:
        """state: the one found, if the transaction was begun earlier."""
        self._txn_id = txn_id
        self._owner = owner
        self._lease_ms = lease_ms
        self._failure: NadiError | None = None  # of the pinger
        self._over = ""  # why nothing more can be done with it here
        self._was_decided = False  # its commit was already decided when it was found
        self._segments = segments
        name = f"{owner.scope}/{owner.stream}"

        async def no_successors(_: int) -> list[Successor]:
            await self._check_stream()
            raise TransactionFailedError(
                f"transaction {txn_id} of {name} takes no more events: it was ended or has timed out"
            )

        self._sender = EventSender(
            owner._stores,
            f"{name}, transaction {txn_id}",
            segments,
            name_of=lambda segment_id: transaction_segment_name(
                segment_name(owner.scope, owner.stream, segment_id), txn_id.int
            ),
            find_successors=no_successors,
            ack_timeout_s=owner._ack_timeout_s,
            blocking=owner._blocking,
        )
        # how much is left of the lease of a transaction begun earlier is unknown
        pause_s = self._lease_ms / 1000 / 3 if state is None else 0.0
        self._pinger = asyncio.create_task(self._ping_for_ever(pause_s))
        if state in ("COMMITTING", "COMMITTED"):
            self._was_decided = True
            self._end(f"is {state}")
        elif state in ("ABORTING", "ABORTED"):
            self._end(f"is {state}, by a call or because its lease ran out: {_BEGIN_ANOTHER}")

    @property
    def txn_id(self) -> UUID:
        """The id by which `get_txn` finds the transaction, here or elsewhere."""
        return self._txn_id

    async def ready(self) -> None:
        """Wait until there is room for more events."""
        await self._sender.ready()

    async def flush(self, timeout: float | None = None) -> None:
        """Return once everything written so far is stored (and not yet part of the stream)."""
        await self._taker.flush(timeout)

    async def commit(
        self, *, wait: bool = False, timeout: float | None = 120.0, timestamp_ms: int | None = None
    ) -> None:
        """Make the events part of the stream; with `wait`, return once readers can see them.

        Committing a transaction that is already committed does nothing. timestamp_ms: the time that the
        transaction's writer notes with it (see EventWriter.note_time); one before a time already noted is
        ignored. TransactionFailedError if it was aborted or has timed out. RequestTimeoutError if it took more than
        `timeout` seconds: it may or may not have been committed, so commit it again, or check its `status`.
        """
        sender = None if self._was_decided else self._taker
        if timestamp_ms is not None:
            check_time(timestamp_ms)
        owner = self._owner
        async with self._within(timeout, "committed"):
            if sender is not None:
                await sender.flush()
            commit = owner._stores.controller.commit_transaction(
                owner.scope, owner.stream, self.txn_id, owner._writer_id, timestamp_ms
            )
            await self._decide(commit, _BEGIN_ANOTHER)
            owner._notes_times |= timestamp_ms is not None
            self._end("was committed here already")
            if wait:
                await self._until(("COMMITTED",))

    async def abort(self, *, wait: bool = False, timeout: float | None = 120.0) -> None:
        """Discard the events. TransactionFailedError if it was committed; RequestTimeoutError after `timeout` seconds,
        when it may or may not have been aborted."""
        owner = self._owner
        async with self._within(timeout, "aborted"):
            abort = owner._stores.controller.abort_transaction(owner.scope, owner.stream, self.txn_id)
            await self._decide(abort, "too late to abort it")
            self._end("was aborted here already")
            if wait:
                await self._until(("ABORTED",))

    async def ping(self, lease_ms: int | None = None) -> None:
        """Extend the lease now; this also happens in the background, three times per lease."""
        owner = self._owner
        try:
            await owner._stores.controller.ping_transaction(
                owner.scope, owner.stream, self.txn_id, self._lease_ms if lease_ms is None else lease_ms
            )
        except (TransactionNotFoundError, TransactionFailedError):
            await self._check_stream()
            raise

    async def status(self) -> str:
        """Return OPEN, COMMITTING, COMMITTED, ABORTING or ABORTED."""
        owner = self._owner
        return await owner._stores.controller.transaction_state(owner.scope, owner.stream, self.txn_id)

    async def __aenter__(self) -> Self:
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
            let_go(self)  # whatever failed: nobody is left to resume it, so its lease must run out

    # --- inside -----------------------------------------------------------------------------

    @property
    def _taker(self) -> EventSender:
        """What sends the events, as long as the transaction takes any."""
        if self._over:
            raise TransactionFailedError(f"transaction {self.txn_id} {self._over}")
        if self._failure is not None:
            raise self._failure
        return self._sender

    async def _decide(self, decision: Awaitable[None], advice: str) -> None:
        try:
            await decision
        except TransactionNotFoundError:
            await self._check_stream()
            raise TransactionFailedError(f"transaction {self.txn_id} is {await self.status()}: {advice}") from None

    async def _check_stream(self) -> None:
        """StreamRemadeError if the stream isn't the one that the transaction was begun on."""
        owner = self._owner
        own = [one.segment_id for one in self._segments]
        if await was_recreated(owner._stores, owner.scope, owner.stream, own):
            raise StreamRecreatedError(owner.scope, owner.stream)

    def _end(self, over: str) -> None:
        self._over = self._over or over
        self._pinger.cancel()
        self._sender.stop(ClosedError(f"transaction {self.txn_id} has ended"))
        self._owner._open_transactions.pop(self, None)

    def _within(self, timeout: float | None, done: str) -> TimeLimit:
        return TimeLimit(
            timeout,
            lambda: (
                f"transaction {self.txn_id} was not {done} within {timeout} s, as far as is known: "
                "ask for its status, or try again"
            ),
            self._owner._stores.waits_for,
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


@checked(without=("write_batch", "write_event", "write_many"))
class Transaction(OpenTransaction):
    """One transaction; as a context manager it commits, or aborts if an exception leaves the block."""

    def write_event(self, event: bytes, routing_key: str | None = None) -> Ack:
        """Write like EventWriter.write_event; readers see the event once the transaction is committed."""
        return self._taker.write_event(event, routing_key)

    def write_batch(self, events: Events, routing_keys: RoutingKeys = None) -> Ack:
        """Write like EventWriter.write_batch; readers see the events once the transaction is committed."""
        return self._taker.write_batch(events, routing_keys)

    async def write_many(self, events: Events, routing_keys: RoutingKeys = None) -> Ack:
        """Write like EventWriter.write_many."""
        return await self._taker.write_many(events, routing_keys)


@checked()
class TransactionWriter(Closing, Generic[Own]):
    """What writers of transactions have in common, whatever those take."""

    _kind: type[Own]

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
        self._stores = stores
        self.scope, self.stream = scope, stream
        self._writer_id = writer_id or str(uuid.uuid4())
        self._notes_times = False
        self._lease_ms = lease_ms
        self._ack_timeout_s = ack_timeout_s
        self._blocking = blocking
        self._open_transactions: dict[Own, None] = {}
        self._closed = False

    async def begin_txn(self, lease_ms: int | None = None) -> Own:
        """Begin a transaction, which times out if it isn't kept alive within its lease: by default the writer's
        `lease_ms`."""
        self._check_open()
        lease_ms = self._lease_ms if lease_ms is None else lease_ms
        _check_lease(lease_ms)
        txn_id, segments = await self._stores.controller.create_transaction(self.scope, self.stream, lease_ms)
        return self._opened(txn_id, segments, lease_ms)

    async def get_txn(self, txn_id: UUID | str) -> Own:
        """Resume a transaction begun elsewhere or earlier, by its id (or that as text), to write, commit or abort it
        here. One that was committed meanwhile can be committed again, to no effect.

        Events that an earlier writer had not seen acknowledged may or may not be in it. TransactionNotFoundError if
        there is none; one that has timed out raises when it is used.
        """
        self._check_open()
        known_id = id_of(txn_id)
        controller = self._stores.controller
        state = await controller.transaction_state(self.scope, self.stream, known_id)
        segments: list[SegmentRange] = []
        with suppress(EpochGoneError):  # it ended long ago, and nothing can be written to it
            segments = await controller.epoch_segments(self.scope, self.stream, known_id.int >> 96)
        return self._opened(known_id, segments, self._lease_ms, state)

    async def commit_together(
        self,
        transactions: Sequence[UUID | str],
        *,
        wait: bool = False,
        timeout: float | None = 120.0,
        timestamp_ms: int | None = None,
    ) -> StreamCut | None:
        """Commit several transactions of the stream by one decision: all of them, or none, whatever fails. They may be
        of other writers and other processes, as long as all that they are to hold was flushed (`Transaction.flush`).

        With `wait`, return once readers can see all of their events, and a stream cut that lies behind these; None if
        that is no longer known, after a day or more. Those committed already stay so, so the call can be repeated.
        timestamp_ms: as with `Transaction.commit`. TransactionFailedError if one was aborted or has timed out: the
        others stay as they are. RequestTimeoutError after `timeout` seconds: repeat the call. docs/transactions.md has
        an example that runs.
        """
        self._check_open()
        ids = [id_of(one) for one in transactions]
        if not 0 < len(ids) <= TXN_TOGETHER_MAX:
            raise InvalidArgumentError(f"{len(ids):,} transactions: 1 to {TXN_TOGETHER_MAX:,} are committed together")
        if timestamp_ms is not None:
            check_time(timestamp_ms)
        controller, scope, stream = self._stores.controller, self.scope, self.stream
        late = f"{len(ids)} transactions of {scope}/{stream} were not committed within {timeout} s, as far as is known"
        async with TimeLimit(timeout, lambda: f"{late}: commit them again", self._stores.waits_for):
            await controller.commit_together(scope, stream, ids, self._writer_id, timestamp_ms)
            self._notes_times |= timestamp_ms is not None
            for txn in [one for one in self._open_transactions if one.txn_id in ids]:
                txn._end("was committed here already")
            while wait:
                is_merged, cut = await controller.find_commit(scope, stream, ids)
                if is_merged:
                    return cut
                await asyncio.sleep(_STATE_PAUSE_S)
        return None

    async def close(self) -> None:
        """Release the open transactions; each ends with its lease. The writer's times then hold back no watermark,
        unless one of its commits is still being merged."""
        self._closed = True
        for txn in list(self._open_transactions):
            let_go(txn)
        if self._notes_times:
            self._notes_times = False
            await leave(self._stores.controller, self.scope, self.stream, self._writer_id)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"this transaction writer of {self.scope}/{self.stream} was closed")

    def _opened(self, txn_id: UUID, segments: list[SegmentRange], lease_ms: int, state: str | None = None) -> Own:
        txn = self._kind(self, txn_id, segments, lease_ms, state)
        if state in (None, "OPEN"):
            self._open_transactions[txn] = None
        return txn


@checked()
class TransactionalEventWriter(TransactionWriter[Transaction]):
    """Begins and resumes the transactions of one writer on one stream."""

    _kind = Transaction


# --- for other modules of the client ----------------------------------------------------------


def is_closed(writer: TransactionWriter[Any]) -> bool:
    return writer._closed


def let_go(txn: OpenTransaction) -> None:
    """End only this client's part: the transaction can be resumed by its id until its lease runs out."""
    txn._end("was let go of here: take it up again with get_txn, before its lease runs out")


def _check_lease(lease_ms: int) -> None:
    if not TXN_LEASE_MIN_MS <= lease_ms <= TXN_LEASE_MAX_MS:
        raise InvalidArgumentError(
            f"a lease of {lease_ms:,} ms is outside {TXN_LEASE_MIN_MS:,} to {TXN_LEASE_MAX_MS:,} ms, as servers give it"
        )


def id_of(txn_id: UUID | str) -> UUID:
    """The id, or that of its text; InvalidArgumentError if it isn't one."""
    if isinstance(txn_id, UUID):
        return txn_id
    try:
        return UUID(txn_id)
    except (ValueError, TypeError, AttributeError):
        raise InvalidArgumentError(f"{txn_id!r} is not a transaction id: pass its txn_id, or that as text") from None
