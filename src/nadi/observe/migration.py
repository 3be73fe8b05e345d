"""What a server says while its writers are held for a migration. Reports that travel as JSON."""

from __future__ import annotations

import msgspec


class HeldContainer(msgspec.Struct, frozen=True):
    """All that a container was ever told is in tier 2, in the snapshot of that frame."""

    number: int
    sequence: int


class HoldReport(msgspec.Struct, frozen=True):
    """hold: its id. store: the id of the one that has everything. left_s: until the writers go on by themselves."""

    hold: str
    store: str
    left_s: float
    containers: list[HeldContainer]
