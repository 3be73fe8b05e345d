"""What a scope's table of bookmarks and slices holds: written by clients, read by them and by retention.

The table has a key `bookmark/<name>` or `slice/<name>` for each, and `Stored` as JSON.
"""

from __future__ import annotations

import msgspec


class Stored(msgspec.Struct, frozen=True):
    """A bookmark (one cut) or a slice (two). cuts: as texts; made_ms: by the clock of whoever made it."""

    stream: str
    cuts: list[str]
    made_ms: int
    note: str = ""
    tags: list[str] = []
