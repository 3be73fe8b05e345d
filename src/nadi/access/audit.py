"""Audit trail: the acts of users, as CloudEvents 1.0 in the stream `_system/audit`, which only the server writes.

An administrative operation (`run`) is refused before it starts while too many records wait, and answered only once the
record of its outcome is durable; it continues if its caller leaves. So an acknowledged operation has a record. One that
is not acknowledged may have none if the server dies between the two. Logins and refusals (`note`), which callers can
cause at any rate, are recorded up to `AUDIT_NOTES` a second; the next record counts the omitted ones.

    {"specversion": "1.0", "id": "...", "source": "nadi/<server>", "type": "nadi.stream.delete",
     "subject": "home/meters", "time": "2026-12-01T12:00:00.000Z", "datacontenttype": "application/json",
     "data": {"user": "ann", "address": "10.0.0.7", "door": "grpc", "outcome": "done", "detail": "", "request": "..."}}

Records are written at least once: duplicates have the same id.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from nadi.backoff import Backoff
from nadi.errors import AccessDeniedError, UnavailableError
from nadi.limits import AUDIT_BATCH, AUDIT_NOTES, AUDIT_QUEUE, AUDIT_TEXT_CHARS
from nadi.observe.metrics import MetricDefinition, Sample, by_name
from nadi.runtime import Runtime
from nadi.throttled_log import ProblemLog

T = TypeVar("T")
log = logging.getLogger(__name__)
Store = Callable[[Sequence[bytes]], Awaitable[None]]
MEANINGS = by_name(
    (
        MetricDefinition("nadi_audit_records", "Records written to the audit stream.", (), "counter"),
        MetricDefinition("nadi_audit_omitted", "Logins and refusals that were only counted.", (), "counter"),
        MetricDefinition("nadi_audit_waiting", "Records waiting to be written to the audit stream."),
    )
)


class AuditedAct(msgspec.Struct, frozen=True, kw_only=True):
    """An operation. action: such as "stream.delete". subject: its object's name. user, address: of its caller. door:
    grpc, rest, kafka or wire. request: its arguments."""

    action: str
    subject: str
    user: str
    address: str = ""
    door: str = ""
    request: str = ""


class AuditTrail:
    """The records of one server. store: writes records durably, in order; called by one task, `keep`."""

    def __init__(self, source: str, runtime: Runtime) -> None:
        self._source, self._runtime = f"nadi/{source}", runtime
        self._waiting: deque[tuple[bytes, asyncio.Future[None] | None]] = deque()
        self._has_work, self._is_empty = asyncio.Event(), asyncio.Event()
        self._is_empty.set()
        self._running: set[asyncio.Task[Any]] = set()
        self._second, self._noted = 0, 0
        self._newly_omitted = self._records = self._omitted = 0

    async def run(
        self, act: AuditedAct, work: Coroutine[Any, Any, T], detail_of: Callable[[T], str] = lambda _: ""
    ) -> T:
        """Do the work, record its outcome, and return its result. UnavailableError: too many records wait, nothing was
        done. detail_of: returns why the result is a failure, or ""."""
        if len(self._waiting) >= AUDIT_QUEUE:
            work.close()
            raise UnavailableError("the audit stream can't be written, so changes aren't accepted: try again later")
        task = asyncio.create_task(self._run(act, work, detail_of), name="audited operation")
        self._running.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    async def _run(self, act: AuditedAct, work: Coroutine[Any, Any, T], detail_of: Callable[[T], str]) -> T:
        try:
            result = await work
        except Exception as error:
            outcome = "refused" if isinstance(error, AccessDeniedError) else "failed"
            await self._stored(act, outcome, str(error))
            raise
        detail = detail_of(result)
        await self._stored(act, "failed" if detail else "done", detail)
        return result

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # its caller may have left

    async def _stored(self, act: AuditedAct, outcome: str, detail: str) -> None:
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._add(self._encoded(act, outcome, detail), stored)
        await stored

    def note(self, act: AuditedAct, outcome: str = "done", detail: str = "") -> None:
        """Record an event that callers cause at any rate, or only count it."""
        second = int(self._runtime.monotonic())
        if second != self._second:
            self._second, self._noted = second, 0
        if self._noted >= AUDIT_NOTES or len(self._waiting) >= AUDIT_QUEUE // 2:
            self._newly_omitted += 1
            self._omitted += 1
            return
        self._noted += 1
        self._add(self._encoded(act, outcome, detail), None)

    def _encoded(self, act: AuditedAct, outcome: str, detail: str) -> bytes:
        data = {"user": act.user, "address": act.address, "door": act.door, "outcome": outcome}
        data |= {"detail": detail[:AUDIT_TEXT_CHARS], "request": act.request[:AUDIT_TEXT_CHARS]}
        if self._newly_omitted:
            data["omitted"] = str(self._newly_omitted)
            self._newly_omitted = 0
        at = datetime.fromtimestamp(self._runtime.now_ms() / 1000, UTC)
        return msgspec.json.encode(
            {
                "specversion": "1.0",
                "id": self._runtime.unique(),
                "source": self._source,
                "type": f"nadi.{act.action}",
                "subject": act.subject[:AUDIT_TEXT_CHARS],
                "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                "datacontenttype": "application/json",
                "data": data,
            }
        )

    def _add(self, record: bytes, stored: asyncio.Future[None] | None) -> None:
        self._waiting.append((record, stored))
        self._is_empty.clear()
        self._has_work.set()

    async def keep(self, store: Store) -> None:
        """Write records forever, retrying until they are stored."""
        problems, backoff = ProblemLog(log, "%s wait"), Backoff(first_s=0.1, sleep=self._runtime.sleep)
        while True:
            await self._has_work.wait()
            batch = [self._waiting[number] for number in range(min(len(self._waiting), AUDIT_BATCH))]
            try:
                await store([record for record, _ in batch])
            except Exception as error:
                problems.report("audit records", error)
                await backoff.pause()
                continue
            problems.settled("audit records")
            backoff.reset()
            self._records += len(batch)
            for _, stored in batch:
                self._waiting.popleft()
                if stored is not None and not stored.done():
                    stored.set_result(None)
            if not self._waiting:
                self._has_work.clear()
                self._is_empty.set()

    async def flush(self) -> None:
        """Wait until all records are stored."""
        await self._is_empty.wait()

    def samples(self) -> Iterator[Sample]:
        yield Sample(MEANINGS["nadi_audit_records"], self._records, ())
        yield Sample(MEANINGS["nadi_audit_omitted"], self._omitted, ())
        yield Sample(MEANINGS["nadi_audit_waiting"], len(self._waiting), ())
