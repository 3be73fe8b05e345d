"""Writes a function's results, at least once, exactly once or at most once.

At least once: results and dead letters are written and acknowledged, then the position is recorded. If a worker dies in
between, another makes and writes them again.

At most once: the group records the position after a batch before the worker gets it. A worker that stops returns the
events that it hasn't begun; those that a dead worker hadn't handled are skipped.

Exactly once: results and dead letters are written to transactions, one for each stream, and stored completely. Then one
conditional update of the group's state records the position and the transactions' ids, and then they are committed. A
worker that dies

- before the update leaves unrecorded transactions: they expire with their lease, and another worker makes the results
again; - after it leaves a record, and the events are done: the reader of the record commits (`settle_all` when an
instance of the function starts, and the segment's next reader before its first event).

A worker that the group has removed can't record anything. If a recorded transaction can't be committed, because all
workers were down longer than its lease (`FUNCTION_LEASE_MS`), or because its stream was sealed, that is logged as an
error and undone: the position goes back to where its events start, and they are handled again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal

from nadi.client.aio import EventWriter, ReaderGroup, StreamManager, Transaction, TransactionalEventWriter
from nadi.client.readergroup.outputs import OutputReader, UncommittedOutput, forget_output, recorded_outputs
from nadi.client.writing.transactions import release_transaction
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
from nadi.functions.handlers.event import FunctionError, Output
from nadi.limits import FUNCTION_LEASE_MS
from nadi.model.delivery import AT_MOST_ONCE

_TRIES_TO_RECORD = 3
Step = Callable[[str], None]
IfUnknown = Literal["raise", "forget", "redo"]


class RedoError(Exception):
    """An output was undone: the reader has to start again at the recorded positions."""


class Acknowledged:
    """The outputs of one worker and its current reader, without exactly-once delivery: events are done when their
    results are stored, or, at most once, when they are begun."""

    def __init__(self, manager: StreamManager, function: Function, reader: OutputReader) -> None:
        self._manager, self._function, self._reader = manager, function, reader
        self._writers: dict[str, EventWriter] = {}

    def begin(self, end: int) -> None:
        if self._function.delivery == AT_MOST_ONCE:
            self._reader.confirm(end)

    async def store(self, start: int, end: int, outputs: Sequence[Output], dead_letters: Sequence[Output]) -> None:
        for stream, written in _by_stream(self._function, outputs, dead_letters):
            writer = self._writers.get(stream)
            if writer is None:
                writer = self._writers[stream] = await self._manager.create_writer(*stream.split("/"))
            await writer.write_many([data for _, data in written], [key for key, _ in written])
            await writer.flush()
        if self._function.delivery != AT_MOST_ONCE:
            self._reader.confirm(end)

    async def close(self) -> None:
        for writer in self._writers.values():
            with suppress(NadiError):  # all stored events are flushed already
                await writer.close(timeout=1.0)


class TransactionWriters:
    """The writers for the function's streams, shared by an instance's workers."""

    def __init__(self, manager: StreamManager) -> None:
        self._manager = manager
        self._writers: dict[str, TransactionalEventWriter] = {}

    async def begin(self, stream: str) -> Transaction:
        return await (await self._writer(stream)).begin_txn()

    async def commit(self, stream: str, txn_id: str) -> None:
        """Commit; TransactionFailedError or TransactionNotFoundError if it is too late."""
        txn = await (await self._writer(stream)).get_txn(txn_id)
        await txn.commit()

    async def _writer(self, stream: str) -> TransactionalEventWriter:
        if stream not in self._writers:
            writer = await self._manager.create_transaction_writer(*stream.split("/"), lease_ms=FUNCTION_LEASE_MS)
            self._writers.setdefault(stream, writer)
        return self._writers[stream]


class ExactlyOnce:
    """The outputs of one worker and its current reader. step: called with the name of each completed step."""

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

    async def store(self, start: int, end: int, outputs: Sequence[Output], dead_letters: Sequence[Output]) -> None:
        by_stream = _by_stream(self._function, outputs, dead_letters)
        if not by_stream:
            self._reader.confirm(end)
            return
        transactions: dict[str, Transaction] = {}
        try:
            await self._store(start, end, by_stream, transactions)
        except (ReaderOfflineError, ConditionFailedError):  # not recorded
            for txn in transactions.values():
                with suppress(NadiError):
                    await txn.abort()
            raise
        finally:
            for txn in transactions.values():
                release_transaction(txn)  # otherwise an undecided one would be kept alive by this process

    async def _store(
        self, start: int, end: int, by_stream: list[tuple[str, list[Output]]], transactions: dict[str, Transaction]
    ) -> None:
        for stream, written in by_stream:
            txn = transactions[stream] = await self._writers.begin(stream)
            self._step("begun")
            await txn.write_many([data for _, data in written], [key for key, _ in written])
            await txn.flush()
        self._step("written")
        recorded = await self._record(start, end, {stream: str(txn.txn_id) for stream, txn in transactions.items()})
        self._step("recorded")
        for txn in transactions.values():
            try:
                await txn.commit()
            except TransactionFailedError as error:
                _log_undone(recorded, error, self._log)
                await self._reader.undo(recorded)
                raise RedoError from None
        self._step("committed")
        self._reader.settle(recorded)

    async def close(self) -> None:
        pass

    async def _record(self, start: int, end: int, transactions: dict[str, str]) -> UncommittedOutput:
        for tries_left in reversed(range(_TRIES_TO_RECORD)):
            try:
                return await self._reader.record(start, end, transactions)
            except UnavailableError:  # the record may be stored
                if not tries_left:
                    raise
        raise AssertionError


async def settle(
    unsettled: UncommittedOutput,
    reader: OutputReader,
    writers: TransactionWriters,
    function: str,
    logger: logging.Logger,
) -> None:
    """Commit the recorded output of a segment's earlier reader; RedoError if it is too late."""
    if not await _commit(unsettled, writers, function, logger):
        await reader.undo(unsettled)
        raise RedoError
    logger.info("committed the output of %s up to %d, left by another reader", unsettled.segment, unsettled.output.end)
    reader.settle(unsettled)


