"""Fetching extents that are in the log, or in a file beside it.

Of small appends there is an extent for each. Fetched one by one they would each cost a thread, or a call to the store
that keeps the log; so those of a segment that follow each other are fetched together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nadi.errors import CorruptLogError, NotFoundError, UnavailableError
from nadi.limits import MIB
from nadi.segmentstore.container.container import Container
from nadi.segmentstore.reading.fetched import Fetched
from nadi.segmentstore.state.records import Extent
from nadi.segmentstore.tier1.log import Part, PartRead

TOGETHER_BYTES, TOGETHER_EXTENTS = 4 * MIB, 4_096  # for whoever needs all of them
AHEAD_BYTES, AHEAD_EXTENTS = MIB // 4, 64  # for a reader, who waits for the first of them


async def of_log(container: Container, extents: Sequence[Extent]) -> list[Fetched]:
    """Extents of the log, each checked.

    Raises:
        UnavailableError: the log can't be read.
    """
    parts = []
    for extent in extents:
        assert extent.frame is not None
        assert extent.frame.address is not None
        parts.append(Part(extent.frame.address, extent.position, extent.length, extent.checksums))
    try:
        found = await container.log.read_parts(parts)
    except OSError as error:
        raise UnavailableError(f"the log can't be read: {error}") from error
    return [_fetched(extent.length, data) for extent, data in zip(extents, found, strict=True)]


async def of_run(container: Container, extent: Extent) -> Fetched:
    """An extent beside the log, checked. Raises: as `of_log`."""
    assert container.runs is not None
    data: PartRead
    try:
        data = await container.runs.read_at(extent.run, extent.position, extent.length, extent.checksums)
    except (NotFoundError, CorruptLogError) as error:
        data = error
    except OSError as error:
        raise UnavailableError(f"the log can't be read: {error}") from error
    return _fetched(extent.length, data)


def _fetched(length: int, found: PartRead) -> Fetched:
    if isinstance(found, CorruptLogError):
        return Fetched(b"", 0, length, {0: f"{found.what}, at byte {found.offset:,} of {found.file}"}, length)
    if isinstance(found, NotFoundError):
        return Fetched(b"", 0, length, {0: str(found)}, length)
    return Fetched(found, 0, length, {}, length)


def following(
    extents: Sequence[Extent], first: int, is_at_hand: Callable[[Extent], bool], most_bytes: int, most: int
) -> list[Extent]:
    """The extent number `first`, and those after it that can be fetched from the log with it: up to a chunk, or a file
    beside the log, and without those at hand. `most` of them at most, with `most_bytes`, unless the first has more."""
    chosen, size = [extents[first]], extents[first].length
    for number in range(first + 1, min(first + most, len(extents))):
        extent = extents[number]
        if extent.frame is None or extent.frame.address is None or extent.run or size + extent.length > most_bytes:
            break
        if not is_at_hand(extent):
            chosen.append(extent)
            size += extent.length
    return chosen
