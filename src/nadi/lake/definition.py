"""What a lake is: which stream, which table, and how the one's events become the other's rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict, Unpack

import msgspec

from nadi.client.serializers.types import of_ddl
from nadi.client.values.options import value_options
from nadi.errors import InvalidArgumentError
from nadi.lake.table.catalogs import catalog_properties
from nadi.lake.table.partitions import partition_fields
from nadi.limits import LAKE_COMMIT_BYTES, LAKE_EVERY_MAX_S, LAKE_EVERY_MIN_S, MIB, PREFIXED_NAME_MAX_CHARS
from nadi.naming import NO_UNIT, PER_SECOND, check_name

FIXED = ("table", "partition", "value_format", "keep_events", "start", "event_time_unit")  # which a table is made for


class Options(TypedDict, total=False):
    """The options of a `LakeDefinition`, which are described there."""

    table: str
    catalog: Mapping[str, str]
    partition: str | None
    value_format: str | None
    value_schema: str | None
    event_time_unit: str
    keep_events: bool
    dead_letters: str | None
    holds_back: bool
    skip_truncated: bool
    start: Literal["head", "tail"]
    every_s: float
    commit_bytes: int
    compact_files: int
    keep_snapshots_s: float


class LakeDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A lake of `scope`/`stream`.

    name: that of its reader group, which holds back retention and keeps the lake's record; by default made of the
    stream's. table: in the catalog, with its namespace. catalog: PyIceberg's properties; secrets as ${VARIABLE}.
    partition: such as "day(_append_time), bucket(16, meter)".
    value_format: json, msgpack, avro, protobuf or arrow: the fields of the stream's schema, or of `value_schema`
    (Spark's DDL), are columns; without it the events are, as bytes. keep_events: these besides, as `_event`.
    event_time_unit: of what the stream's writers note, for `_event_time`: s, ms, us, ns, or none for numbers.
    dead_letters: the stream, `stream` of the same scope or `scope/stream`, for events that can't be read as values;
    None stops the lake before the first. holds_back: the stream's retention keeps what isn't in the table yet.
    skip_truncated: go on after events that were truncated all the same; else the lake stops there.
    start: where a new lake begins. every_s: seconds between commits while there is something to write; commit_bytes:
    about the most that one has.
    compact_files: once so many small files are in a partition, they are joined; 0 leaves them. keep_snapshots_s: older
    snapshots are expired then, and files that none is left to name are removed.
    """

    scope: str
    stream: str
    name: str
    table: str
    catalog: dict[str, str]
    partition: str = ""
    value_format: str | None = None
    value_schema: str | None = None
    event_time_unit: str = "ms"
    keep_events: bool = False
    dead_letters: str | None = None
    holds_back: bool = True
    skip_truncated: bool = False
    start: Literal["head", "tail"] = "head"
    every_s: float = 30.0
    commit_bytes: int = LAKE_COMMIT_BYTES
    compact_files: int = 16
    keep_snapshots_s: float = 5 * 86_400.0

    @property
    def full_name(self) -> str:
        return f"{self.scope}/{self.stream}"

    @property
    def dead_letter_stream(self) -> tuple[str, str] | None:
        if self.dead_letters is None:
            return None
        scope, _, stream = self.dead_letters.rpartition("/")
        return scope or self.scope, stream


def lake_name(stream: str, name: str | None = None) -> str:
    return check_name("lake", name or f"{stream}-lake", max_chars=PREFIXED_NAME_MAX_CHARS)


def definition_of(
    scope: str,
    stream: str,
    name: str | None,
    before: LakeDefinition | None,
    *,
    is_made: bool = False,
    **options: Unpack[Options],
) -> LakeDefinition:
    """The lake with these options, and otherwise as it was `before`; InvalidArgumentError for what can't be meant, or
    can't be changed any more. is_made: whether it has a table."""
    check_name("scope", scope)
    check_name("stream", stream)
    given: dict[str, Any] = dict(options)
    if given.get("partition", "") is None:
        given["partition"] = ""
    if before is None:
        missing = [one for one in ("table", "catalog") if not given.get(one)]
        if missing:
            raise InvalidArgumentError(f"there is no lake of {scope}/{stream} yet: to make it, say its {missing[0]}")
        made = LakeDefinition(scope=scope, stream=stream, name=lake_name(stream, name), **given)
    else:
        if before.stream != stream:
            raise InvalidArgumentError(
                f"lake {before.name} is one of stream {before.stream}, not of {stream}: give it another name (--name)"
            )
        for one in FIXED:
            if is_made and one in given and given[one] != getattr(before, one):
                raise InvalidArgumentError(
                    f"lake {before.name} was made with {one} = {getattr(before, one)!r}, and its table stays so: make "
                    "another lake of another name and table"
                )
        made = msgspec.structs.replace(before, **given)
    catalog_properties(made.catalog)
    names = made.table.split(".")
    if len(names) < 2 or not all(names):
        raise InvalidArgumentError(f"a table is named with its namespace, as home.meters, not {made.table!r}")
    partition_fields(made.partition)
    value_options(made.value_format, made.value_schema, None, None)
    if made.value_schema is not None:
        of_ddl(made.value_schema)
    if made.event_time_unit not in (*PER_SECOND, NO_UNIT):
        raise InvalidArgumentError(
            f"event_time_unit is {made.event_time_unit!r}: it must be {', '.join(PER_SECOND)} or {NO_UNIT}"
        )
    if made.keep_events and made.value_format is None:
        raise InvalidArgumentError("keep_events has no effect without value_format: the events are a column already")
    if made.dead_letters is not None:
        if made.value_format is None:
            raise InvalidArgumentError("dead_letters has no effect without value_format: bytes are always a row")
        for kind, name in zip(("scope", "stream"), made.dead_letter_stream or (), strict=True):
            check_name(kind, name)
        if made.dead_letter_stream == (made.scope, made.stream):
            raise InvalidArgumentError("the dead-letter stream is the lake's own: it would never end")
    if made.start not in ("head", "tail"):
        raise InvalidArgumentError(f"a lake starts at the head or at the tail, not at {made.start!r}")
    for option, least, most in (
        ("every_s", LAKE_EVERY_MIN_S, LAKE_EVERY_MAX_S),
        ("compact_files", 0, 10_000),
        ("keep_snapshots_s", 0, 3_650 * 86_400),
        ("commit_bytes", MIB, 64 * LAKE_COMMIT_BYTES),
    ):
        if not least <= getattr(made, option) <= most:
            raise InvalidArgumentError(f"{option} is from {least:,} to {most:,}, not {getattr(made, option):,}")
    if made.compact_files == 1:
        raise InvalidArgumentError("compact_files is 0, or at least 2: one file is joined already")
    return made
