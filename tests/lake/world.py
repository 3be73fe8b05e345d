"""The stream `meters` and its lakes, and their content in plain Python."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

import nadi
import nadi.lake
from nadi.lake import LakeDefinition, LakeWriter
from nadi.lake.runner import LakeStatus
from nadi.lake.table.catalogs import load_table, open_catalog
from nadi.naming import parse_segment_name
from nadi.process import DeadLetter

FIELDS = "meter string, wh long, at timestamp"
NO_JSON = b"\xff\xfe no json"
Place = tuple[int, int]


class Killed(BaseException):
    """An error that the writer doesn't expect, like a kill."""


def catalog_in(folder: Path) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/lake"}


class Meters:
    """A stream `meters` in a scope, with dead letters in `dead`; catalog and tables in a folder."""

    def __init__(self, manager: nadi.StreamManager, scope: str, folder: Path, segments: int | None = 2) -> None:
        """segments: None if the streams exist already."""
        self.manager, self.scope, self.folder = manager, scope, folder
        if segments is not None:
            manager.create_stream(scope, "meters", segments)
            manager.create_stream(scope, "dead", 2)
        self.union = partial(nadi.lake.union, manager, scope, "meters")
        self.rebuild = partial(nadi.lake.rebuild, manager, scope, "meters-lake")
        self.scale = partial(manager.scale_stream, scope, "meters")

    def lake(self, **options: Any) -> LakeDefinition:
        usual: dict[str, Any] = {
            "table": f"{self.scope}.meters",
            "catalog": catalog_in(self.folder),
            "value_format": "json",
            "value_schema": FIELDS,
            "partition": "day(at), bucket(4, meter)",
            "dead_letters": "dead",
            "every_s": 0.05,
        }
        return nadi.lake.define(self.manager, self.scope, "meters", **(usual | options))

    def write(self, first: int, last: int, *, wrong: int = 0) -> None:
        """Write readings with their numbers as watt-hours; every `wrong`th isn't JSON."""
        numbers = range(first, last)
        events = [
            NO_JSON + b" %d" % number
            if wrong and number % wrong == 0
            else b'{"meter": "m%d", "wh": %d, "at": "2026-11-%02dT12:00:00Z"}' % (number % 7, number, 1 + number % 3)
            for number in numbers
        ]
        self.write_events(*events, keys=[f"m{number % 7}" for number in numbers])

    def write_events(self, *events: bytes, keys: list[str] | None = None) -> None:
        with self.manager.create_writer(self.scope, "meters") as writer:
            writer.write_batch(list(events), keys or ["m"] * len(events))

    def catch_up(self, lake: LakeDefinition) -> int:
        """Commit until the table is up to date; return the number of snapshots."""
        writer, commits = LakeWriter(self.manager, lake), 0
        while writer.commit() is not None:
            commits += 1
        return commits

    def filled(self, first: int, last: int, *, wrong: int = 0, **options: Any) -> LakeDefinition:
        """Return a lake that is up to date with these readings."""
        lake = self.lake(**options)
        self.write(first, last, wrong=wrong)
        self.catch_up(lake)
        return lake

    def keep_level(self, lake: LakeDefinition, numbers: range, *, wrong: int = 0) -> None:
        """Write readings, with a commit after each of the range's steps."""
        for first in numbers:
            self.write(first, first + numbers.step, wrong=wrong)
            self.catch_up(lake)

    def run(self, lake: LakeDefinition) -> None:
        nadi.lake.run(self.manager, lake, once=True)

    def status(self) -> LakeStatus:
        return nadi.lake.status(self.manager, self.scope, "meters-lake")

    @property
    def tail(self) -> nadi.StreamCut:
        return self.manager.stream_info(self.scope, "meters").tail

    def after(self, events: int) -> nadi.StreamCut:
        """Return the cut after that many events."""
        return self.manager.cuts(self.scope, "meters").after(
            self.manager.stream_info(self.scope, "meters").head, events
        )

    def in_stream(self, end: Any = None, stream: str = "meters") -> tuple[list[Place], list[Place]]:
        """Return the positions of valid and invalid readings, up to a cut."""
        columns = ["segment_id", "offset", "event"]
        found = pa.table(nadi.scan(self.manager, self.scope, stream, end=end, columns=columns)).to_pylist()
        kinds: tuple[list[Place], list[Place]] = [], []
        for row in found:
            kinds[row["event"].startswith(NO_JSON)].append((row["segment_id"], row["offset"]))
        return sorted(kinds[0]), sorted(kinds[1])

    def letters(self) -> list[DeadLetter]:
        tail = self.manager.stream_info(self.scope, "dead").tail
        return [DeadLetter.decode(event.data) for event in self.manager.read_events(self.scope, "dead", end=tail)]

    def letter_places(self) -> list[Place]:
        return sorted((parse_segment_name(letter.segment)[2], letter.offset) for letter in self.letters())

    def files(self) -> set[str]:
        """Return the names of all data files."""
        return {path.name for path in (self.folder / "lake").rglob("*.parquet")}

    def check(self, lake: LakeDefinition) -> None:
        """Check that each valid reading is in the table once, and each invalid one a dead letter."""
        assert (places(in_table(lake)), self.letter_places()) == self.in_stream()


def table_of(lake: LakeDefinition) -> Any:
    found = load_table(open_catalog(lake.catalog), lake.table)
    assert found is not None
    return found


def places(rows: Any) -> list[Place]:
    """Return the sorted positions of rows in their stream."""
    found = pa.table(rows)
    return sorted(zip(found["_segment_id"].to_pylist(), found["_offset"].to_pylist(), strict=True))


def in_table(lake: LakeDefinition) -> Any:
    return table_of(lake).scan().to_arrow()


def files_of_snapshots(lake: LakeDefinition) -> set[str]:
    """Return the files that a snapshot references, including older ones that aren't expired."""
    table = table_of(lake)
    scans = [table.scan(snapshot_id=snapshot.snapshot_id) for snapshot in table.snapshots()]
    return {Path(task.file.file_path).name for scan in scans for task in scan.plan_files()}


def files_named(lake: LakeDefinition) -> set[str]:
    """Return the files that the newest snapshot references."""
    return {Path(task.file.file_path).name for task in table_of(lake).scan().plan_files()}
