"""How much of a stream a reader group has not read yet."""

from __future__ import annotations

from typing import Protocol

from nadi.controller.engine.workflows import Workflows
from nadi.controller.retention.past import look
from nadi.controller.state.metadata import GroupName, StreamName
from nadi.controller.state.records import GroupRetention
from nadi.errors import ConflictError, InvalidStreamCutError


class GroupLag(Protocol):
    """Where the lag of a group is known from."""

    async def bytes_behind(self, group: GroupName, stream: StreamName) -> int:
        """Bytes of the stream's events that the group hasn't read; ReaderGroupNotFoundError, StreamNotFoundError,
        ConflictError with the reason where that isn't known."""
        ...


class PublishedLag:
    """From the stream cuts that groups publish for retention: what they have read and not published counts as unread.

    A group that has published none stands where it starts.
    """

    def __init__(self, flow: Workflows) -> None:
        self._flow = flow

    async def bytes_behind(self, group: GroupName, stream: StreamName) -> int:
        config = (await self._flow.metadata.group(group)).value.config
        await self._flow.metadata.stream(stream)
        if stream.key not in config.starts:
            raise ConflictError(f"the reader group {group} doesn't read {stream}: name a group that does")
        found = await self._flow.metadata.subscribers(stream).get(group.key, fresh=True)
        if found is None or config.retention_type is GroupRetention.NONE:
            raise ConflictError(
                f"how much of {stream} the reader group {group} has not read isn't known, for it doesn't publish where "
                "it is: make it one that holds retention back, or choose another metric"
            )
        past = await look(self._flow, stream)
        try:
            return past.bytes_after(found.value.cut or config.starts[stream.key])
        except InvalidStreamCutError:  # so much was truncated since that its segments are forgotten: all is unread
            return past.kept_bytes
