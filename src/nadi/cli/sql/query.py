"""The streams that a query names, and each of them as a table of DuckDB.

A table has the columns of a stream table's definition or of the stream's schema, or else the events' bytes.

    home.meters                                            all events when the query begins
    home.meters for slice 'week-45'                        a named slice
    home.meters for system_time as of 'monday'             up to a position
    home.meters for system_time from 'monday' to 'friday'  between two positions
    home.meters for lake                                   its lake's table, continued by the stream
    home.meters for lake as of 'monday'                    up to a position

    latest('home.meters')                                  the latest row of each key of a stream table
    latest('home.meters') for system_time as of 'monday'   up to a position
    changes('home.meters')                                 its changes, optionally between two positions

Positions are bookmarks, times with a zone, head, tail, or texts of cuts. DuckDB gets each range as a separate table,
and the query is rewritten to name it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import duckdb
import pyarrow as pa

import nadi
import nadi.lake
from nadi.cli.session import awaited
from nadi.client import StreamManager
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

_NAMES = re.compile(r'"((?:[^"]|"")+)"|([^".]+)')
VIEWS = ("latest", "changes")


@dataclass(frozen=True, slots=True)
class StreamReference:
    """A stream in a query, and its range. scope: "" if the query doesn't name it; view: latest, changes, or "" for its
    rows; is_lake: includes its lake's table."""

    scope: str
    stream: str
    slice_name: str | None = None
    start: str | None = None
    end: str | None = None
    view: str = ""
    is_lake: bool = False

    @property
    def table(self) -> str:
        """The table's name in the rewritten query."""
        if self.is_lake:
            return f"{self.stream} for lake" + (f" as of {self.end}" if self.end is not None else "")
        name = f"{self.view} of {self.stream}" if self.view else self.stream
        if self.slice_name is not None:
            return f"{name} for slice {self.slice_name}"
        if self.start is None and self.end is None:
            return name
        return f"{name} from {self.start or 'head'} to {self.end}"


@dataclass(frozen=True, slots=True)
class _SqlWord:
    text: str
    start: int
    end: int
    is_text: bool  # whether it is a string literal

    def matches(self, word: str) -> bool:
        return not self.is_text and self.text.lower() == word


def rewrite_query(query: str) -> tuple[str, list[StreamReference]]:
    """Rewrite a query for DuckDB; return it with the tables in it that may be streams. InvalidArgumentError for invalid
    syntax.

    >>> rewritten, references = rewrite_query("select * from home.meters for slice 'week-45'")
    >>> rewritten, references[0].stream, references[0].slice_name
    ('select * from "home"."meters for slice week-45"', 'meters', 'week-45')
    """
    data = query.encode()
    words = list(_words(data))
    references: dict[tuple[str, str], StreamReference] = {}
    parts: list[bytes] = []
    position = 0
    for at, word in enumerate(words):
        if word.start < position:
            continue
        view = _view(words, at)
        if view is not None:
            reference, start, end = view[0], word.start, view[1]
        elif _is_range(words, at):
            name = _name_before(words, at)
            reference, end = _parse_range(name[0], name[1], words, at + 1)
            start = name[2]
        else:
            continue
        scope = reference.scope
        references[scope, reference.table] = reference
        parts += [data[position:start], _quoted(scope, reference.table).encode()]
        position = end
    last = max((word.end for word in words if word.text != ";"), default=0)
    rewritten = b"".join([*parts, data[position:last]]).decode()
    for scope, table in _tables(rewritten):
        references.setdefault((scope, table), StreamReference(scope, table))
    return rewritten, list(references.values())


def _words(data: bytes) -> Iterator[_SqlWord]:
    tokens = duckdb.tokenize(data.decode())
    for (start, kind), (end, _) in pairwise([*tokens, (len(data), duckdb.token_type.comment)]):
        if kind == duckdb.token_type.comment:
            continue
        text = data[start:end].decode().rstrip()
        yield _SqlWord(text, start, start + len(text.encode()), kind == duckdb.token_type.string_const)


def _is_range(words: list[_SqlWord], at: int) -> bool:
    return (
        words[at].matches("for")
        and at + 1 < len(words)
        and any(words[at + 1].matches(kind) for kind in ("slice", "system_time", "lake"))
    )


