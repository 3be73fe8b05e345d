"""What a scrub reports: how far a pass over everything in a segment store has come, or what it found."""

from __future__ import annotations

import msgspec


class ScrubPass(msgspec.Struct, omit_defaults=True):
    """One pass. Times are in ms since 1970; `ended_ms` is 0 while it runs.

    asked: somebody waits for it; else it is the weekly one. read_bytes: of segments' data so far, of total_bytes.
    records, state_bytes, snapshot_bytes: of the states and their snapshots, so far. rewritten_bytes: of chunks that
    were stored again, as their description was damaged.
    damages: how many damaged places were found; `damaged` describes the first of them in words.
    renewals: how many damaged places cost nothing because there is another copy of what they held;
    `renewed` describes the first of them.
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
    """The running pass and the last finished one; None if there is none.

    >>> msgspec.json.decode(b'{"last": {"begun_ms": 5, "ended_ms": 9}}', type=ScrubReport).last.damages
    0
    """

    running: ScrubPass | None = None
    last: ScrubPass | None = None
