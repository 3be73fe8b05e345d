"""Streams as tables of DuckDB: with the columns that a stream table's definition gives, or the stream's schema, or else
their events' bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

import duckdb
import pyarrow as pa

import nadi
import nadi.lake
from nadi.cli.sql.query import Stretch
from nadi.client import StreamManager
from nadi.client.blocking.face import inside
from nadi.client.scan.rows import Readable
from nadi.client.streamtables.table import StreamTable
from nadi.client.values.target import stored_format
from nadi.errors import (
    InvalidArgumentError,
    NadiError,
    PermissionDeniedError,
    StreamNotFoundError,
    StreamTableNotFoundError,
)

_OWN = ("segment_id", "offset", "append_time")


def make_views(
    manager: StreamManager,
    con: duckdb.DuckDBPyConnection,
    asked: Iterable[Stretch],
    scope: str | None,
    given: Mapping[str, str],
) -> list[NadiError]:
    """Make known each stretch that is one of a stream. scope: of streams that are named without one. given: fields of
    JSON events in Spark's DDL, by the stream's name as it is in the query. Return where those will be that end a query
    while it reads: of these DuckDB knows no more than their texts."""
    unused = set(given)
    errors: list[NadiError] = []
    for number, stretch in enumerate(asked):
        name = f"{stretch.scope}.{stretch.stream}" if stretch.scope else stretch.stream
        unused.discard(name)
        home = stretch.scope or scope
        if home is None and stretch.view:
            raise InvalidArgumentError(
                f"{stretch.view}('{stretch.stream}') names no scope: write it as {stretch.view}('scope.table'), or "
                "give --scope"
            )
        if home is None:
            continue  # one that the query makes, a file, or one that DuckDB says isn't there
        if stretch.view:
            table = nadi.stream_table(manager, home, stretch.stream)
            is_latest = stretch.view == "latest"
            changes = partial(table.changes, start=stretch.start, end=stretch.end)
            source: Readable | None = table.latest(stretch.end) if is_latest else changes()
        else:
            source = _scan(manager, home, stretch, given.get(name))
        if source is None:
            continue
        con.register(f"nadi_{number}", _Heard(source, errors))
        schema = f"{_quoted(stretch.scope)}." if stretch.scope else ""
        if stretch.scope:
            con.execute(f"create schema if not exists {_quoted(stretch.scope)}")
        kind = "view" if stretch.scope else "temp view"
        con.execute(f"create {kind} {schema}{_quoted(stretch.table)} as from nadi_{number}")
    if unused:
        raise InvalidArgumentError(f"--schema {min(unused)}=… has no effect: the query names no such stream")
    return errors


class _Heard(Readable):
    """What is read, with what ends it added to `errors`."""

    def __init__(self, source: Readable, errors: list[NadiError]) -> None:
        self._source, self._errors = source, errors

    @property
    def schema(self) -> pa.Schema:
        return self._source.schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._source.batches()
        except NadiError as error:
            self._errors.append(error)
            raise


def _scan(manager: StreamManager, scope: str, stretch: Stretch, ddl: str | None) -> Readable | None:
    """None if there is no such stream, and it may be something else: its scope isn't in the query."""
    if stretch.is_lake:
        if ddl is not None:
            raise InvalidArgumentError(
                f"--schema {stretch.stream}=… has no effect on a lake: its table has the columns"
            )
        return nadi.lake.union(manager, scope, stretch.stream, at=stretch.end)
    if ddl is None and (table := _defined(manager, scope, stretch.stream)) is not None:
        return table.rows(start=stretch.start, end=stretch.end, slice=stretch.slice_name, also=_OWN)
    try:
        thread, core = inside(manager)
        value_format = "json" if ddl is not None else thread.run(stored_format(core, scope, stretch.stream))
    except StreamNotFoundError:
        if stretch.scope or stretch.table != stretch.stream:
            raise
        return None
    start, end = stretch.start, stretch.end
    if stretch.slice_name is not None:
        named = manager.slices(scope).get(stretch.slice_name)
        if named.stream != stretch.stream:
            raise InvalidArgumentError(
                f"slice {stretch.slice_name} is one of stream {named.stream}, not of {stretch.stream}"
            )
        start, end = named.start.as_text(), named.end.as_text()
    of_stream = partial(nadi.scan, manager, scope, stretch.stream, start=start, end=end)
    if value_format is None:
        return of_stream(columns=["event", *_OWN])
    parsed = partial(of_stream, value_format=value_format, value_schema=ddl, unnest=True)
    fields = parsed(columns=["value"]).schema.names
    return parsed(columns=["value", *(name for name in _OWN if name not in fields)])


def _defined(manager: StreamManager, scope: str, name: str) -> StreamTable | None:
    try:
        return nadi.stream_table(manager, scope, name)
    except (StreamTableNotFoundError, PermissionDeniedError):  # who may not see definitions has streams alone
        return None


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
