"""Which permission each wire command needs, and on which segments.

One table for both ends: the segment store checks by it, and a client asks for a token by it. Commands
that are not here carry no token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nadi.access.permissions import Permission
from nadi.wire import commands as wire

PERMISSIONS: dict[type[wire.Command], Permission] = {
    wire.ReadSegment: Permission.READ,
    wire.GetStreamSegmentInfo: Permission.READ,
    wire.GetSegmentAttribute: Permission.READ,
    wire.LocateOffset: Permission.READ,
    wire.LocateMoment: Permission.READ,
    wire.GetTableSegmentInfo: Permission.READ,
    wire.ReadTable: Permission.READ,
    wire.ReadTableKeys: Permission.READ,
    wire.ReadTableEntries: Permission.READ,
    wire.ReadTableEntriesDelta: Permission.READ,
    wire.SetupAppend: Permission.READ_UPDATE,
    wire.CreateSegment: Permission.READ_UPDATE,
    wire.CreateTransientSegment: Permission.READ_UPDATE,
    wire.CreateTableSegment: Permission.READ_UPDATE,
    wire.SealSegment: Permission.READ_UPDATE,
    wire.DeleteSegment: Permission.READ_UPDATE,
    wire.DeleteTableSegment: Permission.READ_UPDATE,
    wire.UpdateSegmentPolicy: Permission.READ_UPDATE,
    wire.UpdateSegmentAttribute: Permission.READ_UPDATE,
    wire.TruncateSegment: Permission.READ_UPDATE,
    wire.MergeSegments: Permission.READ_UPDATE,
    wire.MergeSegmentsBatch: Permission.READ_UPDATE,
    wire.UpdateTableEntries: Permission.READ_UPDATE,
    wire.RemoveTableKeys: Permission.READ_UPDATE,
    wire.Scrub: Permission.READ_UPDATE,
}


def segments_of(command: Any) -> Sequence[str]:
    """The segments that a command of the table reads or changes."""
    match command:
        case wire.MergeSegments():
            return (command.target, command.source)
        case wire.MergeSegmentsBatch():
            return (command.target, *command.sources)
        case wire.CreateTransientSegment():
            return (command.parent_segment,)
    return (command.segment,)
