"""Truncate a stream at a stream cut.

The head moves first, so a reader that finds its data truncated asks for the head and gets the new one. Segments before
the cut are deleted and those in it are truncated. Old stream cuts are interpreted with the epochs before the head, so
EPOCHS_RETAINED of those are retained; older ones are forgotten, unless an unfinished transaction needs them.
"""

from __future__ import annotations

from msgspec.structs import replace

from nadi.controller.engine.workflows import Workflows
from nadi.controller.state.history import Cut, EpochHistory, ask
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import StreamRecord, TruncateWork
from nadi.controller.state.segments import together
from nadi.errors import EpochExpiredError, InvalidStreamCutError
from nadi.limits import EPOCHS_FORGOTTEN_AT_ONCE, EPOCHS_RETAINED


async def begin(flow: Workflows, name: StreamName, cut: Cut) -> TruncateWork:
    stream = await flow.metadata.open_stream(name)
    history = await flow.metadata.history(name)
    delete = await ask(flow.clock, history, lambda known: _passed(known, name, stream.head, cut))
    await _check_ends(flow, name, cut)
    return TruncateWork(dict(cut), delete)


def _passed(history: EpochHistory, name: StreamName, head: Cut, cut: Cut) -> tuple[int, ...]:
    """Return the segments before the cut; InvalidStreamCutError if it isn't valid."""
    head = head or history.first_cut()
    try:
        is_valid = history.is_valid_cut(cut)
        is_after = is_valid and history.is_at_or_after(cut, head)
    except EpochExpiredError:
        is_valid, is_after = True, False
    if not is_valid:
        raise InvalidStreamCutError(
            f"the cut is not a stream cut of {name}: take one from a reader group or the stream"
        )
    if not is_after:
        raise InvalidStreamCutError(f"{name} is already truncated beyond this stream cut: use a later one")
    return tuple(segment for segment in history.between(head, cut) if segment not in cut)


async def _check_ends(flow: Workflows, name: StreamName, cut: Cut) -> None:
    """Reject a head past the end of a segment: it would hide events written there later."""

    async def check(segment: str, offset: int) -> None:
        length = await flow.segments.length(segment)
        if offset > length:
            raise InvalidStreamCutError(f"offset {offset:,} is past the end of segment {segment}, at {length:,}")

    await together(check(name.segment(segment), offset) for segment, offset in cut.items() if offset > 0)


async def steps(flow: Workflows, name: StreamName, work: TruncateWork) -> None:
    stream, version = await flow.metadata.stream(name)
    if stream.head != work.cut:
        stream = replace(stream, head=work.cut)
        await flow.metadata.put_stream(name, stream, version)
    deletions = [flow.segments.delete(name.segment(segment)) for segment in work.delete]
    starts = [flow.segments.truncate(name.segment(segment), start) for segment, start in work.cut.items() if start > 0]
    await together([*deletions, *starts])
    await _forget(flow, name, stream)


async def _forget(flow: Workflows, name: StreamName, stream: StreamRecord) -> None:
    """Forget the epochs well before the head, except those that unfinished transactions, or ones starting now with the
    stream's current ranges, may need."""
    if stream.epoch < EPOCHS_RETAINED:
        return
    history = await flow.metadata.history(name)
    first = min(*history.span(stream.head).values(), stream.reference) - EPOCHS_RETAINED
    if first - history.first >= EPOCHS_FORGOTTEN_AT_ONCE:
        async for _, unfinished in flow.metadata.transactions.scan(f"{name.key}/"):
            first = min(first, unfinished.value.epoch)
    await flow.metadata.forget_epochs(name, first)
