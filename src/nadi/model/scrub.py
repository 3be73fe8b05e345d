"""What a scrub tells: how far a pass over everything that a segment store keeps is, or what it found."""

from __future__ import annotations

import msgspec


class ScrubPass(msgspec.Struct, omit_defaults=True):
    """One pass. Times are in ms since 1970; `ended_ms` is 0 while it goes on.

    asked: somebody waits for it; else it is the weekly one. read_bytes: of segments' data so far, of total_bytes.
    records, state_bytes, snapshot_bytes: of the states, and of their snapshots, so far. rewritten_bytes: of chunks of
    earlier versions, which had no checksums, and of those whose description was damaged: they were stored anew.
    damages: how many damaged places were found; `damaged` tells the first of them in words.
    renewals: how many places were found damaged of which nothing is lost, for there is another copy of what they said;
    `renewed` tells the first of them.
    """

    begun_ms: int
    asked: bool = False
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
    """The pass under way, and the last that came to its end; None where there is none.

    >>> msgspec.json.decode(b'{"last": {"begun_ms": 5, "ended_ms": 9}}', type=ScrubReport).last.damages
    0
    """

    running: ScrubPass | None = None
    last: ScrubPass | None = None
