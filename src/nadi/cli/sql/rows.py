"""Runs a query and prints its rows as they arrive: a table of the first rows, or all of them as JSON or CSV.

Values are never changed: those that Python or JSON can't represent are printed as DuckDB's text. Caller: `nadi sql`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import date, datetime
from functools import partial
from itertools import count, islice
from typing import Any

import duckdb
import msgspec
import typer
from duckdb.sqltypes import DuckDBPyType

from nadi.cli.printing import Form, output, say, table_of, warn

_AT_ONCE = 10_000
_IN_TABLE = 1_000
_MOMENTS = {"timestamp", "timestamp_s", "timestamp_ms", "timestamp with time zone"}
_AS_TEXT = {
    "date",
    "timestamp_ns",
    "time_ns",
    "interval",
    *_MOMENTS,
}  # Python's types lack nanoseconds, months and infinity
_NESTED = {"list", "array", "struct", "map", "union"}


def run_and_print(con: duckdb.DuckDBPyConnection, query: str, form: Form) -> None:
    """Run one query, without a trailing semicolon, and print its rows."""
    relation = con.sql(query)
    names, types = [str(name) for name in relation.columns], relation.types
    rows = _rows(con, query, types)
    if form is Form.CSV:
        typer.echo(",".join(map(_quoted, names)))
        shown = [_nested if kind.id in _NESTED else _text for kind in types]
        for row in rows:
            fields = (None if value is None else show(value) for show, value in zip(shown, row, strict=True))
            typer.echo(",".join("" if text is None else _quoted(text) for text in fields))
    elif form is Form.JSON:
        keys = _distinct(names)
        has_floats = [any(name in str(kind) for name in ("DOUBLE", "FLOAT", "VARIANT")) for kind in types]
        start = "["
        for row in rows:
            parts = zip(keys, has_floats, row, strict=True)
            values = {key: _finite(value) if is_float else value for key, is_float, value in parts}
            typer.echo(f"{start}\n  {_encoded(values)}", nl=False)
            start = ","
        say("\n]" if start == "," else "[]")
    else:
        _print_table(names, rows)


def _rows(con: duckdb.DuckDBPyConnection, query: str, types: list[DuckDBPyType]) -> Iterator[tuple[Any, ...]]:
    """Yield the query's rows, with DuckDB's text for times that Python can't represent, at any depth."""
    casts = [_cast_to(kind) for kind in types]
    reads = [_reader(kind) for kind in types]
    if any(casts):
        columns = (f"#{at}::{kind}" if kind else f"#{at}" for at, kind in enumerate(casts, 1))
        con.execute(f"select {', '.join(columns)} from (\n{query}\n)")
    else:
        con.execute(query)
    while batch := con.fetchmany(_AT_ONCE):
        for row in batch:
            yield tuple(_read(read, value) for read, value in zip(reads, row, strict=True))


def _cast_to(kind: DuckDBPyType) -> str | None:
    """Return the type with strings in place of such times; None if it doesn't contain any."""
    if kind.id in _AS_TEXT:
        return "varchar"
    if kind.id not in _NESTED - {"union"}:
        return None
    children = [(name, child) for name, child in kind.children if isinstance(child, DuckDBPyType)]
    casts = [_cast_to(child) for _, child in children]
    if not any(casts) or (kind.id == "struct" and not all(name for name, _ in children)):
        return None
    inner = [cast or str(child) for cast, (_, child) in zip(casts, children, strict=True)]
    if kind.id == "struct":
        fields = (
            f'"{name.replace(chr(34), chr(34) * 2)}" {cast}' for (name, _), cast in zip(children, inner, strict=True)
        )
        return f"struct({', '.join(fields)})"
    if kind.id == "map":
        return f"map({', '.join(inner)})"
    return f"{inner[0]}[{dict(kind.children)['size'] if kind.id == 'array' else ''}]"


def _reader(kind: DuckDBPyType) -> Callable[[Any], Any] | None:
    """Return a function that converts a column's values for printing; None if they need no conversion."""
    if kind.id == "date":
        return partial(_time, date.fromisoformat)
    if kind.id in _MOMENTS:
        return partial(_time, datetime.fromisoformat)
    if kind.id not in _NESTED - {"union"}:
        return None
    reads = {name: _reader(item) for name, item in kind.children if isinstance(item, DuckDBPyType)}
    if kind.id == "map" and kind.key.id == "boolean":
        reads["key"] = lambda value: "true" if value else "false"
    reads = {name: read for name, read in reads.items() if read is not None}
    if not reads:
        return None
    if kind.id == "struct":
        return lambda value: {name: _read(reads.get(name), item) for name, item in value.items()}
    if kind.id != "map":
        return lambda value: [_read(reads["child"], item) for item in value]
    if kind.key.id in _NESTED:  # not hashable in Python: DuckDB returns lists of keys and of values
        return lambda value: {name: [_read(reads.get(name), item) for item in items] for name, items in value.items()}
    return lambda value: {_read(reads.get("key"), key): _read(reads.get("value"), item) for key, item in value.items()}


def _read(read: Callable[[Any], Any] | None, value: Any) -> Any:
    return value if read is None or value is None else read(value)


def _time(parse: Callable[[str], Any], text: str) -> Any:
    try:
        return parse(text)
    except ValueError:
        return text


def _print_table(names: list[str], rows: Iterator[tuple[Any, ...]]) -> None:
    keys = [str(number) for number in range(len(names))]  # column names may repeat
    first = [dict(zip(keys, map(_shown, row), strict=True)) for row in islice(rows, _IN_TABLE)]
    if not first:
        say("no rows")
        return
    table = table_of(first, keys)
    for column, name in zip(table.columns, names, strict=True):
        column.header = name
    output().print(table)
    if next(rows, None) is not None:
        warn(f"only the first {_IN_TABLE:,} rows are shown: use -o csv or -o json for all")


def _distinct(names: list[str]) -> list[str]:
    """Make column names distinct by appending numbers, as DuckDB does.

    >>> _distinct(["a", "b", "a", "a_1"])
    ['a', 'b', 'a_2', 'a_1']
    """
    keys: list[str] = []
    for name in names:
        free = (key for number in count(1) if (key := f"{name}_{number}") not in names and key not in keys)
        keys.append(name if name not in keys else next(free))
    return keys


def _finite(value: Any) -> Any:
    """Replace NaN and infinities, which JSON lacks, by the strings that Spark and Protobuf use."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {_finite(key): _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def _encoded(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()


def _nested(value: Any) -> str:
    """Encode a list, struct or map as JSON within a CSV field."""
    return _encoded(_finite(value))


def _shown(value: Any) -> Any:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value


def _text(value: Any) -> str:
    if isinstance(value, bytes | str):
        return str(_shown(value))
    return str(value) if isinstance(value, float) else _encoded(value).strip('"')


def _quoted(text: str) -> str:
    """Quote a CSV field if needed; quotes distinguish an empty string from NULL."""
    return '"' + text.replace('"', '""') + '"' if not text or any(char in text for char in ',"\r\n') else text
