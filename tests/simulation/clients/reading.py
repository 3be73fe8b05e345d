"""Clients that read all segments of streams, repeatedly."""

from __future__ import annotations

from nadi.controller.state.metadata import StreamName
from nadi.wire import commands as wire

from ..judging.history import History
from ..machine.process import Process
from ..world import World
from .base import AWAY, Client


class Reader(Client):
    """Reads on in all segments of streams, and occasionally from the start again."""

    def __init__(
        self, world: World, history: History, name: str, streams: list[StreamName], process: Process | None = None
    ) -> None:
        super().__init__(world, history, name, process)
        self.streams = streams
        self._offsets: dict[str, int] = {}

    async def run(self, mean_s: float) -> None:
        while True:
            await self.pause(mean_s)
            if self.chance.random() < 0.05:
                self._offsets.clear()
            await self.read_on(self.chance.choice(self.streams))

    async def read_on(self, stream: StreamName) -> dict[str, tuple[int, int]]:
        """Read to the end; return where the existing segments start and end."""
        epochs = await self.control("history", lambda controller: controller.history(stream))
        ends_by_name: dict[str, tuple[int, int]] = {}
        for segment in list(epochs.segments):
            name = stream.segment(segment)
            ends = await self.length(name)
            if ends is not None:
                ends_by_name[name] = ends
                await self._read(name, *ends)
        return ends_by_name

    async def _read(self, segment: str, start: int, end: int) -> None:
        at = max(self._offsets.get(segment, start), start)
        while at < end:
            command = wire.ReadSegment(segment, at, self.chance.choice([200, 5_000, 1 << 20]), "", self.id())
            reply = await self.sure(command)
            if isinstance(reply, AWAY):
                return
            assert isinstance(reply, wire.SegmentRead), reply
            at += self.history.read(segment, at, bytes(reply.data))
            self._offsets[segment] = at
