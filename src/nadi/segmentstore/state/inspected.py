"""What a walk over a state's file has found: told from one process to another, by `pages` to `statecheck`."""

from __future__ import annotations

import msgspec


class Inspected(msgspec.Struct, frozen=True):
    """damage: empty where all is as it should be. checked: whether values have checksums. sequence: of the last frame
    that the state reflects. records: their number by table."""

    damage: str
    checked: bool = False
    sequence: int = 0
    records: dict[str, int] = {}
