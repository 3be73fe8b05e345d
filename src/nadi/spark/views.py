"""All of a scope as views in Spark's SQL: its stream tables, typed, and the streams that none is defined on."""

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
    """A stream whose events are rows. options: as `format("nadi")` has them; fields: the names of the columns."""

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
    """Make temporary views of all streams and stream tables of a scope, and return their names, which begin with
    `prefix`.

    A stream table has its columns, a stream on which none of its name is defined those of its schema in the store, and
    one without a schema `event`; `segment_id` and `offset` come after them. A table with a key has a second view,
    `<name>_latest`, with the latest row of each. The views have what is there now, and stay so: all queries have the
    same rows, until this is called again. A table that can't be read, since its stream's schema has become another, is
    left out, and logged. So are those whose names differ by case alone, unless the session tells them apart.

    streaming: the views are of `readStream`, for streaming queries, which go on; a table's event time has a `watermark`
    then, and there are no latest rows. options: of `format("nadi")`, which say where the controller is, who asks, and
    from where to where to read.
    """
    for name in options:
        if name.lower() in _SET_HERE:
            raise InvalidArgumentError(f"the option {name!r} has no effect here: each view has its own")
    from nadi.spark.connections import client_of  # and the client's modules: who asks for a schema does without
    from nadi.spark.options.parsed import GivenOptions

    if not isinstance(prefix, str) or not isinstance(streaming, bool):
        raise InvalidArgumentError(f"prefix is a text, and streaming True or False, not {prefix!r} and {streaming!r}")
    given = {name: str(value) for name, value in options.items()}
    client = client_of(GivenOptions({name.lower(): value for name, value in given.items()}).connection())
    is_ended = streaming or any(name.lower() == "end" for name in given)
    found = client.run(_found(client.manager, scope, is_ended))
    if spark.conf.get("spark.sql.caseSensitive") != "true":
        found = _told_apart(found)
    made = []
    for one in found:
        reader: Any = spark.readStream if streaming else spark.read  # it keeps the options that it was given
        frame = reader.format("nadi").options(**given | {"scope": scope} | one.options).load()
        for name, view in _views(one, frame, watermark if streaming else None):
            view.createOrReplaceTempView(_quoted(prefix + name))
            made.append(prefix + name)
    return made


def _told_apart(found: Sequence[_Typed]) -> list[_Typed]:
    """Those whose names don't differ by case alone: the view of one would take the place of the other's."""
    names: dict[str, list[str]] = {}
    for one in found:
        names.setdefault(one.name.lower(), []).append(one.name)
    for alike in names.values():
        if len(alike) > 1:
            _log.warning(
                "no view is made of %s: their names differ by case alone. Set spark.sql.caseSensitive to true, or read "
                "them by format('nadi')",
                " and ".join(sorted(alike)),
            )
    return [one for one in found if len(names[one.name.lower()]) == 1]


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


async def _found(manager: StreamManager, scope: str, is_ended: bool) -> list[_Typed]:
    """is_ended: whether the options say up to where to read; else it is what is there now."""
    import asyncio  # here, for Spark imports this module to look for sources

    tables, unreadable = await manager.stream_tables(scope).list_with_unreadable()
    streams = await manager.list_streams(scope)
    names = {table.name for table in tables}
    for bad in unreadable:
        _log.warning("no view is made of it: %s", bad.problem)
        names.add(bad.name)  # a stream of that name isn't shown instead
    plain = [stream for stream in sorted(streams) if stream not in names]
    if len(plain) + len(tables) > SPARK_STREAMS:
        raise InvalidArgumentError(
            f"scope {scope} has {len(plain) + len(tables):,} streams and tables, and {SPARK_STREAMS:,} views are the "
            "most: read those that you need by format('nadi')"
        )
    turns = asyncio.Semaphore(SPARK_STREAMS_AT_ONCE)

    async def ended(work: Awaitable[_Typed | None]) -> _Typed | None:
        async with turns:
            found = await work
            if found is not None and not is_ended:
                found.options["end"] = (await manager.cuts(scope, found.options["stream"]).tail()).as_text()
            return found

    works = [*(_of_table(manager, one) for one in tables), *(_of_stream(manager, scope, name) for name in plain)]
    return [one for one in await asyncio.gather(*map(ended, works)) if one is not None]


async def _of_table(manager: StreamManager, table: TableDefinition) -> _Typed | None:
    from nadi.client.definitions.columns import fields_of
    from nadi.client.definitions.stream_tables import planned

    try:
        target = await planned(manager, table)
    except InvalidArgumentError as error:
        _log.warning("table %s/%s is no view: %s", table.scope, table.name, error)
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
        assert target is not None, "whichever is found is wanted"
        fields = tuple(field.name for field in fields_of(target.kind, f"stream {stream}"))
    except InvalidArgumentError as error:
        _log.warning("the view of stream %s/%s has its events' bytes: %s", scope, stream, error)
        return plain
    return _Typed(
        stream, {"stream": stream, "columns": "value,segment_id,offset", "value_format": value.format}, fields
    )


def _views(one: _Typed, frame: DataFrame, watermark: str | None) -> Iterator[tuple[str, DataFrame]]:
    if not one.fields:
        yield one.name, frame
        return
    fields = [name.lower() for name in one.fields]  # Spark's names don't differ by case
    own = [name for name in _OWN if name not in fields]
    rows = frame.select("value.*", *own)
    if watermark is not None and one.event_time is not None and dict(rows.dtypes)[one.event_time] == "timestamp":
        rows = rows.withWatermark(_quoted(one.event_time), watermark)
    yield one.name, rows
    if one.key and watermark is None:
        yield f"{one.name}_latest", _latest(one, frame, own)


def _latest(one: _Typed, frame: DataFrame, own: Sequence[str]) -> DataFrame:
    """Of the rows of each key the one with the greatest place, unless it deletes the key."""
    from pyspark.sql import functions as sql

    def field(row: str, name: str) -> Column:
        return sql.col(row).getField(name)

    has_key = sql.lit(True)
    for name in one.key:
        has_key = has_key & field("value", name).isNotNull()
    if _CHANGE in one.fields:
        has_key = has_key & ~field("value", _CHANGE).eqNullSafe(_BEFORE)
    last = sql.max_by(sql.struct("value", *_OWN), sql.struct(*_OWN)).alias("last")
    keys = [field("value", name).alias(f"key_{number}") for number, name in enumerate(one.key)]
    found = frame.where(has_key).groupBy(*keys).agg(last).select("last.value", *(f"last.{name}" for name in _OWN))
    has_values = sql.lit(False)
    for name in one.fields:
        if name not in (*one.key, one.event_time, _CHANGE):
            has_values = has_values | field("value", name).isNotNull()
    if _CHANGE in one.fields:
        has_values = has_values & ~field("value", _CHANGE).eqNullSafe(_DELETE)
    columns = [field("value", name).alias(name) for name in one.fields if name != _CHANGE]
    return found.where(has_values).select(*columns, *own)