def _view(words: list[_SqlWord], at: int) -> tuple[StreamReference, int] | None:
    """Parse `latest('scope.table')` or `changes(…)` and the range after it; return the reference and its end offset."""
    view = next((view for view in VIEWS if words[at].matches(view)), None)
    call = words[at + 1 : at + 4]
    if view is None or [word.text for word in (*call[:1], *call[2:])] != ["(", ")"] or not call[1].is_text:
        return None
    scope, name = _names(call[1].text[1:-1].replace("''", "'"))
    if at + 4 >= len(words) or not _is_range(words, at + 4):
        return StreamReference(scope, name, view=view), call[2].end
    reference, end = _parse_range(scope, name, words, at + 5)
    if reference.slice_name is not None or reference.is_lake or (view == "latest" and reference.start is not None):
        syntax = "as of 'position'" if view == "latest" else "from 'position' to 'position'"
        raise InvalidArgumentError(f"{view}('…') doesn't support this range: use for system_time {syntax}")
    return replace(reference, view=view), end


def _names(text: str) -> tuple[str, str]:
    """Split a text into scope and name; a part that contains a dot is quoted: home."meters.raw"."""
    *scope, name = [quoted.replace('""', '"') or plain for quoted, plain in _NAMES.findall(text)] or [""]
    return ".".join(scope), name


def _name_before(words: list[_SqlWord], at: int) -> tuple[str, str, int]:
    """Return the name before a word: scope, stream and its start offset."""
    if at == 0 or words[at - 1].is_text or words[at - 1].text in ")(,;":
        raise InvalidArgumentError(f"no stream before '{_around(words, at)}': use home.meters for slice 'name'")
    stream, start, scope = words[at - 1], words[at - 1].start, ""
    if at >= 3 and words[at - 2].text == ".":
        scope, start = _plain(words[at - 3].text), words[at - 3].start
    return scope, _plain(stream.text), start


def _parse_range(scope: str, stream: str, words: list[_SqlWord], at: int) -> tuple[StreamReference, int]:
    def text(number: int) -> str:
        if number >= len(words) or not words[number].is_text:
            raise InvalidArgumentError(
                f"expected a name in single quotes after '{_around(words, at)}', as in for slice 'name', "
                "for system_time as of 'name', or for system_time from 'name' to 'name'"
            )
        return words[number].text[1:-1].replace("''", "'")

    def next_matches(number: int, word: str) -> bool:
        return number < len(words) and words[number].matches(word)

    if words[at].matches("slice"):
        return StreamReference(scope, stream, text(at + 1)), words[at + 1].end
    if words[at].matches("lake"):
        if next_matches(at + 1, "as") and next_matches(at + 2, "of"):
            return StreamReference(scope, stream, end=text(at + 3), is_lake=True), words[at + 3].end
        return StreamReference(scope, stream, is_lake=True), words[at].end
    if next_matches(at + 1, "as") and next_matches(at + 2, "of"):
        return StreamReference(scope, stream, end=text(at + 3)), words[at + 3].end
    if next_matches(at + 1, "from") and next_matches(at + 3, "to"):
        return StreamReference(scope, stream, start=text(at + 2), end=text(at + 4)), words[at + 4].end
    text(len(words))  # raises
    raise AssertionError


def _around(words: list[_SqlWord], at: int) -> str:
    return " ".join(word.text for word in words[max(0, at - 1) : at + 2])


