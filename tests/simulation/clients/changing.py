"""Clients that change streams: scale, truncate, create and delete them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import EpochSegment, StreamConfigRecord
from nadi.errors import ConflictError, InvalidArgumentError, NotFoundError

from .appending import Appender
from .base import Client


def replacement(segments: Sequence[EpochSegment], chance: random.Random) -> tuple[list[int], list[tuple[float, float]]]:
    """Choose segments to seal, and the key ranges of their replacements."""
    at = chance.randrange(len(segments))
    if len(segments) < 4 and at < 3:
        low, high = segments[at].low, segments[at].high
        return [segments[at].id], [(low, (low + high) / 2), ((low + high) / 2, high)]
    at = min(at, len(segments) - 2)
    one, other = segments[at : at + 2]
    return [one.id, other.id], [(one.low, other.high)]


class Scaler(Client):
    """Splits segments and merges neighbours."""

    async def run(self, stream: StreamName, mean_s: float) -> None:
        while True:
            await self.pause(mean_s)
            segments = list(await self.control("segments", lambda controller: controller.current_segments(stream)))
            sealed, ranges = replacement(segments, self.chance)
            try:
                await self.control("scale", lambda controller: controller.scale(stream, sealed, ranges))  # noqa: B023
            except (ConflictError, InvalidArgumentError):
                pass


class Truncater(Client):
    async def run(self, stream: StreamName, mean_s: float) -> None:
        while True:
            await self.pause(mean_s)
            segments = await self.control("segments", lambda controller: controller.current_segments(stream))
            cut: dict[int, int] = {}
            for segment in segments:
                ends = await self.length(stream.segment(segment.id))
                if ends is None:
                    break
                cut[segment.id] = ends[1]
            else:
                self.history.cuts.setdefault(stream.key, []).append(cut)
                try:
                    await self.control("truncate", lambda controller: controller.truncate_stream(stream, cut))  # noqa: B023
                except (ConflictError, InvalidArgumentError):
                    pass


class Deleter(Client):
    """Creates short-lived streams."""

    async def run(self, mean_s: float) -> None:
        for number in itertools.count(1):
            await self.pause(mean_s)
            await self._one(StreamName("home", f"{self.name}-{number}"))

    async def _one(self, stream: StreamName) -> None:
        try:
            await self.control(
                "create", lambda controller: controller.create_stream(stream, StreamConfigRecord(min_segments=2))
            )
        except ConflictError:
            pass  # an earlier reply was lost
        segments = await self.control("segments", lambda controller: controller.current_segments(stream))
        writer = Appender(self.world, self.history, f"{self.name}/{stream.stream}", self.process)
        await writer.append(stream.segment(segments[0].id), b"gone", 1)
        await self.control("seal", lambda controller: controller.seal_stream(stream))
        try:
            await self.control("delete", lambda controller: controller.delete_stream(stream))
        except NotFoundError:
            pass  # an earlier reply was lost
        for segment in segments:
            assert await self.length(stream.segment(segment.id)) is None, f"{stream} is deleted"
