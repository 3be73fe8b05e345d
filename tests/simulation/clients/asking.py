"""Clients that ask the controller for a stream's segments, and check the answers for contradictions."""

from __future__ import annotations

from nadi.controller.state.metadata import StreamName
from nadi.errors import NotFoundError

from ..judging.history import History
from ..machine.process import Process
from ..world import World
from .base import Client

_NEWEST = 4  # of the segments, which a deposed controller is least likely to know


class Asker(Client):
    """Asks for the current segments, and then for the successors of a known segment."""

    def __init__(self, world: World, history: History, name: str, process: Process | None = None) -> None:
        super().__init__(world, history, name, process)
        self.patience_s = 1.0

    async def run(self, stream: StreamName, mean_s: float) -> None:
        answers = self.history.answers
        while True:
            await self.pause(mean_s)
            before = answers.known
            current = await self.control("segments", lambda controller: controller.current_segments(stream))
            answers.add_current([segment.id for segment in current], before)
            before = answers.known
            segment = self.chance.choice(sorted(before.current)[-_NEWEST:])
            try:
                found = await self.control("successors", lambda controller: controller.successors(stream, segment))  # noqa: B023
            except NotFoundError:
                answers.add_missing(segment, before)
            else:
                answers.add_successors(segment, [successor.id for successor, _ in found], before)
