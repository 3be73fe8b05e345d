"""The streams that a query names, and which stretch of each; and each as a table of DuckDB: with the columns that a
stream table's definition gives, or the stream's schema, or else their events' bytes.

    home.meters                                            all that is there when the query begins
    home.meters for slice 'week-45'                        a named slice
    home.meters for system_time as of 'monday'             up to a place
    home.meters for system_time from 'monday' to 'friday'  from a place to another
    home.meters for lake                                   its lake's table, and the stream from there
    home.meters for lake as of 'monday'                    up to a place

    latest('home.meters')                                  the latest row of each key of a stream table
    latest('home.meters') for system_time as of 'monday'   up to a place
    changes('home.meters')                                 what changed in it, also from a place to another

Places are bookmarks, times with a zone, head, tail, or texts of cuts. A stretch is a table of its own to DuckDB, which
the query is rewritten to name.
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
    """A stream, and what of it is asked for. scope: "" where the query doesn't name it; view: latest or changes, if not
    its rows; is_lake: with its lake's table."""

    scope: str
    stream: str
    slice_name: str | None = None
    start: str | None = None
    end: str | None = None
    view: str = ""
    is_lake: bool = False

    @property
    def table(self) -> str:
        """Its name in the rewritten query."""
        if self.is_lake:
            return f"{self.stream} for lake" + (f" as of {self.end}" if self.end is not None else "")
        what = f"{self.view} of {self.stream}" if self.view else self.stream
        if self.slice_name is not None:
            return f"{what} for slice {self.slice_name}"
        if self.start is None and self.end is None:
            return what
        return f"{what} from {self.start or 'head'} to {self.end}"


@dataclass(frozen=True, slots=True)
class _SqlWord:
    text: str
    start: int
    end: int
    is_text: bool  # a literal of one

    def says(self, word: str) -> bool:
        return not self.is_text and self.text.lower() == word


def stretches(query: str) -> tuple[str, list[StreamReference]]:
    """The query as DuckDB is to be given it, and the tables in it that may be streams. InvalidArgumentError if it isn't
    a query, or a stretch isn't written as above.

    >>> rewritten, found = stretches("select * from home.meters for slice 'week-45'")
    >>> rewritten, found[0].stream, found[0].slice_name
    ('select * from "home"."meters for slice week-45"', 'meters', 'week-45')
    """
    data = query.encode()
    words = list(_words(data))
    found: dict[tuple[str, str], StreamReference] = {}
    parts: list[bytes] = []
    done = 0
    for at, word in enumerate(words):
        if word.start < done:
            continue
        view = _view(words, at)
        if view is not None:
            stretch, start, end = view[0], word.start, view[1]
        elif _is_stretch(words, at):
            name = _name_before(words, at)
            stretch, end = _stretch(name[0], name[1], words, at + 1)
            start = name[2]
        else:
            continue
        scope = stretch.scope
        found[scope, stretch.table] = stretch
        parts += [data[done:start], _quoted(scope, stretch.table).encode()]
        done = end
    last = max((word.end for word in words if word.text != ";"), default=0)
    rewritten = b"".join([*parts, data[done:last]]).decode()
    for scope, table in _tables(rewritten):
        found.setdefault((scope, table), StreamReference(scope, table))
    return rewritten, list(found.values())


def _words(data: bytes) -> Iterator[_SqlWord]:
    tokens = duckdb.tokenize(data.decode())
    for (start, kind), (end, _) in pairwise([*tokens, (len(data), duckdb.token_type.comment)]):
        if kind == duckdb.token_type.comment:
            continue
        text = data[start:end].decode().rstrip()
        yield _SqlWord(text, start, start + len(text.encode()), kind == duckdb.token_type.string_const)


def _is_stretch(words: list[_SqlWord], at: int) -> bool:
    return (
        words[at].says("for")
        and at + 1 < len(words)
        and any(words[at + 1].says(kind) for kind in ("slice", "system_time", "lake"))
    )


def _view(words: list[_SqlWord], at: int) -> tuple[StreamReference, int] | None:
    """What `latest('scope.table')` and the like ask for, with the stretch behind it, and where it ends."""
    view = next((view for view in VIEWS if words[at].says(view)), None)
    call = words[at + 1 : at + 4]
    if view is None or [word.text for word in (*call[:1], *call[2:])] != ["(", ")"] or not call[1].is_text:
        return None
    scope, name = _names(call[1].text[1:-1].replace("''", "'"))
    if at + 4 >= len(words) or not _is_stretch(words, at + 4):
        return StreamReference(scope, name, view=view), call[2].end
    stretch, end = _stretch(scope, name, words, at + 5)
    if stretch.slice_name is not None or stretch.is_lake or (view == "latest" and stretch.start is not None):
        instead = "as of 'place'" if view == "latest" else "from 'place' to 'place'"
        raise InvalidArgumentError(f"write {view}('…') with for system_time {instead}: it is of no other stretch")
    return replace(stretch, view=view), end


