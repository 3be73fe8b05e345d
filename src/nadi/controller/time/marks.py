"""Writer marks: how far each writer of a stream has got, in its own time and in the stream.

A mark says that all of the writer's events up to a time lie before a position. It comes from the writer
itself, or from the commit of one of its transactions. A writer's time and position never go back.
Marks belong to the stream: they are dropped with it. `watermark_rounds` makes watermarks of them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import pairwise

from msgspec.structs import replace

from nadi.controller.engine.workflows import Workflows
from nadi.controller.state.history import Cut
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import Step, TimedStream, Transaction, WriterMark
from nadi.controller.state.store import ANY_VERSION
from nadi.errors import InvalidArgumentError, InvalidStreamCutError, StreamNotFoundError, WriterNotFoundError
from nadi.limits import NAME_MAX_CHARS, NOTED_STEPS_MAX

log = logging.getLogger(__name__)


class InvalidTimeError(InvalidArgumentError):
    """The writer has noted a later time already."""


def check_writer(writer: str) -> None:
    if not 0 < len(writer) <= NAME_MAX_CHARS:
        raise InvalidArgumentError(f"a writer id has 1 to {NAME_MAX_CHARS} characters, not {len(writer):,}")


async def note(
    flow: Workflows, name: StreamName, writer: str, time: int, position: Cut, steps: Sequence[Step] | None = None
) -> bool:
    """Record a mark; InvalidTimeError or InvalidStreamCutError for one that lies before the writer's last. Return
    whether it has so many steps that watermarks should be made of them."""
    check_writer(writer)
    new = [(time, dict(position))] if steps is None else [step for step in steps if step[1]]
    if len(new) > NOTED_STEPS_MAX or any(a > b for a, b in pairwise([*(at for at, _ in new), time])):
        raise InvalidArgumentError(f"steps of a writer are up to {NOTED_STEPS_MAX} times in order, before that noted")
    await flow.metadata.stream(name)
    history = await flow.metadata.history(name)
    if any(history.is_unknown(segment) for _, at in [(time, position), *new] for segment in at):
        raise InvalidStreamCutError(f"the position of writer {writer} names a segment that {name} never had")
    is_first, kept = False, new

    async def noted(held: WriterMark | None) -> WriterMark:
        nonlocal is_first, kept
        is_first, kept = held is None, new
        if held is not None:
            _check_order(writer, held, time, position)
            kept = [*held.steps, *new]
        if len(kept) > 2 * NOTED_STEPS_MAX:  # another writer keeps watermarks back
            kept = [*kept[:-1:2], kept[-1]]
        return WriterMark(time, dict(position), steps=tuple(kept))

    table = flow.metadata.marks(name)
    await table.change(writer, _mark(writer, name), noted)
    if is_first or await flow.metadata.timed.get(name.key) is None:
        await _register(flow, name)
    if await flow.metadata.find_stream(name) is None:  # deleted meanwhile, perhaps before the mark was stored
        await table.remove([writer])
        await table.drop(must_be_empty=True)
        raise StreamNotFoundError(*name)
    return len(kept) > NOTED_STEPS_MAX


async def _register(flow: Workflows, name: StreamName) -> None:
    """Register the stream for watermark rounds. Called after the mark is stored, so whoever finds no mark in a
    registered stream may strike it off, and then looks once more."""
    if not name.stream.startswith("_"):
        await flow.metadata.timed.put(name.key, TimedStream(), ANY_VERSION)


def _check_order(writer: str, held: WriterMark, time: int, position: Cut) -> None:
    if time < held.time:
        raise InvalidTimeError(f"writer {writer} has noted the time {held.time} already, which is after {time}")
    for segment, offset in held.position.items():
        if position.get(segment, offset) < offset:
            raise InvalidStreamCutError(f"writer {writer} was at offset {offset:,} of segment {segment} already")


async def remove_writer(flow: Workflows, name: StreamName, writer: str) -> None:
    """Stop the writer from holding the watermark back; its last mark still counts until it is passed."""
    await flow.metadata.stream(name)
    if not 0 < len(writer) <= NAME_MAX_CHARS:
        raise WriterNotFoundError(name.key, writer)

    async def removed(held: WriterMark | None) -> WriterMark:
        if held is None:
            raise WriterNotFoundError(name.key, writer)
        return replace(held, alive=False)

    await flow.metadata.marks(name).change(writer, _mark(writer, name), removed)


def _mark(writer: str, name: StreamName) -> str:
    return f"the mark of writer {writer} in {name}"


async def note_commits(
    flow: Workflows, name: StreamName, transactions: Mapping[str, Transaction], positions: Mapping[str, Cut]
) -> None:
    """Note the commit times of transactions that have one, the latest per writer, at where they were merged."""
    latest: dict[str, tuple[int, str]] = {}
    for text, txn in transactions.items():
        if txn.writer_id and txn.commit_time is not None:
            latest[txn.writer_id] = max(latest.get(txn.writer_id, (txn.commit_time, text)), (txn.commit_time, text))
    for writer, (time, text) in latest.items():
        try:
            await note(flow, name, writer, time, positions[text])
        except InvalidArgumentError as error:  # the commit stands; only its time says nothing new
            log.info("the commit time of transaction %s of %s is ignored: %s", text, name, error)