def _plain(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name


def _quoted(*names: str) -> str:
    return ".".join('"' + name.replace('"', '""') + '"' for name in names if name)


def _tables(query: str) -> list[tuple[str, str]]:
    """Return schema and name of all tables in a query, including those that it defines itself."""
    with duckdb.connect() as parser:
        row = parser.execute("select json_serialize_sql(?)", [query]).fetchone()
    assert row is not None
    parsed = json.loads(row[0])
    if parsed["error"]:
        problem = parsed["error_message"]
        if parsed.get("error_type") == "not implemented":
            problem = "only select, from and with are supported"
        raise InvalidArgumentError(f"invalid query: {problem}")
    if len(parsed["statements"]) != 1:
        raise InvalidArgumentError(f"expected one query, but got {len(parsed['statements'])}")
    return list(dict.fromkeys(_named(parsed)))


def _named(node: Any) -> Iterator[tuple[str, str]]:
    if isinstance(node, Mapping):
        if node.get("type") == "BASE_TABLE" and not node.get("catalog_name"):
            yield node.get("schema_name") or "", node["table_name"]
        for value in node.values():
            yield from _named(value)
    elif isinstance(node, list):
        for value in node:
            yield from _named(value)


# --- as tables of DuckDB ---------------------------------------------------------------------------------

_SYSTEM_COLUMNS = ("segment_id", "offset", "append_time")


def make_views(
    manager: StreamManager,
    con: duckdb.DuckDBPyConnection,
    references: Iterable[StreamReference],
    scope: str | None,
    schemas: Mapping[str, str],
) -> list[NadiError]:
    """Register each reference to a stream as a view. scope: default scope. schemas: fields of JSON events in Spark DDL,
    by the stream's name in the query. Return a list that receives nadi's errors during the query, as DuckDB only
    reports their texts."""
    unused = set(schemas)
    errors: list[NadiError] = []
    for number, reference in enumerate(references):
        name = f"{reference.scope}.{reference.stream}" if reference.scope else reference.stream
        unused.discard(name)
        home = reference.scope or scope
        if home is None and reference.view:
            raise InvalidArgumentError(
                f"{reference.view}('{reference.stream}') lacks a scope: use {reference.view}('scope.table') or --scope"
            )
        if home is None:
            continue  # defined by the query, a file, or unknown to DuckDB
        if reference.view:
            table = nadi.stream_table(manager, home, reference.stream)
            is_latest = reference.view == "latest"
            changes = partial(table.changes, start=reference.start, end=reference.end)
            source: Readable | None = table.latest(reference.end) if is_latest else changes()
        else:
            source = _scan(manager, home, reference, schemas.get(name))
        if source is None:
            continue
        con.register(f"nadi_{number}", _ErrorRecorder(source, errors))
        if reference.scope:
            con.execute(f"create schema if not exists {_quoted(reference.scope)}")
        kind = "view" if reference.scope else "temp view"
        con.execute(f"create {kind} {_quoted(reference.scope, reference.table)} as from nadi_{number}")
    if unused:
        raise InvalidArgumentError(f"--schema {min(unused)}=… is unused: the query doesn't name this stream")
    return errors


class _ErrorRecorder(Readable):
    """Wraps a source and records the error that ends it in `errors`."""

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


def _scan(manager: StreamManager, scope: str, reference: StreamReference, ddl: str | None) -> Readable | None:
    """Return the reference's scan. None if the stream doesn't exist and the query doesn't name a scope, as DuckDB may
    know the name."""
    if reference.is_lake:
        if ddl is not None:
            raise InvalidArgumentError(
                f"--schema {reference.stream}=… can't be used with a lake: its table defines the columns"
            )
        return nadi.lake.union(manager, scope, reference.stream, at=reference.end)
    if ddl is None and (table := _defined(manager, scope, reference.stream)) is not None:
        return table.rows(start=reference.start, end=reference.end, slice=reference.slice_name, also=_SYSTEM_COLUMNS)
    try:
        stored = partial(stored_format, scope=scope, stream=reference.stream)
        value_format = "json" if ddl is not None else awaited(manager, stored)
    except StreamNotFoundError:
        if reference.scope or reference.table != reference.stream:
            raise
        return None
    start, end = reference.start, reference.end
    if reference.slice_name is not None:
        named = manager.slices(scope).get(reference.slice_name)
        if named.stream != reference.stream:
            raise InvalidArgumentError(
                f"slice {reference.slice_name} belongs to stream {named.stream}, not to {reference.stream}"
            )
        start, end = named.start.as_text(), named.end.as_text()
    of_stream = partial(nadi.scan, manager, scope, reference.stream, start=start, end=end)
    if value_format is None:
        return of_stream(columns=["event", *_SYSTEM_COLUMNS])
    parsed = partial(of_stream, value_format=value_format, value_schema=ddl, unnest=True)
    fields = parsed(columns=["value"]).schema.names
    return parsed(columns=["value", *(name for name in _SYSTEM_COLUMNS if name not in fields)])


def _defined(manager: StreamManager, scope: str, name: str) -> StreamTable | None:
    try:
        return nadi.stream_table(manager, scope, name)
    except (StreamTableNotFoundError, PermissionDeniedError):  # without the permission, read the plain stream
        return None
