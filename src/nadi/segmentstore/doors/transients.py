"""The transient segments of a connection, which end with it: a writer of large events creates and merges one each."""

from __future__ import annotations

import asyncio
import logging

from nadi.errors import NotOwnerError, SegmentNotFoundError, UnavailableError
from nadi.segmentstore.doors.service import SegmentService
from nadi.wire import commands as wire

log = logging.getLogger(__name__)

_background: set[asyncio.Task[None]] = set()


class Transients:
    """Those created on the connection, and not yet merged or deleted there."""

    def __init__(self, service: SegmentService) -> None:
        self._service = service
        self._names: set[str] = set()

    def note(self, command: wire.Command, reply: wire.Command) -> None:
        if isinstance(command, wire.CreateTransientSegment) and isinstance(reply, wire.SegmentCreated):
            self._names.add(reply.segment)
        elif not self._names:
            return
        elif isinstance(reply, wire.SegmentsMerged):
            self._names.discard(reply.source)
        elif isinstance(command, wire.MergeSegmentsBatch) and isinstance(reply, wire.SegmentsBatchMerged):
            self._names.difference_update(command.sources)
        elif isinstance(reply, wire.SegmentDeleted):
            self._names.discard(reply.segment)

    def drop(self) -> None:
        """Delete them: the connection is gone."""
        if self._names:
            names, self._names = self._names, set()
            task = asyncio.create_task(self._delete(names))
            _background.add(task)
            task.add_done_callback(_background.discard)

    async def _delete(self, names: set[str]) -> None:
        for name in sorted(names):
            try:
                await self._service.delete(name)
            except (SegmentNotFoundError, NotOwnerError):
                pass  # it was merged, or whoever takes over its container ends it
            except UnavailableError as error:
                log.warning("transient segment %s stays for now: %s", name, error, extra={"segment": name})
