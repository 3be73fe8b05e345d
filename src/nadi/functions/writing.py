"""What a function writes, at least once, exactly once or at most once.

At least once: results and dead letters are written and acknowledged, then the position moves on. A worker that dies in
between has written them, and another makes and writes them again.

At most once: the group has recorded the position after a batch before the worker gets it. A worker that is stopped
gives back what it has not begun; what one that died had not handled is skipped.

Exactly once: results and dead letters are written into transactions, one for each stream, and stored completely. Then
one conditional update of the group's state records the position together with the transactions' ids, and then
they are committed. A worker that dies

- before the update leaves transactions that nobody knows of: they end with their lease, and another worker
  makes the results again;
- after it leaves a record, and the events are done: whoever finds the record commits (`settle_all` when an instance of
  the function starts, and the next reader of the segment before it gets an event of it).

A worker that was taken for dead can't record anything. A transaction that was recorded and yet can't be committed,
because nobody came for longer than its lease (`FUNCTION_LEASE_MS`), or because its stream was sealed, is told loudly
and undone: the position goes back to where its events start, and they are handled again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal

from nadi.client.aio import EventWriter, ReaderGroup, StreamManager, Transaction, TransactionalEventWriter
from nadi.client.readergroup.outputs import OutputReader, Unsettled, forget_output, recorded_outputs
from nadi.client.writing.transactions import let_go
from nadi.errors import (
    ConditionFailedError,
    NadiError,
    ReaderOfflineError,
    StreamNotFoundError,
    TransactionFailedError,
    TransactionNotFoundError,
    UnavailableError,
)
from nadi.functions.definition import Function
from nadi.functions.handlers.outcome import Output
from nadi.functions.stopped import FunctionError
from nadi.limits import FUNCTION_LEASE_MS

_TRIES_TO_RECORD = 3
Step = Callable[[str], None]
IfUnknown = Literal["raise", "forget", "redo"]


class RedoError(Exception):
    """An output was undone: the reader has to start again at the recorded positions."""


class AtLeastOnce:
    """`Outputs` of one worker and its current reader."""

    def __init__(self, manager: StreamManager, function: Function, reader: OutputReader) -> None:
        self._manager, self._function, self._reader = manager, function, reader
        self._writers: dict[str, EventWriter] = {}

    def begin(self, end: int) -> None:
        pass

    async def store(self, start: int, end: int, outputs: Sequence[Output], letters: Sequence[Output]) -> None:
        await self._write(outputs, letters)
        self._reader.confirm(end)

    async def _write(self, outputs: Sequence[Output], letters: Sequence[Output]) -> None:
        for stream, written in _by_stream(self._function, outputs, letters):
            writer = self._writers.get(stream)
            if writer is None:
                writer = self._writers[stream] = await self._manager.create_writer(*stream.split("/"))
            await writer.write_many([data for _, data in written], [key for key, _ in written])
            await writer.flush()

    async def close(self) -> None:
        for writer in self._writers.values():
            with suppress(NadiError):  # what was stored is flushed
                await writer.close(timeout=1.0)


class AtMostOnce(AtLeastOnce):
    """The same, of events that count as done when they are begun."""

    def begin(self, end: int) -> None:
        self._reader.confirm(end)

    async def store(self, start: int, end: int, outputs: Sequence[Output], letters: Sequence[Output]) -> None:
        await self._write(outputs, letters)


class TransactionWriters:
    """One for each stream that a function writes to, shared by an instance's workers."""

    def __init__(self, manager: StreamManager) -> None:
        self._manager = manager
        self._writers: dict[str, TransactionalEventWriter] = {}

    async def begin(self, stream: str) -> Transaction:
        return await (await self._writer(stream)).begin_txn()

    async def commit(self, stream: str, txn_id: str) -> None:
        """TransactionFailedError or TransactionNotFoundError if it can't be committed any more."""
        txn = await (await self._writer(stream)).get_txn(txn_id)
        await txn.commit()

    async def _writer(self, stream: str) -> TransactionalEventWriter:
        if stream not in self._writers:
            made = await self._manager.create_transaction_writer(*stream.split("/"), lease_ms=FUNCTION_LEASE_MS)
            self._writers.setdefault(stream, made)
        return self._writers[stream]


