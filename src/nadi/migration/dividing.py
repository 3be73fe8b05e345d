"""The states of the target's containers, written from those of the source: each record goes to the container of its
segment, under the segment's new number. Nothing is in a log any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import lmdb

from nadi.errors import DamagedStateError
from nadi.limits import MIGRATION_ROWS
from nadi.migration.copying import Copier
from nadi.migration.division import Division
from nadi.migration.states import States
from nadi.segmentstore.state.check import STATE_FILE, inspect_file
from nadi.segmentstore.state.metadata import Metadata
from nadi.segmentstore.state.stored import (
    EXTENT,
    ID,
    Change,
    ContainerState,
    bounded_key,
    decode_segment,
    state_change,
    unpack_chunk,
    unpack_entry,
)

Placed = Iterator[tuple[int, Change]]  # with the container
_AS_THEY_ARE = ("attributes", "positions", "times")  # but for the number that their keys begin with
_TABLES = ("names", "segments", "extents", "entries", *_AS_THEY_ARE)


class Divided:
    """What was written. counts: records by table, in all containers together."""

    def __init__(self, counts: Counter[str], chunks: set[str]) -> None:
        self.counts, self.chunks = counts, chunks

    @property
    def segments(self) -> int:
        return self.counts["segments"]


class Divider:
    """states: of the source; everything that they name was copied by `copier`."""

    def __init__(self, states: States, division: Division, copier: Copier) -> None:
        self._states, self._division, self._copied = states, division, copier.copied
        self._containers: dict[tuple[int, int], int] = {}  # of the target, by container and number in the source
        self._chunks: set[str] = set()

    def write(self, folders: list[Path], sequence: int, *, durable: bool) -> Divided:
        """Write the states into these folders, one for each container, and check them; blocking.

        sequence: the last frame that they reflect. durable: they are to stay where they are.

        Raises:
            DamagedStateError: a state of the source is damaged.
            StorageFullError, UnavailableError, OSError: a state can't be written.
        """
        targets = [Metadata(folder, number, durable=durable) for number, folder in enumerate(folders)]
        try:
            counts = self._written(targets, sequence)
        finally:
            for target in targets:
                target.close()
        self._check(folders, counts)
        return Divided(counts, self._chunks)

    def _written(self, targets: list[Metadata], sequence: int) -> Counter[str]:
        counts: Counter[str] = Counter()
        waiting: list[list[Change]] = [[] for _ in targets]
        for part in (self._segments(), self._extents(), self._entries(), self._others()):
            for container, change in part:
                counts[change[0]] += 1
                waiting[container].append(change)
                if len(waiting[container]) >= MIGRATION_ROWS:
                    _commit(targets[container], waiting[container])
                    waiting[container] = []
        next_segment = self._states.next_segment(self._division)
        transients: list[list[int]] = [[] for _ in targets]
        for source, segment in self._states.transients():
            number = self._division.number(source, segment)
            transients[self._containers[source, segment]].append(number)
        for target, rows, gone in zip(targets, waiting, transients, strict=True):
            own = ContainerState(sequence, next_segment, [], [], gone)
            _commit(target, [*rows, state_change(own)])
        return counts

    def _segments(self) -> Placed:
        for source, key, value in self._states.rows("segments"):
            segment, name = ID.unpack(key)[0], decode_segment(value).name
            container = self._division.container(name)
            self._containers[source, segment] = container
            number = ID.pack(self._division.number(source, segment))
            yield container, ("segments", number, value)
            yield container, ("names", bounded_key(name.encode()), number)

    def _place(self, source: int, key: bytes) -> tuple[int, bytes]:
        """The container, and the new start of a key."""
        segment = ID.unpack_from(key)[0]
        return self._containers[source, segment], ID.pack(self._division.number(source, segment))

    def _extents(self) -> Placed:
        for source, key, value in self._states.rows("extents"):
            container, number = self._place(source, key)
            name, _ = unpack_chunk(value)
            new = self._division.chunk(container, source, name)
            self._chunks.add(new)
            placed = value[: EXTENT.size] + new.encode() + b"\0" + self._copied[source, name]
            yield container, ("extents", number + key[ID.size :], placed)

    def _entries(self) -> Placed:
        for source, key, value in self._states.rows("entries"):
            container, number = self._place(source, key)
            yield container, ("entries", bounded_key(number + unpack_entry(value)[0]), value)

    def _others(self) -> Placed:
        for table in _AS_THEY_ARE:
            for source, key, value in self._states.rows(table):
                container, number = self._place(source, key)
                yield container, (table, number + key[ID.size :], value)

    def _check(self, folders: list[Path], counts: Counter[str]) -> None:
        """That the states are sound, and have as many records together as the source, and as were written."""
        found: Counter[str] = Counter()
        for number, folder in enumerate(folders):
            inspected = inspect_file(folder / STATE_FILE, number)
            if inspected.damage:
                raise DamagedStateError(str(folder), f"it was written just now, and {inspected.damage}")
            found.update(inspected.records)
        for table in _TABLES:
            had = sum(1 for _ in self._states.rows(table))
            if not had == counts[table] == found[table]:
                what = f"{table} has {found[table]:,} records, of {had:,} in the source"
                raise DamagedStateError(str(folders[0]), what)


def _commit(target: Metadata, changes: list[Change]) -> None:
    while True:
        try:
            target.commit(changes)
        except lmdb.MapFullError:
            target.grow()
        else:
            break
    target.take_changes()  # a snapshot will have all of it
