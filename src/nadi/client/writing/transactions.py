"""Write transactions: groups of events that become part of the stream together or not at all.

Events go directly into the transaction's segments, one for each segment of the stream; the commit flushes them and asks
the controller to merge them. A background task extends the lease while the transaction is open in this process.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, Self, TypeVar
from uuid import UUID

from nadi.backoff import Backoff
from nadi.client.control.arguments import check_ack_timeout, checked
from nadi.client.control.calls import UnsupportedCallError
from nadi.client.control.closing import Closing
from nadi.client.control.time_limit import TimeLimit
from nadi.client.segments.info import was_recreated
from nadi.client.segments.stores import ACK_TIMEOUT_S, SegmentStores
from nadi.client.writing.ack import Ack
from nadi.client.writing.blocks import Events, RoutingKeys
from nadi.client.writing.event_time import check_time, leave
from nadi.client.writing.sender import EventSender
from nadi.errors import (
    ClosedError,
    EpochExpiredError,
    InvalidArgumentError,
    NadiError,
    StreamRecreatedError,
    TransactionFailedError,
    TransactionNotFoundError,
    UnavailableError,
)
from nadi.limits import TXN_BATCH_MAX, TXN_LEASE_MAX_MS, TXN_LEASE_MIN_MS
from nadi.model.segments import SegmentRange, Successor
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_name, transaction_segment_name

Own = TypeVar("Own", bound="OpenTransaction")
Item = TypeVar("Item")
Result = TypeVar("Result")
Begun = tuple[UUID, list[SegmentRange]]
TimedCommit = tuple[UUID, int | None]  # with the time to note, if any
DEFAULT_LEASE_MS = 90_000
_UNFINISHED = "UNFINISHED"
_STATE_PAUSE_S, _STATE_PAUSE_MAX_S = 0.02, 0.5
_ABORT_ON_ERROR_TIMEOUT_S = 5.0  # how long an exception such as Ctrl-C waits for the abort
_BEGIN_ANOTHER = "begin another transaction and write the events again"


@checked()
class OpenTransaction:
    """Methods shared by the transactions of events and of values."""

    def __init__(
        self,
        owner: TransactionWriter[Any],
        txn_id: UUID,
        segments: list[SegmentRange],
        lease_ms: int,
        state: str | None = None,
    ) -> None:
        """state: the current state of a transaction that was begun earlier."""
        self._txn_id = txn_id
        self._owner = owner
        self._lease_ms = lease_ms
        self._failure: NadiError | None = None  # set by the pinging task
        self._over = ""  # why this object can't be used any more
        self._was_decided = False  # its commit was already decided when it was resumed
        self._segments = segments
        name = f"{owner.scope}/{owner.stream}"

        async def no_successors(_: int) -> list[Successor]:
            await self._check_stream()
            raise TransactionFailedError(
                f"transaction {txn_id} of {name} can't take events: it has ended or timed out; {_BEGIN_ANOTHER}"
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
        # the remaining lease of a transaction begun earlier is unknown
        pause_s = self._lease_ms / 1000 / 3 if state is None else 0.0
        self._pinger = asyncio.create_task(self._ping_periodically(pause_s))
        if state in ("COMMITTING", "COMMITTED"):
            self._was_decided = True
            self._end(f"is {state}")
        elif state in ("ABORTING", "ABORTED"):
            self._end(f"is {state}, by a call or because its lease expired: {_BEGIN_ANOTHER}")

    @property
    def txn_id(self) -> UUID:
        """The id by which `get_txn` resumes the transaction, here or in another process."""
        return self._txn_id

    async def ready(self) -> None:
        """Wait until the transaction can accept more events."""
        await self._sender.ready()

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until everything written so far is stored (it is not yet part of the stream)."""
        await self._open_sender.flush(timeout)

    async def commit(
        self, *, wait: bool = False, timeout: float | None = 120.0, timestamp_ms: int | None = None
    ) -> None:
        """Make the events part of the stream; with `wait`, return once readers can see them.

        Committing a committed transaction does nothing. timestamp_ms: the event time that the writer notes with the
        commit (see EventWriter.note_time); ignored if the writer already noted a later time. Raises
        TransactionFailedError if the transaction was aborted or has timed out, and RequestTimeoutError after `timeout`
        seconds, when it may or may not have been committed: commit again, or check its `status`.
        """
        sender = None if self._was_decided else self._open_sender
        if timestamp_ms is not None:
            check_time(timestamp_ms)
        owner = self._owner
        async with self._within(timeout, "committed"):
            if sender is not None:
                await sender.flush()
            await self._decide(owner._commits.call((self.txn_id, timestamp_ms)), _BEGIN_ANOTHER)
            owner._notes_times |= timestamp_ms is not None
            self._end("was committed here already")
            if wait:
                await self._until("COMMITTED")

    async def abort(self, *, wait: bool = False, timeout: float | None = 120.0) -> None:
        """Discard the events; with `wait`, return once that is done. Raises TransactionFailedError if the transaction
        was committed, and RequestTimeoutError after `timeout` seconds, when it may or may not have been aborted."""
        owner = self._owner
        async with self._within(timeout, "aborted"):
            abort = owner._stores.controller.abort_transaction(owner.scope, owner.stream, self.txn_id)
            await self._decide(abort, "it can't be aborted any more")
            self._end("was aborted here already")
            if wait:
                await self._until("ABORTED")

    async def ping(self, lease_ms: int | None = None) -> None:
        """Extend the lease now; a background task also does so three times per lease."""
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
                await self.abort(timeout=_ABORT_ON_ERROR_TIMEOUT_S)
            except NadiError as failure:
                error.add_note(f"Transaction {self.txn_id} could not be aborted and ends with its lease: {failure}")
        finally:
            release_transaction(
                self
            )  # if anything failed, the lease must expire, because no caller can resume the transaction

    # --- inside -----------------------------------------------------------------------------

    @property
    def _open_sender(self) -> EventSender:
        """The sender, while the transaction accepts events."""
        if self._over:
            raise TransactionFailedError(f"transaction {self.txn_id} {self._over}")
        if self._failure is not None:
            raise self._failure
        return self._sender

    async def _decide(self, decision: Awaitable[object], advice: str) -> None:
        try:
            await decision
        except TransactionNotFoundError:
            await self._check_stream()
            raise TransactionFailedError(f"transaction {self.txn_id} is {await self.status()}: {advice}") from None

    async def _check_stream(self) -> None:
        """Raise StreamRecreatedError if the stream was deleted and created again after the transaction began."""
        owner = self._owner
        segment_ids = [segment.segment_id for segment in self._segments]
        if await was_recreated(owner._stores, owner.scope, owner.stream, segment_ids):
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
                f"transaction {self.txn_id} is not known to be {done} after {timeout} s: check its status, or try again"
            ),
            self._owner._stores.waits_for,
        )

    async def _until(self, end: str) -> None:
        state = await self._owner._ends.call(self.txn_id)
        if state == "UNKNOWN":
            raise TransactionNotFoundError(str(self.txn_id))
        if state != end:
            raise TransactionFailedError(f"transaction {self.txn_id} is {state}")

    async def _ping_periodically(self, pause_s: float) -> None:
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
    """A transaction of events; as a context manager it commits, or aborts if an exception leaves the block."""

    def write_event(self, event: bytes, routing_key: str | None = None) -> Ack:
        """Write like EventWriter.write_event; readers see the event once the transaction is committed."""
        return self._open_sender.write_event(event, routing_key)

    def write_batch(self, events: Events, routing_keys: RoutingKeys = None) -> Ack:
        """Write like EventWriter.write_batch; readers see the events once the transaction is committed."""
        return self._open_sender.write_batch(events, routing_keys)

    async def write_many(self, events: Events, routing_keys: RoutingKeys = None) -> Ack:
        """Write like EventWriter.write_many."""
        return await self._open_sender.write_many(events, routing_keys)


