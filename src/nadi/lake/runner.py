"""Runs a lake's writer as a process: commits periodically, retries while a service is unavailable, and reports its
state. `status` shows that and the table's progress.

It ends on a signal or `stop`, at an error that retries can't fix, or, with `once`, when the table is up to date with
the stream.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Unpack

from msgspec.structs import replace

from nadi.backoff import Backoff
from nadi.client import StreamManager
from nadi.client.blocking.face import inside
from nadi.client.control.arguments import checking
from nadi.errors import ConflictError, InvalidStreamCutError, NadiError, NotFoundError, ProtocolError, UnavailableError
from nadi.lake.definition import LakeDefinition, LakeRecord, Options, StoredLake, definition_of, lake_name
from nadi.lake.rows import LakeRows, newest_mark
from nadi.lake.table.catalogs import table_of
from nadi.lake.table.error_mapping import LakeStoppedError, without_secrets
from nadi.lake.table.partitions import check_columns, partition_fields
from nadi.lake.writer import CommitResult, LakeWriter, Step
from nadi.limits import LAKE_COMPACT_EVERY_S, LAKE_ONCE_TRIES_S, LAKE_RETRY_LONGEST_S, PROCESS_SILENT_S
from nadi.model.streamcut import StreamCut
from nadi.process.members import WorkerInfo
from nadi.process.runner import each_beat
from nadi.process.worker import cancel_all

log = logging.getLogger("nadi.lake")
OnProgress = Callable[[CommitResult], None]


@checking
def define(
    manager: StreamManager, scope: str, stream: str, *, name: str | None = None, **options: Unpack[Options]
) -> LakeDefinition:
    """Create a stream's lake, or change its options, and enable its writers; `run` is one. StreamNotFoundError.

    >>> import nadi.lake
    >>> def keep(manager):
    ...     catalog = {"type": "sql", "uri": "sqlite:////lake/catalog.db", "warehouse": "file:///lake"}
    ...     lake = nadi.lake.define(manager, "home", "meters", table="home.meters", catalog=catalog)
    ...     nadi.lake.run(manager, lake)
    """
    thread, core = inside(manager)
    stored = StoredLake(core, scope, lake_name(stream, name))

    async def asked() -> tuple[LakeDefinition, bool]:
        await core.stream_configuration(scope, stream)
        before = await stored.record.find()
        known = None if before is None else before.definition
        is_made = before is not None and bool(before.table_id)
        lake = definition_of(scope, stream, name, known, is_made=is_made, **options)
        if lake.dead_letter_stream is not None:
            await core.stream_configuration(*lake.dead_letter_stream)
        has_columns = lake.value_format is None or lake.value_schema or await core.schemas(scope, stream).versions()
        return lake, bool(lake.partition and not is_made and has_columns)

    lake, has_new_partition = thread.run(asked())
    if has_new_partition:
        tail = manager.cuts(scope, stream).tail()
        check_columns(partition_fields(lake.partition), LakeRows(manager, lake, tail, tail).schema)
    return thread.run(stored.define(lake)).definition


@checking
def stop(manager: StreamManager, scope: str, name: str) -> LakeRecord:
    """Stop a lake's writers after the current commit; see `run`."""
    thread, core = inside(manager)
    stored = StoredLake(core, scope, name)
    return thread.run(stored.record.change(partial(replace, is_wanted=False)))


@checking
def delete(manager: StreamManager, scope: str, name: str) -> None:
    """Delete a lake's definition and its protection from retention. The table stays. ConflictError while it runs. A
    lake with an unreadable record is deleted even so, and running writers stop."""
    thread, core = inside(manager)
    stored = StoredLake(core, scope, name)

    async def forgotten() -> None:
        with suppress(ProtocolError):
            await stored.record.get()
            if running := await stored.writers():
                raise ConflictError(
                    f"lake {name} is running on {running[0].host}, process {running[0].pid}: stop it first with `nadi "
                    f"lake stop`; a killed writer counts as dead after {PROCESS_SILENT_S:g} s"
                )
        await stored.forget()

    thread.run(forgotten())


@checking
def run(
    manager: StreamManager,
    lake: LakeDefinition,
    *,
    once: bool = False,
    stop: threading.Event | None = None,
    on_progress: OnProgress = lambda done: None,
    step: Step = lambda name: None,
) -> None:
    """Keep a table up to date with its stream until the event `stop`, a signal, `nadi.lake.stop`, or, with `once`,
    until it is up to date. on_progress: called with each snapshot.

    LakeStoppedError if a change is needed to continue. With `once` also UnavailableError, if a service stays
    unavailable for some 15 s.
    """
    stop = threading.Event() if stop is None else stop
    with _signals(stop):
        _Running(manager, lake, once, stop, on_progress, step).run()


