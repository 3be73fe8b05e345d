"""The file in which the scrub keeps its progress, so that a restart costs only seconds of a pass."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
from crc32c import crc32c

from nadi.model.scrub import ScrubPass
from nadi.segmentstore.state.checked import TABLES
from nadi.segmentstore.tier1.disk import replace_file

log = logging.getLogger(__name__)


class Place(msgspec.Struct):
    """Where a pass resumes: after `key` in a table of a container's state, then at `offset` of a segment."""

    container: int = 0
    table: int = 0  # in TABLES; after the last one the state has been read, and its snapshot follows
    key: bytes = b""
    is_data: bool = False  # all states and snapshots were read
    segment: int = 0
    offset: int = 0

    def check(self, containers: int) -> None:
        """ValueError where a store of so many containers has no such place."""
        is_there = 0 <= self.container < containers and 0 <= self.table <= len(TABLES)
        if not (is_there and 0 <= self.segment < 1 << 63 and self.offset >= 0):
            raise ValueError("it tells of a place that isn't there")


class Kept(msgspec.Struct):
    """The file: `since_ms` is when the folder was first served, from which the first week counts."""

    since_ms: int
    running: ScrubPass | None = None
    last: ScrubPass | None = None
    place: Place = msgspec.field(default_factory=Place)


def encode(kept: Kept) -> bytes:
    """One line: JSON, a space, and its checksum."""
    raw = msgspec.json.encode(kept)
    return b"%b %08x\n" % (raw, crc32c(raw))


def decode(data: bytes) -> Kept:
    """ValueError where it isn't what was kept, or an earlier version kept it, which had no checksum: else a damaged
    place would let the pass skip what lies before it, and find that nothing is damaged."""
    raw, _, crc = data.rpartition(b" ")
    if crc != b"%08x\n" % crc32c(raw):
        raise ValueError("its checksum is wrong or missing")
    return msgspec.json.decode(raw, type=Kept)


def read(file: Path, containers: int) -> Kept:
    """What was kept; OSError, or ValueError where it is damaged, or of another store."""
    kept = decode(file.read_bytes())
    if kept.running is not None:  # else it is where the last pass ended
        kept.place.check(containers)
    return kept


def write(file: Path, data: bytes) -> None:
    """Write it completely or not at all; what a full disk has no room for is written the next time."""
    try:
        replace_file(file, data)
    except OSError as error:
        log.warning("where the scrub is can't be kept: %s", error)
