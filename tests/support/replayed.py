"""Replay of a durable log in one call."""

from __future__ import annotations

from nadi.segmentstore.tier1.log import DurableLog, Frame


async def replayed(log: DurableLog, after_sequence: int = 0) -> list[Frame]:
    """Return its frames after that sequence; then it accepts appends."""
    return [frame async for frame in log.replay(after_sequence)]