class ExactlyOnce:
    """`Outputs` of one worker and its current reader. step: called with the name of each step that was done."""

    def __init__(
        self,
        writers: TransactionWriters,
        function: Function,
        reader: OutputReader,
        logger: logging.Logger,
        step: Step = lambda name: None,
    ) -> None:
        self._writers, self._function, self._reader, self._log, self._step = writers, function, reader, logger, step

    def begin(self, end: int) -> None:
        pass

    async def store(self, start: int, end: int, outputs: Sequence[Output], letters: Sequence[Output]) -> None:
        by_stream = _by_stream(self._function, outputs, letters)
        if not by_stream:
            self._reader.confirm(end)
            return
        open_ones: dict[str, Transaction] = {}
        try:
            await self._store(start, end, by_stream, open_ones)
        except (ReaderOfflineError, ConditionFailedError):  # nothing is recorded
            for txn in open_ones.values():
                with suppress(NadiError):
                    await txn.abort()
            raise
        finally:
            for txn in open_ones.values():
                let_go(txn)  # else an undecided one would be kept alive as long as this process lives

    async def _store(
        self, start: int, end: int, by_stream: list[tuple[str, list[Output]]], open_ones: dict[str, Transaction]
    ) -> None:
        for stream, written in by_stream:
            txn = open_ones[stream] = await self._writers.begin(stream)
            self._step("begun")
            await txn.write_many([data for _, data in written], [key for key, _ in written])
            await txn.flush()
        self._step("written")
        found = await self._record(start, end, {stream: str(txn.txn_id) for stream, txn in open_ones.items()})
        self._step("recorded")
        for txn in open_ones.values():
            try:
                await txn.commit()
            except TransactionFailedError as error:
                await _undo(found, self._reader, error, self._log)
        self._step("committed")
        self._reader.settle(found)

    async def close(self) -> None:
        pass

    async def _record(self, start: int, end: int, transactions: dict[str, str]) -> Unsettled:
        for tries_left in reversed(range(_TRIES_TO_RECORD)):
            try:
                return await self._reader.record(start, end, transactions)
            except UnavailableError:  # it may be recorded
                if not tries_left:
                    raise
        raise AssertionError


async def settle(
    found: Unsettled, reader: OutputReader, writers: TransactionWriters, function: str, logger: logging.Logger
) -> None:
    """Commit what an earlier reader of a segment recorded, before the reader goes on; RedoError if it can't be."""
    try:
        for stream, txn_id in found.output.transactions:
            await writers.commit(stream, txn_id)
    except TransactionFailedError as error:
        await _undo(found, reader, error, logger)
    except (TransactionNotFoundError, StreamNotFoundError) as error:
        raise unknown_outcome(function, found, error) from error
    logger.info("committed the output of %s up to %d, left by another reader", found.segment, found.output.end)
    reader.settle(found)


async def _undo(found: Unsettled, reader: OutputReader, error: NadiError, logger: logging.Logger) -> None:
    logger.error(
        "the output of %s from %d to %d was recorded but can't be committed (%s): handling its events again",
        *(found.segment, found.output.start, found.output.end, error),
    )
    await reader.undo(found)
    raise RedoError


async def settle_all(
    group: ReaderGroup, writers: TransactionWriters, logger: logging.Logger, *, if_unknown: IfUnknown = "raise"
) -> int:
    """Commit every output that is recorded: those of workers that died, and once more those being committed.

    if_unknown: what to do with one of which nobody knows whether it was committed: raise FunctionError, forget it, or
    have its events handled again; return how many these were.
    """
    unknown = 0
    for found in await recorded_outputs(group):
        undo = False
        try:
            for stream, txn_id in found.output.transactions:
                await writers.commit(stream, txn_id)
        except TransactionFailedError as error:
            undo = True
            logger.error(
                "the output of %s from %d to %d was recorded but can't be committed (%s): its events are handled again",
                *(found.segment, found.output.start, found.output.end, error),
            )
        except (TransactionNotFoundError, StreamNotFoundError) as error:
            if if_unknown == "raise":
                raise unknown_outcome(group.name, found, error) from error
            undo = if_unknown == "redo"
            unknown += 1
        await forget_output(group, found, undo=undo)
    return unknown


def unknown_outcome(function: str, found: Unsettled, error: NadiError) -> FunctionError:
    streams = ", ".join(stream for stream, _ in found.output.transactions)
    return FunctionError(
        f"function {function} can't know whether the output of {found.segment} from {found.output.start:,} to "
        f"{found.output.end:,} is in {streams}: {error}. The server has forgotten the transaction, or the stream was "
        "deleted. Look there whether it is; then `nadi function settle` continues after these events, and "
        "`nadi function settle --redo` handles them again"
    )


def _by_stream(
    function: Function, outputs: Sequence[Output], letters: Sequence[Output]
) -> list[tuple[str, list[Output]]]:
    found: dict[str, list[Output]] = {}
    for stream, written in ((function.output_stream, outputs), (function.dead_letter_stream, letters)):
        if stream is not None and written:
            found.setdefault(stream, []).extend(written)
    return list(found.items())
