"""Reports of a scrub: progress and results of a pass over all data in a segment store."""

from __future__ import annotations

import msgspec


class ScrubPass(msgspec.Struct, omit_defaults=True):
    """A scrub pass. Times are in ms since 1970; `ended_ms` is 0 while it runs.

    requested: started by a request rather than the weekly schedule. read_bytes: segment data read so far, of
    total_bytes. records, state_bytes, snapshot_bytes: of states and snapshots read so far. rewritten_bytes: of chunks
    rewritten because their metadata was damaged. damages: number of damaged ranges; `damaged` describes the first of
    them. renewals: number of damaged ranges restored from another copy; `renewed` describes the first of them.
    """

    started_ms: int
    requested: bool = False
    ended_ms: int = 0
    read_bytes: int = 0
    total_bytes: int = 0
    records: int = 0
    state_bytes: int = 0
    snapshot_bytes: int = 0
    rewritten_bytes: int = 0
    damages: int = 0
    damaged: list[str] = []
    renewals: int = 0
    renewed: list[str] = []


class ScrubReport(msgspec.Struct, omit_defaults=True):
    """The running pass and the last finished one, or None.

    >>> msgspec.json.decode(b'{"last": {"started_ms": 5, "ended_ms": 9}}', type=ScrubReport).last.damages
    0
    """

    running: ScrubPass | None = None
    last: ScrubPass | None = None
