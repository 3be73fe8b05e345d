"""Register a scope as views for Spark SQL: its stream tables, typed, and the streams without a table."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nadi.errors import InvalidArgumentError
from nadi.limits import SPARK_STREAMS, SPARK_STREAMS_AT_ONCE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from nadi.client.aio import StreamManager, TableDefinition

_log = logging.getLogger(__name__)
_OWN = ("segment_id", "offset")
_CHANGE, _BEFORE, _DELETE = "_change_type", "update_before", "delete"
_SET_HERE = {"scope", "stream", "streams", "stream_pattern", "stream_tag", "columns", "metadata", "value_format",
             "value_schema", "value_version", "value_mode"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Typed:
    """A stream whose events are rows. options: of `format("nadi")`; fields: the names of the columns."""

    name: str
    options: dict[str, str]
    fields: tuple[str, ...]
    key: tuple[str, ...] = ()
    event_time: str | None = None


def register(
    spark: SparkSession,
    scope: str,
    *,
    prefix: str = "",
    streaming: bool = False,
    watermark: str = "10 minutes",
    **options: Any,
) -> list[str]:
    """Create temporary views of all streams and stream tables of a scope, and return their names, which start with
    `prefix`.

    A stream table has its columns, other streams those of their stored schema, or `event` without one; `segment_id` and
    `offset` follow. A table with a key has a second view, `<name>_latest`, with the latest row of each key. The views
    are fixed: all queries see the same rows until this is called again. A table that can't be read, because its
    stream's schema has changed, is skipped and logged, as are names that differ in case only, unless the session is
    case-sensitive.

    streaming: create views of `readStream` for streaming queries, which continue; a table's event time then has a
    `watermark`, without latest rows. options: of `format("nadi")`: the controller's address, the credentials,
    and the range to read.
    """
    for name in options:
        if name.lower() in _SET_HERE:
            raise InvalidArgumentError(f"the option {name!r} can't be set for views: each view has its own")
    from nadi.spark.connections import client_of  # loads the client, which schema requests don't need
    from nadi.spark.options.parsed import SparkOptions

    if not isinstance(prefix, str) or not isinstance(streaming, bool):
        raise InvalidArgumentError(f"prefix must be a str and streaming a bool, not {prefix!r} and {streaming!r}")
    given = {name: str(value) for name, value in options.items()}
    client = client_of(SparkOptions({name.lower(): value for name, value in given.items()}).connection())
    is_ended = streaming or any(name.lower() == "end" for name in given)
    sources = client.run(_sources_of(client.manager, scope, is_ended))
    if spark.conf.get("spark.sql.caseSensitive") != "true":
        sources = _without_clashes(sources)
    names = []
    for source in sources:
        reader: Any = spark.readStream if streaming else spark.read  # a new one each time, as it keeps options
        frame = reader.format("nadi").options(**given | {"scope": scope} | source.options).load()
        for name, view in _views(source, frame, watermark if streaming else None):
            view.createOrReplaceTempView(_quoted(prefix + name))
            names.append(prefix + name)
    return names


def _without_clashes(sources: Sequence[_Typed]) -> list[_Typed]:
    """Return the sources whose names don't differ in case only, as their views would replace each other."""
    names: dict[str, list[str]] = {}
    for source in sources:
        names.setdefault(source.name.lower(), []).append(source.name)
    for clashing in names.values():
        if len(clashing) > 1:
            _log.warning(
                "no view for %s: their names differ in case only. Set spark.sql.caseSensitive to true, or read "
                "them with format('nadi')",
                " and ".join(sorted(clashing)),
            )
    return [source for source in sources if len(names[source.name.lower()]) == 1]


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


async def _sources_of(manager: StreamManager, scope: str, is_ended: bool) -> list[_Typed]:
    """Return the tables and streams of the scope. is_ended: whether the options set an end; else the current tails
    are."""
    import asyncio  # imported here, as Spark imports this module to discover sources

    tables, unreadable = await manager.stream_tables(scope).list_with_unreadable()
    streams = await manager.list_streams(scope)
    names = {table.name for table in tables}
    for bad in unreadable:
        _log.warning("no view for an unreadable table: %s", bad.problem)
        names.add(bad.name)  # don't show a stream of that name instead
    plain = [stream for stream in sorted(streams) if stream not in names]
    if len(plain) + len(tables) > SPARK_STREAMS:
        raise InvalidArgumentError(
            f"scope {scope} has {len(plain) + len(tables):,} streams and tables, more than {SPARK_STREAMS:,}, the "
            "limit of views: read those you need with format('nadi')"
        )
    slots = asyncio.Semaphore(SPARK_STREAMS_AT_ONCE)

    async def ended(work: Awaitable[_Typed | None]) -> _Typed | None:
        async with slots:
            source = await work
            if source is not None and not is_ended:
                source.options["end"] = (await manager.cuts(scope, source.options["stream"]).tail()).as_text()
            return source

    works = [*(_of_table(manager, table) for table in tables), *(_of_stream(manager, scope, name) for name in plain)]
    return [source for source in await asyncio.gather(*map(ended, works)) if source is not None]


