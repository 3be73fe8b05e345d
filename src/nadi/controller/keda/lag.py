"""How much of a stream a reader group has not read yet, or why that isn't known."""

from __future__ import annotations

from nadi.controller.engine.workflows import Workflows
from nadi.controller.lag.behind import bytes_behind
from nadi.controller.lag.states import standing
from nadi.controller.retention.past import look
from nadi.controller.state.metadata import GroupName, StreamName
from nadi.controller.state.records import GroupRetention
from nadi.errors import ConflictError


async def unread(flow: Workflows, name: GroupName, stream: StreamName) -> int:
    """Bytes of the stream's events that the group hasn't read; ReaderGroupNotFoundError, StreamNotFoundError, and
    ConflictError with the reason where that isn't known.

    A group that holds retention back and has published nothing yet stands where it starts.
    """
    group = (await flow.metadata.group(name)).value
    await flow.metadata.stream(stream)
    if stream.key not in group.config.starts:
        raise ConflictError(f"the reader group {name} doesn't read {stream}: name a group that does")
    standings = (await standing(flow, name, group)).standings
    mine = next((one for one in standings if one.stream == stream), None)
    cut, end = (mine.cut, mine.end) if mine is not None else (None, None)
    if cut is None and group.config.retention_type is not GroupRetention.NONE:
        cut = group.config.starts[stream.key]
    why = mine.why if mine is not None else "it has no position in this stream"
    if cut is not None:
        behind = await bytes_behind(flow, await look(flow, stream), cut, end)
        if behind.size is not None:
            return behind.size
        why = behind.why
    raise ConflictError(
        f"how much of {stream} the reader group {name} has not read isn't known: {why}; make it one that holds "
        "retention back, or choose another metric"
    )