def _names(text: str) -> tuple[str, str]:
    """Scope and name in a text, with quotes if one of them has a dot: home."meters.raw"."""
    *scope, name = [quoted.replace('""', '"') or plain for quoted, plain in _NAMES.findall(text)] or [""]
    return ".".join(scope), name


def _name_before(words: list[_SqlWord], at: int) -> tuple[str, str, int]:
    """The name that ends before a word: scope, stream, and where it begins."""
    if at == 0 or words[at - 1].is_text or words[at - 1].text in ")(,;":
        raise InvalidArgumentError(
            f"before '{_around(words, at)}' there is no stream: write it as home.meters for slice 'name'"
        )
    stream, start, scope = words[at - 1], words[at - 1].start, ""
    if at >= 3 and words[at - 2].text == ".":
        scope, start = _plain(words[at - 3].text), words[at - 3].start
    return scope, _plain(stream.text), start


def _stretch(scope: str, stream: str, words: list[_SqlWord], at: int) -> tuple[StreamReference, int]:
    def text(number: int) -> str:
        if number >= len(words) or not words[number].is_text:
            raise InvalidArgumentError(
                f"after '{_around(words, at)}' there must be a name in single quotes, as in for slice 'name', "
                "for system_time as of 'name', or for system_time from 'name' to 'name'"
            )
        return words[number].text[1:-1].replace("''", "'")

    def says(number: int, word: str) -> bool:
        return number < len(words) and words[number].says(word)

    if words[at].says("slice"):
        return StreamReference(scope, stream, text(at + 1)), words[at + 1].end
    if words[at].says("lake"):
        if says(at + 1, "as") and says(at + 2, "of"):
            return StreamReference(scope, stream, end=text(at + 3), is_lake=True), words[at + 3].end
        return StreamReference(scope, stream, is_lake=True), words[at].end
    if says(at + 1, "as") and says(at + 2, "of"):
        return StreamReference(scope, stream, end=text(at + 3)), words[at + 3].end
    if says(at + 1, "from") and says(at + 3, "to"):
        return StreamReference(scope, stream, start=text(at + 2), end=text(at + 4)), words[at + 4].end
    text(len(words))  # which raises
    raise AssertionError


def _around(words: list[_SqlWord], at: int) -> str:
    return " ".join(word.text for word in words[max(0, at - 1) : at + 2])


def _plain(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name


def _quoted(*names: str) -> str:
    return ".".join('"' + name.replace('"', '""') + '"' for name in names if name)


def _tables(query: str) -> list[tuple[str, str]]:
    """Schema and name of all tables that a query names, those that it makes itself among them."""
    with duckdb.connect() as parser:
        row = parser.execute("select json_serialize_sql(?)", [query]).fetchone()
    assert row is not None
    parsed = json.loads(row[0])
    if parsed["error"]:
        what = parsed["error_message"]
        if parsed.get("error_type") == "not implemented":
            what = "only queries can be run: select, from, or with"
        raise InvalidArgumentError(f"that is no query: {what}")
    if len(parsed["statements"]) != 1:
        raise InvalidArgumentError(f"give one query, not {len(parsed['statements'])}")
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

_OWN = ("segment_id", "offset", "append_time")


def make_views(
    manager: StreamManager,
    con: duckdb.DuckDBPyConnection,
    asked: Iterable[StreamReference],
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
        if stretch.scope:
            con.execute(f"create schema if not exists {_quoted(stretch.scope)}")
        kind = "view" if stretch.scope else "temp view"
        con.execute(f"create {kind} {_quoted(stretch.scope, stretch.table)} as from nadi_{number}")
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


def _scan(manager: StreamManager, scope: str, stretch: StreamReference, ddl: str | None) -> Readable | None:
    """None if the stream does not exist and the query does not name a scope: DuckDB may know the name."""
    if stretch.is_lake:
        if ddl is not None:
            raise InvalidArgumentError(
                f"--schema {stretch.stream}=… has no effect on a lake: its table has the columns"
            )
        return nadi.lake.union(manager, scope, stretch.stream, at=stretch.end)
    if ddl is None and (table := _defined(manager, scope, stretch.stream)) is not None:
        return table.rows(start=stretch.start, end=stretch.end, slice=stretch.slice_name, also=_OWN)
    try:
        stored = partial(stored_format, scope=scope, stream=stretch.stream)
        value_format = "json" if ddl is not None else awaited(manager, stored)
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
    except (StreamTableNotFoundError, PermissionDeniedError):  # without that permission a stream is read as such
        return None
