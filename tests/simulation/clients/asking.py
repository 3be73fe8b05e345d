"""Who asks the controller of a stream's segments, and remembers what it and others were told."""

from __future__ import annotations

from nadi.controller.state.metadata import StreamName
from nadi.errors import NotFoundError

from ..judging.history import History
from ..machine.process import Process
from ..world import World
from .base import Client

_NEWEST = 4  # of the segments: what a controller that was replaced knows least of


class Asker(Client):
    """Asks of the current segments, and then what follows one of those that anybody was told of."""

    def __init__(self, world: World, history: History, name: str, process: Process | None = None) -> None:
        super().__init__(world, history, name, process)
        self.patience_s = 1.0

    async def run(self, stream: StreamName, mean_s: float) -> None:
        told = self.history.told
        while True:
            await self.pause(mean_s)
            before = told.known
            current = await self.control("segments", lambda controller: controller.current_segments(stream))
            told.of_current([segment.id for segment in current], before)
            before = told.known
            segment = self.chance.choice(sorted(before.current)[-_NEWEST:])
            try:
                found = await self.control("successors", lambda controller: controller.successors(stream, segment))  # noqa: B023
            except NotFoundError:
                told.of_none(segment, before)
            else:
                told.of_successors(segment, [successor.id for successor, _ in found], before)
