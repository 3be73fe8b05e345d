"""What a durable log says when it is opened, in one go."""

from __future__ import annotations

from nadi.segmentstore.tier1.log import DurableLog, Frame


async def replayed(log: DurableLog, after_sequence: int = 0) -> list[Frame]:
    """Return its frames later than that one; then it can be appended to."""
    return [frame async for frame in log.replay(after_sequence)]
