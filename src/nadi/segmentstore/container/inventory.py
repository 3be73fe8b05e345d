"""What a container's state names must exist: checked once at the start, by names and sizes. What is missing is logged,
listed in the container, and left in place; everything else is served.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from nadi.errors import DamagedDataError, UnavailableError
from nadi.segmentstore.container.container import Container
from nadi.segmentstore.state.records import Extent, SegmentRecord
from nadi.segmentstore.tier1.runs import run_name
from nadi.segmentstore.tier2.chunks import ChunkStore

log = logging.getLogger(__name__)


async def take(container: Container, chunks: ChunkStore) -> None:
    """Note what is missing in `container.damage`, and set it aside. Nothing else uses the container meanwhile."""
    state = container.state
    in_memory = {record.id: record for record in state.record_cache.all()}
    folder = f"container-{container.number}/"

    def missing_on_disk() -> tuple[dict[str, int], dict[int, set[int]]]:
        """The sizes of all chunks, and the offsets of extents without a chunk, of segments not in memory."""
        sizes = chunks.sizes(folder)
        found: dict[int, set[int]] = {}
        for segment, offset, length, chunk in state.metadata.chunks():
            if sizes.get(chunk, -1) < length and segment not in in_memory and segment not in state.record_cache.deleted:
                found.setdefault(segment, set()).add(offset)
        return sizes, found

    sizes: dict[str, int] | None = None
    found: dict[int, set[int]] = {}
    if chunks.is_here:  # a listing elsewhere takes long, and whoever reads a chunk learns whether it is there
        try:
            sizes, found = await chunks.runtime.in_thread(missing_on_disk)
        except UnavailableError as error:
            log.warning("container %d: %s; readers are told if a chunk is missing", container.number, error)
    for record in in_memory.values():
        _note(container, record, (extent for extent in record.extents if _is_missing(container, extent, sizes)))
    for segment, offsets in found.items():
        record_of = state.by_id(segment)
        if record_of is not None:
            _note(container, record_of, (extent for extent in record_of.extents if extent.offset in offsets))


def _is_missing(container: Container, extent: Extent, sizes: dict[str, int] | None) -> bool:
    if extent.frame is None:
        return sizes is not None and sizes.get(extent.chunk, -1) < extent.length
    address = extent.frame.address
    assert address is not None, "nothing is written before the inventory"
    end = extent.position + extent.length
    if extent.run:
        return extent.aside or container.runs is None or not container.runs.has(extent.run, end)
    return extent.aside or not container.log.has(address, end)


def _note(container: Container, record: SegmentRecord, extents: Iterable[Extent]) -> None:
    for extent in extents:
        container.state.set_aside(extent)
        container.damage.note(DamagedDataError(record.name, extent.offset, extent.end, _reason(extent)))


def _reason(extent: Extent) -> str:
    if extent.frame is None:
        return f"chunk {extent.chunk} is missing or too short"
    assert extent.frame.address is not None
    if extent.run:
        return f"file {run_name(extent.run)} beside the log is missing, too short, or damaged there"
    return f"file {extent.frame.address.file} of the log is missing, too short, or damaged there"
