"""What of a segment moves from the log to tier 2 next: a run of its extents, or a whole file beside the log.

A file beside the log that this owner has written becomes a chunk as it is (`tier1.runfile`): its extents, and those of
the log in between, whose bytes it has too, move together. What a former owner left in such a file, or what a truncation
or a merge tore apart, is copied as what lies in the log is.
"""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple

from nadi.limits import CHUNK_FLUSH_BYTES
from nadi.segmentstore.state.records import Extent, SegmentRecord
from nadi.segmentstore.tier1.runfile import RunFile
from nadi.segmentstore.tier1.runs import RunFiles


class Move(NamedTuple):
    """Consecutive extents of a segment, which become one chunk. file: that has all of them; None: they are copied."""

    extents: list[Extent]
    size_bytes: int
    file: RunFile | None = None

    @property
    def is_large(self) -> bool:
        """Whether it is worth a chunk before its time."""
        return self.file is not None or self.size_bytes >= CHUNK_FLUSH_BYTES


def next_move(
    record: SegmentRecord,
    moving: Container[Extent],
    runs: RunFiles | None,
    most_bytes: int,
    due_before: float,
    *,
    adopts: bool = True,
) -> Move | None:
    """The segment's first extents in a row that can be moved; of those to be copied, up to `most_bytes`.

    due_before: files that were begun earlier, on the monotonic clock, take no more, so that they can be moved. Others
    are left alone until they are full. adopts: whether tier 2 takes a file as it is; otherwise its extents are copied,
    checked as they are read, once nothing is written to it any more.
    """
    copied: list[Extent] = []
    size, index, extents = 0, 0, record.extents
    while index < len(extents):
        extent = extents[index]
        file = runs.written(extent.run) if runs is not None and extent.run and not extent.position else None
        if file is not None:
            assert runs is not None
            assert extent.frame is not None
            end, is_whole = of_file(extents, index, file)
            if extent.frame.at < due_before and not file.closed:
                runs.close_file(file)
            if is_whole or not file.closed:
                whole = extents[index:end]
                if copied:
                    break
                if file.is_settled and not adopts:
                    runs.forget(file)
                    continue
                if file.is_settled and all(_is_movable(one, moving) for one in whole):
                    return Move(whole, file.length, file)
                index = end
                continue
        if not _is_movable(extent, moving) or (copied and size + extent.length > most_bytes):
            if copied:
                break
        else:
            copied.append(extent)
            size += extent.length
        index += 1
    return Move(copied, size) if copied else None


def of_file(extents: list[Extent], first: int, file: RunFile) -> tuple[int, bool]:
    """Where the extents end that lie in a file, of which the one at `first` is the start; and whether they are all of
    it. An extent elsewhere, or at another distance, shows that a truncation or a merge came in between; one that is
    damaged stays where it is."""
    begin = extents[first].offset
    end, index = begin + file.length, first
    while index < len(extents) and extents[index].offset < end:
        extent = extents[index]
        place = extent.run, extent.position
        if extent.frame is None or extent.aside or (extent.run and place != (file.number, extent.offset - begin)):
            return index, False
        index += 1
    return index, extents[index - 1].end == end


def _is_movable(extent: Extent, moving: Container[Extent]) -> bool:
    is_durable = extent.frame is not None and extent.frame.address is not None
    return is_durable and not extent.aside and extent not in moving
