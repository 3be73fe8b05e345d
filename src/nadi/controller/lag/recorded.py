"""How much of a stream a group has not read, in bytes, for what scales with it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from nadi.controller.engine.workflows import Workflows
from nadi.controller.lag import states
from nadi.controller.lag.behind import bytes_behind
from nadi.controller.retention.past import look
from nadi.controller.state.metadata import GroupName, StreamName


class RecordedLag:
    """From the positions that the readers of nadi's groups record. otherwise: asked where there are none."""

    def __init__(self, flow: Workflows, otherwise: Callable[[GroupName, StreamName], Awaitable[int]]) -> None:
        self._flow, self._otherwise = flow, otherwise

    async def bytes_behind(self, group: GroupName, stream: StreamName) -> int:
        """Bytes of the stream that the group hasn't read; ReaderGroupNotFoundError, StreamNotFoundError, and what
        `otherwise` raises."""
        found = await states.look(self._flow, group)
        for standing in found.standings:
            if standing.stream == stream and standing.cut is not None and standing.source == states.BY_READERS:
                past = await look(self._flow, stream)
                behind = await bytes_behind(self._flow, past, standing.cut, standing.end)
                if behind.size is not None:
                    return behind.size
        return await self._otherwise(group, stream)
