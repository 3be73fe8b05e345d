"""A query's rows, printed as they come: a table of the first ones, or all as JSON or CSV."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

import duckdb
import msgspec
import typer

from nadi.cli.printing import Form, output, say, table_of, warn

_AT_ONCE = 10_000
_IN_TABLE = 1_000


def print_rows(con: duckdb.DuckDBPyConnection, form: Form) -> None:
    """Of the query that it has run."""
    names = [str(column[0]) for column in con.description or ()]
    rows = _rows(con)
    if form is Form.CSV:
        lines = csv.writer(sys.stdout, lineterminator="\n")
        lines.writerow(names)
        lines.writerows([_text(value) for value in row] for row in rows)
    elif form is Form.JSON:
        start = "["
        for row in rows:
            one = msgspec.json.encode(dict(zip(names, row, strict=True)), enc_hook=str).decode()
            typer.echo(f"{start}\n  {one}", nl=False)
            start = ","
        say("\n]" if start == "," else "[]")
    else:
        _print_table(names, rows)


def _print_table(names: list[str], rows: Iterator[tuple[Any, ...]]) -> None:
    keys = [str(number) for number in range(len(names))]  # names may be there twice
    first = [dict(zip(keys, map(_shown, row), strict=True)) for row in islice(rows, _IN_TABLE)]
    if not first:
        say("no rows")
        return
    table = table_of(first, keys)
    for column, name in zip(table.columns, names, strict=True):
        column.header = name
    output().print(table)
    if next(rows, None) is not None:
        warn(f"these are the first {_IN_TABLE:,} rows: -o csv and -o json print all")


def _rows(con: duckdb.DuckDBPyConnection) -> Iterator[tuple[Any, ...]]:
    while some := con.fetchmany(_AT_ONCE):
        yield from some


def _shown(value: Any) -> Any:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value


def _text(value: Any) -> str:
    """In CSV: what has no plain text is JSON, what is null is empty."""
    if value is None:
        return ""
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode().strip('"')
