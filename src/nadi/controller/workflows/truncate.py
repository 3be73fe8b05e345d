"""Cut off the old end of a stream at a stream cut.

The head moves first, so a reader that finds its data gone asks for the head and gets the new one.
Segments before the cut are deleted and those in it are truncated. Epochs are kept forever, because old
stream cuts are read through them.
"""

from __future__ import annotations

from msgspec.structs import replace

from nadi.controller.engine.comparisons import ask
from nadi.controller.engine.workflows import Workflows
from nadi.controller.state.history import Cut, History
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import TruncateWork
from nadi.controller.state.segments import together
from nadi.errors import InvalidStreamCutError


async def begin(flow: Workflows, name: StreamName, cut: Cut) -> TruncateWork:
    stream = await flow.metadata.open_stream(name)
    history = await flow.metadata.history(name)
    delete, truncated_bytes = await ask(flow.clock, history, lambda known: _passed(known, name, stream.head, cut))
    await _check_ends(flow, name, cut)
    return TruncateWork(dict(cut), delete, stream.truncated_bytes + truncated_bytes)


def _passed(history: History, name: StreamName, head: Cut, cut: Cut) -> tuple[tuple[int, ...], int]:
    """The segments that lie before the cut, and how many bytes do; InvalidStreamCutError if it isn't a valid cut."""
    if not history.is_valid_cut(cut):
        raise InvalidStreamCutError(f"not a stream cut of {name}: take one from a reader group or the stream")
    head = head or history.head_of_time()
    if not history.is_at_or_after(cut, head):
        raise InvalidStreamCutError(f"{name} is truncated beyond this stream cut already")
    delete = tuple(segment for segment in history.between(head, cut) if segment not in cut)
    return delete, history.size_between(head, cut)


async def _check_ends(flow: Workflows, name: StreamName, cut: Cut) -> None:
    """Refuse a head past the end of a segment: it would forever hide what is written there later."""

    async def check(segment: str, offset: int) -> None:
        length = await flow.segments.length(segment)
        if offset > length:
            raise InvalidStreamCutError(f"offset {offset:,} lies past the end of segment {segment}, at {length:,}")

    await together(check(name.segment(segment), offset) for segment, offset in cut.items() if offset > 0)


async def steps(flow: Workflows, name: StreamName, work: TruncateWork) -> None:
    stream, version = await flow.metadata.stream(name)
    if stream.head != work.cut:
        stream = replace(stream, head=work.cut, truncated_bytes=work.truncated_bytes)
        await flow.metadata.put_stream(name, stream, version)
    await together(
        [
            *(flow.segments.delete(name.segment(segment)) for segment in work.delete),
            *(
                flow.segments.truncate(name.segment(segment), offset)
                for segment, offset in work.cut.items()
                if offset > 0
            ),
        ]
    )