class CombinedCalls(Generic[Item, Result]):
    """Calls that share requests: calls made while a request is under way form the next one.

    send: sends a request for several items; returns the result or the error of each, or None for an item that the next
    request must include again. alone: makes the call for one item at a server without such requests. unclaimed: gets
    the results whose callers were cancelled.
    """

    def __init__(
        self,
        send: Callable[[Sequence[Item]], Awaitable[Sequence[Result | Exception | None]]],
        alone: Callable[[Item], Awaitable[Result]],
        unclaimed: Callable[[Result], None] = lambda _: None,
    ) -> None:
        self._send, self._alone, self._unclaimed = send, alone, unclaimed
        self._waiting: deque[tuple[Item, asyncio.Future[Result]]] = deque()
        self._sent: list[tuple[Item, asyncio.Future[Result]]] = []
        self._sending: asyncio.Task[None] | None = None
        self._is_supported = True

    async def call(self, item: Item) -> Result:
        if not self._is_supported:
            return await self._alone(item)
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._sending is None:
            self._send_next()
        try:
            return await future
        except UnsupportedCallError:
            self._is_supported = False
            return await self._alone(item)
        except asyncio.CancelledError:
            if self._sending is not None and self._sent and all(sent.done() for _, sent in self._sent):
                self._sending.cancel()  # no caller waits for the answer any more
            raise

    def _send_next(self, _: object = None) -> None:
        self._sent, self._sending = [], None
        if any(not future.done() for _, future in self._waiting):
            self._sending = asyncio.create_task(self._send_waiting())
            self._sending.add_done_callback(self._send_next)

    async def _send_waiting(self) -> None:
        while self._waiting and len(self._sent) < TXN_BATCH_MAX:
            item, future = self._waiting.popleft()
            if not future.done():
                self._sent.append((item, future))
        if not self._sent:
            return
        results: Sequence[Result | Exception | None]
        try:
            results = await self._send([item for item, _ in self._sent])
        except Exception as error:
            results = [error] * len(self._sent)
        except asyncio.CancelledError:
            for _, future in self._sent:
                future.cancel()
            raise
        again = []
        for (item, future), result in zip(self._sent, results, strict=True):
            if result is None:
                again.append((item, future))
            elif isinstance(result, Exception):
                if not future.done():
                    future.set_exception(result)
            elif future.done():
                self._unclaimed(result)
            else:
                future.set_result(result)
        self._waiting.extendleft(reversed(again))


