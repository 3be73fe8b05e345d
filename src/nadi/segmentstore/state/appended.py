"""Where the bytes of an append lie, as its operation and its frame say."""

from __future__ import annotations

from nadi.segmentstore.state.operations import Append, AppendBeside
from nadi.segmentstore.state.records import Extent, FrameRef


def extents_of(
    operation: Append, frame: FrameRef, data_at: int, checksum: bytes, *, in_pieces: bool = False
) -> list[Extent]:
    """The extents of an append, in order: what is in a file beside the log, then what is in the frame.

    data_at: where the data area begins in the frame's payload. checksum: of what the append has there. in_pieces:
    whether its segment takes a large event in pieces, so that an append may begin within one.

    >>> frame = FrameRef(9, None, 0.0)
    >>> beside = AppendBeside(7, 100, 50, 8, 1, {}, 0, run=3, run_position=4096, beside_bytes=30, checksum=b"beside")
    >>> [(each.offset, each.length, each.position, each.run) for each in extents_of(beside, frame, 64, b"....")]
    [(100, 30, 4096, 3), (130, 20, 72, 0)]
    """
    extents: list[Extent] = []
    offset = operation.offset
    if isinstance(operation, AppendBeside):
        size, position, checksums = operation.beside_bytes, operation.run_position, operation.checksum
        extents.append(Extent(offset, size, frame, position, checksums=checksums, run=operation.run))
        offset += size
    if operation.logged_bytes:
        extent = Extent(offset, operation.logged_bytes, frame, data_at + operation.position, checksums=checksum)
        extent.continues = offset > operation.offset or (in_pieces and offset > 0)
        extents.append(extent)
    return extents