@contextmanager
def _signals(stop: threading.Event) -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(eq=False)
class _Running:
    manager: StreamManager
    lake: LakeDefinition
    once: bool
    stop: threading.Event
    on_progress: OnProgress
    step: Step

    def __post_init__(self) -> None:
        self._compact_error = ""  # the last error of merging small files
        self._thread, core = inside(self.manager)
        self._stored = StoredLake(core, self.lake.scope, self.lake.name)
        self._members = self._stored.members()
        self._rows, self._state, self._trouble = 0, "writing", ""
        self._compact_at = time.monotonic() + LAKE_COMPACT_EVERY_S
        self._backoff = Backoff(first_s=0.2, longest_s=LAKE_RETRY_LONGEST_S)

    def run(self) -> None:
        beat = self._thread.result(lambda: asyncio.create_task(each_beat(self._report)))
        trouble = ""
        try:
            with ExitStack() as closing:
                self._rounds(closing)
        except Exception as error:
            kind = "" if isinstance(error, NadiError) else f"{type(error).__name__}: "
            trouble = without_secrets(f"{kind}{error}")
            raise
        finally:
            with suppress(NadiError):
                self._thread.run(self._end(beat, trouble))

    async def _end(self, beat: asyncio.Task[None], trouble: str) -> None:
        await cancel_all([beat])
        await self._members.leave()
        await self._stored.record_trouble(trouble)

    async def _report(self) -> None:
        try:
            await self._members.report(self._rows, 0.0, 0, self._trouble, self._state)
            record = await self._stored.record.get()
        except NotFoundError:
            log.warning("lake %s was deleted: this writer ends", self.lake.name)
            self.stop.set()
            return
        if not record.is_wanted:
            self.stop.set()
        if record.trouble and not self._trouble:
            await self._stored.record_trouble("")

    def _rounds(self, closing: ExitStack) -> None:
        writer = None
        failing_since: float | None = None
        while not self.stop.is_set():
            started = time.monotonic()
            try:
                if writer is None:
                    writer = LakeWriter(self.manager, self.lake, step=self.step)
                    closing.callback(writer.close)
                done = writer.commit()
            except UnavailableError as error:
                failing_since = started if failing_since is None else failing_since
                if self.once and time.monotonic() - failing_since > LAKE_ONCE_TRIES_S:
                    raise
                pause_s = self._backoff.take()
                log.warning("retrying in %.1f s: %s", pause_s, error)
                self._state, self._trouble = "waiting", str(error)
                self.stop.wait(pause_s)
                continue
            self._backoff.reset()
            failing_since = None
            if done is not None:
                self._rows += done.rows
                self.on_progress(done)
            is_up_to_date = done is None or done.is_up_to_date
            if is_up_to_date and (self.once or time.monotonic() >= self._compact_at):
                self._compact(writer)
            if done is None and self.once:
                return
            self._state, self._trouble = "level" if is_up_to_date else "writing", self._compact_error
            if is_up_to_date and not self.once:
                self.stop.wait(max(self.lake.every_s - (time.monotonic() - started), 0.0))

    def _compact(self, writer: LakeWriter) -> None:
        self._compact_at = time.monotonic() + LAKE_COMPACT_EVERY_S
        try:
            self._state = "writing"
            while writer.compact() and not self.stop.is_set():
                pass
            self._compact_error = ""
        except (UnavailableError, LakeStoppedError) as error:  # events can still be written
            if self.once and isinstance(error, LakeStoppedError):
                raise
            log.warning("can't merge small files now; retrying later: %s", error)
            self._compact_error = str(error)


@dataclass(frozen=True, slots=True)
class LakeStatus:
    """The state of a lake. cut: up to which the table has the stream; None if it is empty or unknown: see `trouble`.
    lag_bytes: of the stream, not yet in the table; None if unknown. writers: live ones."""

    lake: LakeDefinition
    is_wanted: bool
    writers: tuple[WorkerInfo, ...]
    cut: StreamCut | None
    lag_bytes: int | None
    snapshot_id: int | None
    rows: int | None
    files: int | None
    dead_letters: int | None
    trouble: str


@checking
def status(manager: StreamManager, scope: str, name: str) -> LakeStatus:
    """Return a lake's state; NotFoundError if it doesn't exist."""
    thread, core = inside(manager)

    stored = StoredLake(core, scope, name)

    async def measured(cut: StreamCut) -> int:
        cuts = core.cuts(cut.scope, cut.stream)
        try:
            return await cuts.bytes_between(cut, await cuts.tail())
        except InvalidStreamCutError:
            await stored.check_stream(cut)
            raise

    record, writers = thread.run(stored.record.get()), tuple(thread.run(stored.writers()))
    trouble = next((writer.last_error for writer in writers if writer.last_error), record.trouble)
    lake = record.definition
    cut = lag_bytes = snapshot_id = rows = files = letters = None
    try:
        table = table_of(lake.catalog, lake.table)
        mark = None if table is None else newest_mark(table, lake.scope, lake.stream)
        cut = None if mark is None else mark.end_cut
        lag_bytes = thread.run(measured(cut or StreamCut.from_text(record.start)))
        snapshot = None if table is None else table.current_snapshot()
        if snapshot is not None and snapshot.summary is not None and mark is not None:
            totals = snapshot.summary.additional_properties
            snapshot_id, letters = snapshot.snapshot_id, mark.letters
            rows, files = int(totals["total-records"]), int(totals["total-data-files"])
    except NadiError as error:
        trouble = str(error)
    return LakeStatus(lake, record.is_wanted, writers, cut, lag_bytes, snapshot_id, rows, files, letters, trouble)