async def _of_table(manager: StreamManager, table: TableDefinition) -> _Typed | None:
    from nadi.client.definitions.columns import fields_of
    from nadi.client.definitions.stream_tables import planned

    try:
        target = await planned(manager, table)
    except InvalidArgumentError as error:
        _log.warning("no view for table %s/%s: %s", table.scope, table.name, error)
        return None
    value = target.options
    options = {"stream": table.stream, "columns": "value,segment_id,offset", "value_format": value.format,
               "value_mode": value.mode}  # fmt: skip
    if value.ddl is not None:
        options["value_schema"] = value.ddl
    fields = tuple(field.name for field in fields_of(target.kind, f"table {table.name}"))
    return _Typed(table.name, options, fields, table.key, table.event_time)


async def _of_stream(manager: StreamManager, scope: str, stream: str) -> _Typed | None:
    from nadi.client.definitions.columns import fields_of
    from nadi.client.values.options import value_options
    from nadi.client.values.target import stored_format, target_of

    plain = _Typed(stream, {"stream": stream, "columns": "event,segment_id,offset"}, ())
    value = value_options(await stored_format(manager, scope, stream), None, None, None)
    if value is None:
        return plain
    try:
        target = await target_of(manager, value, scope, [stream], lambda _: True)
        assert target is not None, "every schema is accepted"
        fields = tuple(field.name for field in fields_of(target.kind, f"stream {stream}"))
    except InvalidArgumentError as error:
        _log.warning("the view of stream %s/%s contains undecoded events: %s", scope, stream, error)
        return plain
    return _Typed(
        stream, {"stream": stream, "columns": "value,segment_id,offset", "value_format": value.format}, fields
    )


def _views(source: _Typed, frame: DataFrame, watermark: str | None) -> Iterator[tuple[str, DataFrame]]:
    if not source.fields:
        yield source.name, frame
        return
    fields = [name.lower() for name in source.fields]  # Spark's names are case-insensitive
    own = [name for name in _OWN if name not in fields]
    rows = frame.select("value.*", *own)
    if watermark is not None and source.event_time is not None and dict(rows.dtypes)[source.event_time] == "timestamp":
        rows = rows.withWatermark(_quoted(source.event_time), watermark)
    yield source.name, rows
    if source.key and watermark is None:
        yield f"{source.name}_latest", _latest(source, frame, own)


def _latest(source: _Typed, frame: DataFrame, own: Sequence[str]) -> DataFrame:
    """Return the row with the greatest position for each key, unless it deletes the key."""
    from pyspark.sql import functions as sql

    def field(row: str, name: str) -> Column:
        return sql.col(row).getField(name)

    has_key = sql.lit(True)
    for name in source.key:
        has_key = has_key & field("value", name).isNotNull()
    if _CHANGE in source.fields:
        has_key = has_key & ~field("value", _CHANGE).eqNullSafe(_BEFORE)
    last = sql.max_by(sql.struct("value", *_OWN), sql.struct(*_OWN)).alias("last")
    keys = [field("value", name).alias(f"key_{number}") for number, name in enumerate(source.key)]
    latest = frame.where(has_key).groupBy(*keys).agg(last).select("last.value", *(f"last.{name}" for name in _OWN))
    has_values = sql.lit(False)
    for name in source.fields:
        if name not in (*source.key, source.event_time, _CHANGE):
            has_values = has_values | field("value", name).isNotNull()
    if _CHANGE in source.fields:
        has_values = has_values & ~field("value", _CHANGE).eqNullSafe(_DELETE)
    columns = [field("value", name).alias(name) for name in source.fields if name != _CHANGE]
    return latest.where(has_values).select(*columns, *own)
