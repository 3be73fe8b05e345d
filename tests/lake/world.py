"""Streams of meters, and lakes of them; what both have, as plain Python sees it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

import nadi
import nadi.lake
from nadi.lake import LakeDefinition, LakeWriter
from nadi.process import DeadLetter

FIELDS = "meter string, wh long, at timestamp"
NO_JSON = b"\xff\xfe no json"


def catalog_in(folder: Path) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/lake"}


def a_lake(manager: nadi.StreamManager, scope: str, folder: Path, **options: Any) -> LakeDefinition:
    """Of stream `meters`, with its dead letters in `dead`."""
    usual: dict[str, Any] = {
        "table": f"{scope}.meters",
        "catalog": catalog_in(folder),
        "value_format": "json",
        "value_schema": FIELDS,
        "partition": "day(at), bucket(4, meter)",
        "dead_letters": "dead",
        "every_s": 0.05,
    }
    return nadi.lake.start(manager, scope, "meters", **(usual | options))


def streams(manager: nadi.StreamManager, scope: str, segments: int = 2) -> None:
    manager.create_stream(scope, "meters", segments)
    manager.create_stream(scope, "dead", 2)


def write(manager: nadi.StreamManager, scope: str, first: int, last: int, *, wrong: int = 0) -> None:
    """Readings with their numbers as watt-hours; of so many one isn't JSON."""
    numbers = range(first, last)
    events = [
        NO_JSON + b" %d" % number
        if wrong and number % wrong == 0
        else b'{"meter": "m%d", "wh": %d, "at": "2026-11-%02dT12:00:00Z"}' % (number % 7, number, 1 + number % 3)
        for number in numbers
    ]
    with manager.create_writer(scope, "meters") as writer:
        writer.write_batch(events, [f"m{number % 7}" for number in numbers])


def catch_up(manager: nadi.StreamManager, lake: LakeDefinition) -> int:
    """Until the table is level; how many snapshots that took."""
    writer, commits = LakeWriter(manager, lake), 0
    while writer.commit() is not None:
        commits += 1
    return commits


def table_of(lake: LakeDefinition) -> Any:
    from nadi.lake.table.catalogs import load_table, open_catalog

    found = load_table(open_catalog(lake.catalog), lake.table)
    assert found is not None
    return found


Place = tuple[int, int]


def places(rows: Any) -> list[Place]:
    """Where each row lies in its stream; in order, so that equal ones can be told."""
    found = pa.table(rows)
    return sorted(zip(found["_segment_id"].to_pylist(), found["_offset"].to_pylist(), strict=True))


def in_table(lake: LakeDefinition) -> Any:
    return table_of(lake).scan().to_arrow()


def in_stream(manager: nadi.StreamManager, scope: str, end: Any = None) -> tuple[list[Place], list[Place]]:
    """Of readings, and of what isn't one, up to a cut."""
    found = pa.table(nadi.scan(manager, scope, "meters", end=end, columns=["segment_id", "offset", "event"]))
    rows = list(zip(*(found[name].to_pylist() for name in found.column_names), strict=True))
    is_wrong = [event.startswith(NO_JSON) for _, _, event in rows]
    good = sorted((segment, offset) for (segment, offset, _), wrong in zip(rows, is_wrong, strict=True) if not wrong)
    return good, sorted((segment, offset) for (segment, offset, _), wrong in zip(rows, is_wrong, strict=True) if wrong)


def letters(manager: nadi.StreamManager, scope: str) -> list[DeadLetter]:
    tail = manager.stream_info(scope, "dead").tail
    return [DeadLetter.decode(event.data) for event in manager.read_events(scope, "dead", end=tail)]


def letter_places(manager: nadi.StreamManager, scope: str) -> list[Place]:
    from nadi.naming import parse_segment_name

    return sorted((parse_segment_name(one.segment)[2], one.offset) for one in letters(manager, scope))


def files_in(folder: Path) -> set[str]:
    """The names of data files that are there."""
    return {path.name for path in (folder / "lake").rglob("*.parquet")}


def files_of_snapshots(lake: LakeDefinition) -> set[str]:
    """Those that a snapshot names: the newest, or an older one that isn't expired."""
    table = table_of(lake)
    scans = [table.scan(snapshot_id=snapshot.snapshot_id) for snapshot in table.snapshots()]
    return {Path(task.file.file_path).name for scan in scans for task in scan.plan_files()}


def files_named(lake: LakeDefinition) -> set[str]:
    """Those that the newest snapshot names."""
    return {Path(task.file.file_path).name for task in table_of(lake).scan().plan_files()}
