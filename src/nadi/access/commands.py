"""Map wire commands to acts on segments.

Both ends use this table: the segment store to check commands, a client to request tokens. `nadi.access.names` defines
the permissions that an act needs. Commands not listed here carry no token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nadi.access.names import Act
from nadi.access.permissions import Permission
from nadi.naming import transient_segment_name
from nadi.wire import commands as wire

ACTS: dict[type[wire.Command], Act] = {
    wire.ReadSegment: Act.READ,
    wire.GetStreamSegmentInfo: Act.READ,
    wire.GetSegmentAttribute: Act.READ,
    wire.LocateOffset: Act.READ,
    wire.LocateMoment: Act.READ,
    wire.LocateChunks: Act.READ,
    wire.ListMoments: Act.READ,
    wire.ListEventSizes: Act.READ,
    wire.GetSegmentLoads: Act.READ,  # on a name that only the server may read
    wire.GetTableSegmentInfo: Act.READ,
    wire.ReadTable: Act.READ,
    wire.ReadTableKeys: Act.READ,
    wire.ReadTableEntries: Act.READ,
    wire.ReadTableEntriesDelta: Act.READ,
    wire.SetupAppend: Act.WRITE,
    wire.UpdateSegmentAttribute: Act.WRITE,
    wire.IndexTimes: Act.WRITE,
    wire.UpdateTableEntries: Act.WRITE,
    wire.UpdateTableToFreeSpace: Act.FREE_SPACE,
    wire.RemoveTableKeys: Act.WRITE,
    wire.CreateTransientSegment: Act.WRITE,  # on the parent, which must be of a kind with transient segments
    wire.MergeSegments: Act.WRITE,  # on the target
    wire.MergeSegmentsBatch: Act.WRITE,
    wire.TruncateSegment: Act.TRUNCATE,
    wire.SealSegment: Act.SEAL,
    wire.CreateTableSegment: Act.CREATE,
    wire.DeleteTableSegment: Act.DELETE,
    wire.CreateSegment: Act.CREATE,
    wire.DeleteSegment: Act.DELETE,
    wire.UpdateSegmentPolicy: Act.CHANGE,
    wire.Scrub: Act.WRITE,
}


def token_permission(kind: type[wire.Command]) -> Permission:
    """Return the permission that a client's token needs for such a command."""
    return Permission.READ if ACTS[kind] is Act.READ else Permission.READ_UPDATE


def acts_of(command: Any) -> Sequence[tuple[str, Act]]:
    """Return (segment, act) for each segment that a command names; the command must be in the table."""
    act = ACTS[type(command)]
    match command:
        case wire.MergeSegments():
            return ((command.target, act), (command.source, Act.MERGE))
        case wire.MergeSegmentsBatch():
            return ((command.target, act), *((source, Act.MERGE) for source in command.sources))
        case wire.CreateTransientSegment():
            transient = transient_segment_name(command.parent_segment, command.writer_id, bytes(16))
            return ((command.parent_segment, act), (transient, act))
    return ((command.segment, act),)
