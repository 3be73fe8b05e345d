"""One client's connection: commands in, replies out, each append acknowledged in order.

Reading continues while received data is within its limits; else it stops, and the peer's network buffers the remainder.
A bounded number of commands is handled per turn of the loop. A peer without a valid token may send only small frames,
and must send a token soon; later, each frame must be completed in time.

Appends are queued to the containers together with others received at the same time (`appends`); reads bypass these
(`reads`), because they may wait at the tail; other commands start in order, some in parallel.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from nadi import limits
from nadi.access.budget import Account, Budget
from nadi.access.commands import acts_of
from nadi.access.names import Act
from nadi.errors import NadiError, NotOwnerError, ProtocolError, SegmentNotFoundError, UnavailableError
from nadi.segmentstore.container.container import Container
from nadi.segmentstore.fair_scheduler import FairScheduler
from nadi.segmentstore.reading.reads import SegmentReader
from nadi.segmentstore.server.appends import Writers
from nadi.segmentstore.server.reads import Reads
from nadi.segmentstore.server.replies import Replies
from nadi.segmentstore.server.service import SegmentService
from nadi.wire import commands as wire
from nadi.wire.codec import decode_payload
from nadi.wire.decoder import Decoder

log = logging.getLogger(__name__)
_COMMAND_WEIGHT = 4  # a command of many small parts takes several times its bytes
# commands that may be large, and start like GetTableSegmentInfo, with the segment and the token
_LARGE = {kind.code: kind for kind in (wire.UpdateTableEntries, wire.RemoveTableKeys, wire.ReadTable)}
_CHECKED_AFTER = 8  # commands between checks for capacity; all of them are in one buffer


_AT_ONE_TIME = {  # commands that change something, with replies no larger than the command
    wire.CreateSegment,
    wire.CreateTableSegment,
    wire.DeleteSegment,
    wire.DeleteTableSegment,
    wire.MergeSegments,
    wire.MergeSegmentsBatch,
    wire.RemoveTableKeys,
    wire.SealSegment,
    wire.TruncateSegment,
    wire.UpdateSegmentAttribute,
    wire.UpdateSegmentPolicy,
    wire.UpdateTableEntries,
}
_background: set[asyncio.Task[None]] = set()  # deletions of transient segments


class CommandQueue:
    """The commands of one connection other than appends and reads, and any commands received after one of them. Those
    with small replies are handled in parallel, so that their changes in a container share a frame of its log; they
    start in order, so two on one segment take effect in order. Others are handled one after another, once all before
    them are done, the peer accepts replies and there is space for one. received: the account of received bytes.
    dispatch: handles a command that isn't the service's. resume: called when more commands may be accepted."""

    def __init__(
        self,
        replies: Replies,
        received: Account,
        service: SegmentService,
        scheduler: FairScheduler,
        dispatch: Callable[[wire.Command], None],
        resume: Callable[[], None],
    ) -> None:
        self._replies, self._received, self._service, self._scheduler = replies, received, service, scheduler
        self._dispatch, self._resume = dispatch, resume
        self._worker: asyncio.Task[None] | None = None
        self._waiting: deque[tuple[wire.Command, int]] = deque()  # each with its accounted size
        self._running: set[asyncio.Task[None]] = set()
        self._change = asyncio.Event()  # set when a command arrives or ends
        self._is_over = False  # a command has closed the connection: start no more
        self._transients: set[str] = set()  # deleted with the connection; created for large events

    @property
    def is_busy(self) -> bool:
        """Whether commands are unfinished: a later command that depends on them must be added."""
        return self._worker is not None or bool(self._running)

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= limits.CONNECTION_COMMANDS_WAITING

    def add(self, command: wire.Command, size_bytes: int) -> None:
        """Queue a command for its turn; its size is accounted until then."""
        self._received.take(size_bytes)
        if self._worker is None and self._may_start(command) and not (self._scheduler.is_exhausted or self._is_over):
            self._start(command, size_bytes)
            return
        self._waiting.append((command, size_bytes))
        self._change.set()
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())

    def close(self) -> None:
        for task in (self._worker, *self._running):
            if task is not None:
                task.cancel()
        for _, size in self._waiting:
            self._received.give(size)
        self._waiting.clear()
        if self._transients:
            task = asyncio.create_task(self._delete(self._transients))
            _background.add(task)
            task.add_done_callback(_background.discard)

    def _may_start(self, command: wire.Command) -> bool:
        """Return whether the command may run in parallel with those running, with space for its reply."""
        replies, running = self._replies, len(self._running)
        return (
            type(command) in _AT_ONE_TIME
            and (
                not running
                or (
                    running < limits.CONNECTION_COMMANDS_AT_ONCE
                    and self._scheduler.under_way < limits.COMMANDS_UNDER_WAY
                )
            )
            and replies.writable.is_set()
            and replies.held.capacity_bytes > 0
        )

    def _start(self, command: wire.Command, size_bytes: int) -> None:
        task = asyncio.create_task(self._done(command, size_bytes))
        self._running.add(task)
        self._scheduler.under_way += 1
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._scheduler.under_way -= 1
        self._change.set()
        if self._worker is None and not self._running:
            self._resume()

    async def _work(self) -> None:
        """Start commands in order; the task ends when none is waiting or running."""
        while (self._waiting or self._running) and not self._is_over:
            if not self._waiting or (self._running and not self._may_start(self._waiting[0][0])):
                self._change.clear()
                await self._change.wait()
                continue
            await self._replies.may_reply()
            command, size = self._waiting.popleft()
            if self._may_start(command):
                self._start(command, size)
                self._scheduler.count(1)
                if self._scheduler.is_exhausted:
                    await asyncio.sleep(0)
            else:
                await self._done(command, size)
            if len(self._waiting) == limits.CONNECTION_COMMANDS_WAITING // 2:
                self._resume()
        if not self._is_over:
            self._worker = None
            self._resume()

    async def _done(self, command: wire.Command, size_bytes: int) -> None:
        try:
            await self._handle(command)
        finally:
            self._received.give(size_bytes)

    async def _handle(self, command: Any) -> None:
        replies = self._replies
        try:
            if not self._service.handles(command):
                self._dispatch(command)
                return
            reply = await self._service.handle(command)
            self._note_transients(command, reply)
            replies.send(reply)  # inside the try too: a reply too large for the protocol closes the connection
            if type(command) not in _AT_ONE_TIME:
                replies.flush()  # so that the next command sees the available space
            return
        except UnavailableError as error:
            log.info("closed a connection: %s", error)
            replies.close()
        except ProtocolError as error:
            replies.refuse(error)
        except Exception as error:
            log.error("%s failed", type(command).__name__, exc_info=error)
            replies.close()
        self._is_over = True
        self._change.set()

    def _note_transients(self, command: wire.Command, reply: wire.Command) -> None:
        if isinstance(command, wire.CreateTransientSegment) and isinstance(reply, wire.SegmentCreated):
            self._transients.add(reply.segment)
        elif not self._transients:
            return
        elif isinstance(reply, wire.SegmentsMerged):
            self._transients.discard(reply.source)
        elif isinstance(command, wire.MergeSegmentsBatch) and isinstance(reply, wire.SegmentsBatchMerged):
            self._transients.difference_update(command.sources)
        elif isinstance(reply, wire.SegmentDeleted):
            self._transients.discard(reply.segment)

    async def _delete(self, names: set[str]) -> None:
        for name in sorted(names):
            try:
                await self._service.delete(name)
            except (SegmentNotFoundError, NotOwnerError):
                pass  # it was merged, or its container's new owner deletes it
            except UnavailableError as error:
                log.warning("transient segment %s can't be deleted yet: %s", name, error, extra={"segment": name})


class Connection(asyncio.BufferedProtocol):
    def __init__(
        self,
        container_of: Callable[[str], Container],
        service: SegmentService,
        reader: SegmentReader,
        connections: dict[Connection, None],
        report: Callable[[object, object], None],
        budget: Budget,
        scheduler: FairScheduler,
        known: Callable[[], None] = lambda: None,
        left: Callable[[], None] = lambda: None,
    ) -> None:
        """connections: the open connections, including this one. report: called with the peer and reason when a
        connection is closed; any peer can cause that, at any rate. known: called when the peer has shown a valid token.
        left: called when the connection is closed."""
        self._service, self._access, self._scheduler = service, service.access, scheduler
        self._connections, self._on_known, self._on_closed = connections, known, left
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._pool = budget.receiving
        self._account = self._pool.account()  # for received bytes
        self._decoder = Decoder(limits.RECEIVE_BUFFER_BYTES, limits.RECEIVE_BUFFER_LEAST_BYTES, self._account)
        self._decoder.max_frame_bytes = limits.UNKNOWN_PEER_FRAME_BYTES
        self._is_known = False
        self._is_reading = True
        self._is_due = False  # queued in the scheduler
        self._made_at = self._frame_at = 0.0  # when the current frame started, or reading resumed
        self._has_partial_frame = False  # a partial frame remained after the last commands
        self._quiet = 0  # polls since the last received bytes
        self.replies = Replies(budget.sending, report, lambda: self._reads.resume())
        self._quotas, self._user = service.quotas, ""  # the user of the first valid token
        self.writers = Writers(self.replies, container_of, service.access, service.quotas, self.resume)
        self._reads = Reads(self.replies, container_of, reader, service.access, service.quotas, scheduler)
        self._commands = CommandQueue(
            self.replies, self._account, service, scheduler, self._dispatch_in_turn, self.resume
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = made = cast("asyncio.Transport", transport)  # uvloop's has the methods, but isn't a subclass
        made.set_write_buffer_limits(high=limits.SEND_HIGH_WATER_BYTES, low=limits.SEND_LOW_WATER_BYTES)
        self.replies.open(made)
        self._made_at = self._frame_at = self._loop.time()
        self._connections[self] = None

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._connections.pop(self, None)
        self._decoder.close()
        self._pool.forget(self.resume)
        self.replies.lost()
        self._reads.close()
        self.writers.close()
        self._commands.close()
        if self._user:
            self._quotas.disconnect(self._user)
        self._on_closed()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self._quiet = 0
        self._decoder.filled(nbytes)
        if not self._is_due and (self._is_reading or not self.is_full):
            scheduler = self._scheduler
            scheduler.count(
                self._process(limits.COMMANDS_UNDER_CONTENTION if scheduler.is_exhausted else limits.COMMANDS_AT_ONCE)
            )

    def pause_writing(self) -> None:
        self.replies.pause()

    def resume_writing(self) -> None:
        self.replies.resume()
        self._reads.grow_replies()
        self._reads.resume()
        self.resume()

    def close(self) -> None:
        self.replies.close()

    def abort(self) -> None:
        self.replies.abort()

    def poll(self, now_s: float) -> bool:
        """Close the connection if its peer is too slow to send, or to receive replies; return whether it was."""
        if self._transport is None:
            return False
        if reason := self._overdue(now_s) or self.replies.stalled(now_s):
            self.replies.report(reason)
            self._transport.abort()  # the peer wouldn't receive the remainder either
        return bool(reason)

    def _overdue(self, now_s: float) -> str:
        """Return the reason to close the connection for missing input, or "". Free idle peers' buffers."""
        decoder = self._decoder
        if not self._is_known and now_s - self._made_at > limits.UNKNOWN_PEER_S:
            return f"it sent nothing valid within {limits.UNKNOWN_PEER_S:.0f} s"
        if not decoder.pending_bytes:
            self._quiet += 1
            if self._quiet > 1:
                decoder.release_idle()
            return ""
        longest_s = limits.FRAME_TIMEOUT_S + decoder.wanted_bytes / limits.FRAME_LEAST_BYTES_S
        if self._is_reading and now_s - self._frame_at > longest_s:
            return f"a frame was incomplete after {longest_s:.0f} s: received {decoder.pending_bytes:,} bytes"
        return ""

    @property
    def is_full(self) -> bool:
        """Whether nothing more is accepted from the peer for now; `resume` is called when that may have changed."""
        if self._transport is None:
            return True
        received = self._account.buffered_bytes
        if (
            received > limits.PEERS_LEAST_BYTES
            and (  # earlier input fills the peer's share: the buffer in use doesn't count
                received > limits.CONNECTION_RECEIVED_BYTES
                or received - self._decoder.current_bytes > self._pool.share_bytes
            )
        ):
            self._pool.wait(self.resume)
            return True
        return self.writers.is_full or self.replies.is_full or self._commands.is_full

    def resume(self) -> None:
        """Handle received commands if there is capacity now."""
        if not self._is_due and self._transport is not None and not self._is_reading:
            self._is_due = True
            self._scheduler.add(self._process_again)

    def _process_again(self) -> int:
        self._is_due = False
        if self._transport is None or self._transport.is_closing() or self.is_full:
            return 0
        return self._process(limits.COMMANDS_AT_ONCE)

    def _process(self, most: int) -> int:
        decoder, transport = self._decoder, self._transport
        count = 0
        try:
            if transport is not None and (self._is_known or self._may_receive_rest()):
                commands = decoder.commands()
                while count < most:
                    if self._is_known and (appends := decoder.appends(min(_CHECKED_AFTER, most - count))):
                        self.receive_appends(appends)
                        count += len(appends)
                        is_time = True
                    elif (command := next(commands, None)) is not None:
                        if not self._is_known:
                            self._identify(command)
                            if transport.is_closing():
                                break
                        self.receive(command)
                        count += 1
                        is_time = count % _CHECKED_AFTER == 0
                    else:
                        break
                    if is_time and self.is_full:
                        break
                    if self._transport is None or transport.is_closing():
                        break
                    if not self._is_known and not self._may_receive_rest():
                        break
        except Exception as error:
            self.writers.hand_over()  # commands before the error are complete
            self.replies.broken(error)
            return 1
        self.writers.hand_over()
        if self._transport is None or self._transport.is_closing():
            return count
        has_rest = decoder.pending_bytes > 0
        if has_rest and (count or not self._has_partial_frame):
            self._frame_at = self._loop.time()
        self._has_partial_frame = has_rest
        is_more = count == most
        goes_on = not is_more and not self.is_full and (not has_rest or self._has_capacity())
        if goes_on != self._is_reading:
            self._set_reading(goes_on)
        if is_more and not self._is_due:
            self._is_due = True
            self._scheduler.add(self._process_again)
        return count

    def _set_reading(self, is_reading: bool) -> None:
        if self._transport is None:
            return
        self._is_reading = is_reading
        if is_reading:
            self._frame_at = self._loop.time()  # the delay was on this side
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _has_capacity(self) -> bool:
        """Return whether there is memory for the next buffer, unless it is small; resume when there is."""
        needed = self._decoder.next_buffer_bytes - self._decoder.buffer_bytes
        if needed <= self._account.capacity_bytes:
            return True
        if needed > self._pool.largest_share_bytes:
            problem = f"a frame of {needed:,} bytes exceeds a connection's memory limit"
            self.replies.broken(ProtocolError(problem))
            return False
        self._pool.wait(self.resume)
        return False

    def _identify(self, command: Any) -> None:
        """Accept the peer if the command shows a valid token; the command's handler reports errors."""
        if self._access.checks_tokens:
            if getattr(command, "token", None) is None:
                return
            try:
                self._access.check(command)
            except NadiError:
                return
            user = self._access.user_of(command)
            if user and (reason := self._quotas.connect(user)):
                self.replies.refuse(reason)
                return
            self._user = user or ""
        self._is_known = True
        self._decoder.max_frame_bytes = limits.MAX_FRAME_RECEIVED_BYTES
        self._on_known()

    def _may_receive_rest(self) -> bool:
        """Return whether to receive the rest of a frame: a large one needs a valid token in its head."""
        code, size = self._decoder.head
        if size <= limits.UNKNOWN_PEER_FRAME_BYTES or code not in _LARGE or size > limits.MAX_FRAME_RECEIVED_BYTES:
            return True  # or `next` refuses it
        pending = self._decoder.pending
        try:
            head: Any = decode_payload(wire.GetTableSegmentInfo.code, pending, 8, len(pending))
        except ProtocolError:
            if len(pending) > limits.UNKNOWN_PEER_FRAME_BYTES:
                raise
            return False
        try:
            command: Any = _LARGE[code](head.request_id, head.segment, head.token, ())
            self._access.check(command)
            self._identify(command)
        except NadiError as error:
            self.replies.fail(error, head.request_id, head.segment)
            self.close()
            return False
        return True

    def receive(self, command: wire.Command) -> None:
        """Handle a command; the writers' `hand_over` must follow before this turn of the loop ends."""
        if not self._commands.is_busy or isinstance(command, wire.KeepAlive):
            self._dispatch(command)
        else:
            self._enqueue(command)  # after earlier commands

    def receive_appends(self, appends: list[wire.AppendBlockEnd]) -> None:
        if not self._commands.is_busy and self.writers.block is None:
            self.writers.append_all(appends)
        else:
            for append in appends:
                self.receive(append)

    def _dispatch_in_turn(self, command: wire.Command) -> None:
        self._dispatch(command)
        self.writers.hand_over()

    def _dispatch(self, command: wire.Command) -> None:
        kind, writers = type(command), self.writers
        if kind is wire.AppendBlockEnd:
            writers.append(command)  # type: ignore[arg-type]
            return
        if writers.block is not None:
            raise ProtocolError(f"a {kind.__name__} between an AppendBlock and its AppendBlockEnd")
        if isinstance(command, wire.AppendBlock):
            writers.block = command
            return
        writers.hand_over()  # it may depend on earlier appends
        if kind is wire.ReadSegment:
            self._reads.start(command)  # type: ignore[arg-type]
        elif kind is wire.SetupAppend:
            writers.set_up(command)  # type: ignore[arg-type]
        elif isinstance(command, wire.ConditionalAppend):
            writers.append_event(command)
        elif isinstance(command, wire.ConditionalBlockEnd):
            writers.append_block(command)
        elif isinstance(command, wire.KeepAlive):
            self.replies.send(command)
        elif isinstance(command, wire.ReportKeys):
            writers.report_keys(command)
        elif isinstance(command, wire.Hello):
            self._hello(command)
        elif self._service.handles(command):
            self._enqueue(command)
        else:
            raise ProtocolError(f"a client can't send {kind.__name__}")

    def _count(self, command: Any) -> None:
        """Count a permitted command against the quotas of reading or writing."""
        try:
            self._access.check(command)
        except NadiError:
            return  # its handler reports the error
        segment, act = acts_of(command)[0]
        scope, user = segment.partition("/")[0], self._access.user_of(command)
        if act is Act.READ:
            self._reads.count(scope, user, 0)
        else:
            self.writers.count(scope, user, self._decoder.frame_bytes)

    def _hello(self, command: wire.Hello) -> None:
        self.replies.send(wire.OWN_HELLO if wire.knows(command, wire.ReportKeys) else wire.HELLO)
        if command.low_version > wire.HELLO.high_version or command.high_version < wire.HELLO.low_version:
            self.replies.refuse(f"its versions {command.low_version} to {command.high_version} are not supported")

    def _enqueue(self, command: wire.Command) -> None:
        if self._quotas.is_limiting and self._service.handles(command):
            self._count(command)
        self._commands.add(command, _COMMAND_WEIGHT * self._decoder.frame_bytes)