@checked()
class TransactionWriter(Closing, Generic[Own]):
    """Methods shared by the transactional writers of events and of values."""

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
        self._begins = CombinedCalls(self._begin_all, self._begin_alone, self._abort_unclaimed)
        self._commits = CombinedCalls(self._commit_all, self._commit_alone)
        self._ends = CombinedCalls(self._await_any, self._await_alone)
        self._unfinished = Backoff(longest_s=_STATE_PAUSE_MAX_S)  # after answers that none has ended
        self._aborting: set[asyncio.Task[None]] = set()

    async def begin_txn(self, lease_ms: int | None = None) -> Own:
        """Begin a transaction. It times out unless it is pinged within its lease, by default the writer's `lease_ms`;
        an open transaction does that in the background."""
        self._check_open()
        lease_ms = self._lease_ms if lease_ms is None else lease_ms
        _check_lease(lease_ms)
        txn_id, segments = await self._begins.call(lease_ms)
        return self._opened(txn_id, segments, lease_ms)

    async def get_txn(self, txn_id: UUID | str) -> Own:
        """Resume a transaction begun elsewhere or earlier, by its id (or the id as text), to write, commit or abort it
        here. If it was committed meanwhile, another commit has no effect.

        Events that an earlier writer had not seen acknowledged may or may not be in it. Raises
        TransactionNotFoundError if it doesn't exist; if it has timed out, its methods raise TransactionFailedError.
        """
        self._check_open()
        known_id = id_of(txn_id)
        controller = self._stores.controller
        state = await controller.transaction_state(self.scope, self.stream, known_id)
        segments: list[SegmentRange] = []
        with suppress(EpochExpiredError):  # it ended long ago, so it can't be written to
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
        """Commit several transactions of the stream atomically. Other writers and other processes may have begun them,
        provided that their events were flushed (`Transaction.flush`).

        With `wait`, return once readers can see all of their events: a stream cut behind these events, or None if the
        server has forgotten the cut, after a day or more. The call can be repeated: committed transactions stay so.
        timestamp_ms: see `Transaction.commit`. Raises TransactionFailedError if a transaction was aborted or has timed
        out, without changing the others, and RequestTimeoutError after `timeout` seconds: repeat the call.
        docs/transactions.md has a complete example.
        """
        self._check_open()
        ids = [id_of(transaction) for transaction in transactions]
        if not 0 < len(ids) <= TXN_BATCH_MAX:
            raise InvalidArgumentError(f"can't commit {len(ids):,} transactions together: pass 1 to {TXN_BATCH_MAX:,}")
        if timestamp_ms is not None:
            check_time(timestamp_ms)
        controller, scope, stream = self._stores.controller, self.scope, self.stream
        late = f"{len(ids)} transactions of {scope}/{stream} are not known to be committed after {timeout} s"
        async with TimeLimit(timeout, lambda: f"{late}: commit them again", self._stores.waits_for):
            await controller.commit_together(scope, stream, ids, self._writer_id, timestamp_ms)
            self._notes_times |= timestamp_ms is not None
            for txn in [txn for txn in self._open_transactions if txn.txn_id in ids]:
                txn._end("was committed here already")
            return await controller.await_commit(scope, stream, ids) if wait else None

    async def close(self) -> None:
        """Release the open transactions; each ends with its lease. Watermarks then stop waiting for the writer, unless
        one of its commits is still being merged."""
        self._closed = True
        for txn in list(self._open_transactions):
            release_transaction(txn)
        if self._notes_times:
            self._notes_times = False
            await leave(self._stores.controller, self.scope, self.stream, self._writer_id)

    async def _begin_all(self, leases_ms: Sequence[int]) -> list[Begun | None]:
        controller = self._stores.controller
        txn_ids, segments = await controller.begin_transactions(self.scope, self.stream, leases_ms)
        return [(txn_id, segments) for txn_id in txn_ids] + [None] * (len(leases_ms) - len(txn_ids))

    async def _begin_alone(self, lease_ms: int) -> Begun:
        return await self._stores.controller.create_transaction(self.scope, self.stream, lease_ms)

    def _abort_unclaimed(self, begun: Begun) -> None:
        """Abort a transaction whose caller was cancelled; if that fails, it ends with its lease."""
        abort = self._stores.controller.abort_transaction(self.scope, self.stream, begun[0])
        aborting = asyncio.create_task(abort)
        self._aborting.add(aborting)
        aborting.add_done_callback(self._aborting.discard)
        aborting.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _commit_all(self, commits: Sequence[TimedCommit]) -> list[Exception | bool]:
        controller, times = self._stores.controller, dict(commits)
        lost = await controller.commit_transactions(self.scope, self.stream, times, self._writer_id)
        return [TransactionNotFoundError(str(txn_id)) if txn_id in lost else True for txn_id, _ in commits]

    async def _commit_alone(self, commit: TimedCommit) -> bool:
        txn_id, time = commit
        await self._stores.controller.commit_transaction(self.scope, self.stream, txn_id, self._writer_id, time)
        return True

    async def _await_any(self, txn_ids: Sequence[UUID]) -> list[str | None]:
        states = await self._stores.controller.await_transactions(self.scope, self.stream, txn_ids)
        if set(states) == {_UNFINISHED}:
            await self._unfinished.pause()
        else:
            self._unfinished.reset()
        return [None if state == _UNFINISHED else state for state in states]

    async def _await_alone(self, txn_id: UUID) -> str:
        backoff = Backoff(first_s=_STATE_PAUSE_S, longest_s=_STATE_PAUSE_MAX_S)
        while True:
            state = await self._stores.controller.transaction_state(self.scope, self.stream, txn_id)
            if state in ("COMMITTED", "ABORTED"):
                return state
            await backoff.pause()

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
    """Writer that begins and resumes transactions on one stream."""

    _kind = Transaction


# --- for other modules of the client ----------------------------------------------------------


def is_closed(writer: TransactionWriter[Any]) -> bool:
    return writer._closed


def release_transaction(txn: OpenTransaction) -> None:
    """Stop using the transaction in this client; `get_txn` can resume it until its lease expires."""
    txn._end("was released here: resume it with get_txn before its lease expires")


def _check_lease(lease_ms: int) -> None:
    if not TXN_LEASE_MIN_MS <= lease_ms <= TXN_LEASE_MAX_MS:
        raise InvalidArgumentError(
            f"a lease of {lease_ms:,} ms is invalid: servers accept {TXN_LEASE_MIN_MS:,} to {TXN_LEASE_MAX_MS:,} ms"
        )


def id_of(txn_id: UUID | str) -> UUID:
    """Return a transaction id given as a UUID or as text; raise InvalidArgumentError if it is invalid."""
    if isinstance(txn_id, UUID):
        return txn_id
    try:
        return UUID(txn_id)
    except (ValueError, TypeError, AttributeError):
        raise InvalidArgumentError(f"{txn_id!r} is not a transaction id, a UUID: check its spelling") from None