async def settle_all(
    group: ReaderGroup, writers: TransactionWriters, logger: logging.Logger, *, on_unknown_commit: IfUnknown = "raise"
) -> int:
    """Commit every recorded output: dead workers' outputs, and again those being committed.

    on_unknown_commit: how to treat an output whose outcome is unknown: raise UnknownOutcomeError, forget it, or handle
    its events again; return the number of these.
    """
    unknown = 0
    for unsettled in await recorded_outputs(group):
        try:
            undo = not await _commit(unsettled, writers, group.name, logger)
        except UnknownOutcomeError:
            if on_unknown_commit == "raise":
                raise
            undo = on_unknown_commit == "redo"
            unknown += 1
        await forget_output(group, unsettled, undo=undo)
    return unknown


async def _commit(
    unsettled: UncommittedOutput, writers: TransactionWriters, function: str, logger: logging.Logger
) -> bool:
    """Commit a recorded output; return False if it is too late. UnknownOutcomeError."""
    try:
        for stream, txn_id in unsettled.output.transactions:
            await writers.commit(stream, txn_id)
    except TransactionFailedError as error:
        _log_undone(unsettled, error, logger)
        return False
    except (TransactionNotFoundError, StreamNotFoundError) as error:
        raise UnknownOutcomeError(function, unsettled, error) from error
    return True


def _log_undone(unsettled: UncommittedOutput, error: NadiError, logger: logging.Logger) -> None:
    logger.error(
        "can't commit the recorded output of %s from %d to %d (%s): its events are handled again",
        *(unsettled.segment, unsettled.output.start, unsettled.output.end, error),
    )


class UnknownOutcomeError(FunctionError):
    """The outcome of a commit is unknown."""

    def __init__(self, function: str, unsettled: UncommittedOutput, error: NadiError) -> None:
        output = unsettled.output
        super().__init__(
            f"function {function} can't determine whether the output of {unsettled.segment} from {output.start:,} to "
            f"{output.end:,} is in {', '.join(stream for stream, _ in output.transactions)}: {error}. The server has "
            "forgotten the transaction, or the stream was deleted. Check the stream; then `nadi function settle` "
            "continues after these events, and `nadi function settle --redo` handles them again"
        )


def _by_stream(
    function: Function, outputs: Sequence[Output], dead_letters: Sequence[Output]
) -> list[tuple[str, list[Output]]]:
    by_stream: dict[str, list[Output]] = {}
    for stream, written in ((function.output_stream, outputs), (function.dead_letter_stream, dead_letters)):
        if stream is not None and written:
            by_stream.setdefault(stream, []).extend(written)
    return list(by_stream.items())
