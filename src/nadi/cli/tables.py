"""`nadi table`: key-value tables, with keys and values as text.

Keys of a table have a fixed length. Shorter keys are padded with zero bytes, which aren't printed; `--hex` takes keys
as they are. Values that aren't text are printed in Base64.
"""

from __future__ import annotations

import base64
import sys
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nadi.cli.options import Scope
from nadi.cli.printing import Form, report_deleted, say, show, warn
from nadi.cli.session import Resource, Row, choose_one
from nadi.errors import (
    ConditionFailedError,
    ConflictError,
    InvalidArgumentError,
    KeyValueTableNotFoundError,
    NotFoundError,
)

if TYPE_CHECKING:
    from nadi.client import KeyValueTable, StreamManager, TableEntry, TableKey

Table = Annotated[str, typer.Argument(help="Name of the table.")]
Key = Annotated[str, typer.Argument(help="Key; short keys are padded with zero bytes.")]
Secondary = Annotated[str, typer.Option(help="Secondary key, in tables that have them.")]
Hex = Annotated[bool, typer.Option("--hex", help="Keys are given as hex digits of all their bytes.")]
IfVersion = Annotated[str | None, typer.Option(help="Only if the entry has this version.", metavar="VERSION")]
Primary = Annotated[
    str | None, typer.Option(help="Only this primary key; --prefix, --from and --to apply to secondary keys.")
]
Prefix = Annotated[str, typer.Option(help="Only keys with this prefix.")]
First = Annotated[str, typer.Option("--from", help="First key.")]
Last = Annotated[str, typer.Option("--to", help="Last key; includes all keys with this prefix.")]


def _rows(manager: StreamManager, scope: str) -> Any:
    rows = []
    for name in sorted(manager.list_key_value_tables(scope)):
        with suppress(KeyValueTableNotFoundError):  # deleted meanwhile
            table = manager.key_value_table(scope, name)
            config = table.configuration
            lengths = config.primary_key_bytes, config.secondary_key_bytes
            rows.append(dict(zip(_COLUMNS, (name, table.entry_count(), *lengths, config.partitions), strict=True)))
    return rows, ()


_COLUMNS = ["table", "entries", "key bytes", "secondary bytes", "partitions"]
table_app = Resource(
    noun="table",
    names={"scope": Scope, "table": Table},
    columns=_COLUMNS,
    rows=_rows,
    empty="No key-value tables in scope {scope}.",
    delete=lambda manager, scope, table: manager.delete_key_value_table(scope, table),
    find=lambda manager, scope, table: manager.key_value_table_configuration(scope, table),
    question=" and all its entries?",
).app()


@table_app.command("create")
def create_table(
    manager: StreamManager,
    scope: Scope,
    table: Table,
    key_bytes: Annotated[int, typer.Option(help="Fixed length of keys.", min=1)] = 32,
    secondary_bytes: Annotated[int, typer.Option(help="Fixed length of secondary keys; 0: none.", min=0)] = 0,
    partitions: Annotated[int, typer.Option(help="Number of partitions that keys are spread over.", min=1)] = 1,
) -> None:
    """Create a key-value table. The scope must exist."""
    from nadi.client import KeyValueTableConfiguration

    config = KeyValueTableConfiguration(key_bytes, secondary_bytes, partitions)
    is_new = manager.create_key_value_table(scope, table, config)
    say(f"created table {scope}/{table}" if is_new else f"table {scope}/{table} already exists")


@table_app.command("get")
def get(
    manager: StreamManager,
    scope: Scope,
    table: Table,
    key: Key,
    secondary: Secondary = "",
    is_hex: Hex = False,
    form: Form = Form.TABLE,
) -> None:
    """Print the value of a key as is; with -o json or csv, with its version."""
    opened = manager.key_value_table(scope, table)
    entry = opened.get(_key(opened, key, secondary, is_hex=is_hex))
    if entry is None:
        raise NotFoundError(f"key {key!r} doesn't exist in table {scope}/{table}")
    if form is Form.TABLE:
        sys.stdout.buffer.write(entry.value + b"\n")
        sys.stdout.buffer.flush()
    else:
        show([_entry(entry)], form=form)


@table_app.command("put")
def put(
    manager: StreamManager,
    scope: Scope,
    table: Table,
    key: Key,
    value: Annotated[str, typer.Argument(help="Value; `-` reads it from standard input.")],
    secondary: Secondary = "",
    is_hex: Hex = False,
    if_version: IfVersion = None,
    if_absent: Annotated[bool, typer.Option("--if-absent", help="Only if the key doesn't exist.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Check that the value is JSON.")] = False,
) -> None:
    """Store a value under a key and print its version."""
    import msgspec

    from nadi.client import Version
    from nadi.limits import TABLE_VALUE_MAX_BYTES

    choose_one(if_version=if_version is not None, if_absent=if_absent)
    data = sys.stdin.buffer.read(TABLE_VALUE_MAX_BYTES + 1) if value == "-" else value.encode()
    if as_json:
        try:
            msgspec.json.decode(data)
        except msgspec.DecodeError as error:
            raise InvalidArgumentError(f"the value is not JSON: {error}") from None
    opened = manager.key_value_table(scope, table)
    table_key = _key(opened, key, secondary, is_hex=is_hex)
    version = Version.from_text(if_version) if if_version is not None else None
    try:
        new_version = opened.insert(table_key, data) if if_absent else opened.put(table_key, data, version)
    except ConditionFailedError:
        raise _other_version(opened, table_key, key) from None
    say(str(new_version))


@table_app.command("remove")
def remove(
    manager: StreamManager,
    scope: Scope,
    table: Table,
    key: Key,
    secondary: Secondary = "",
    is_hex: Hex = False,
    if_version: IfVersion = None,
) -> None:
    """Remove a key."""
    from nadi.client import Version

    opened = manager.key_value_table(scope, table)
    table_key = _key(opened, key, secondary, is_hex=is_hex)
    version = Version.from_text(if_version) if if_version is not None else None
    was_there = opened.exists(table_key)
    try:
        opened.remove(table_key, version)
    except ConditionFailedError:
        raise _other_version(opened, table_key, key) from None
    report_deleted(was_there, f"removed key {key}", f"key {key}")


@table_app.command("entries")
def list_entries(
    manager: StreamManager,
    scope: Scope,
    table: Table,
    primary: Primary = None,
    prefix: Prefix = "",
    first: First = "",
    last: Last = "",
    is_hex: Hex = False,
    keys_only: Annotated[bool, typer.Option("--keys-only", help="Omit values.")] = False,
    limit: Annotated[int, typer.Option(help="Maximum number of entries.", min=1, max=1_000_000)] = 1000,
    form: Form = Form.TABLE,
) -> None:
    """List the entries of a table, ordered by key."""
    opened = manager.key_value_table(scope, table)
    if prefix and (first or last):
        raise InvalidArgumentError("--prefix can't be combined with --from and --to: choose one")
    given = {"prefix": prefix, "start": first, "end": last}
    bounds: dict[str, Any] = {name: _bytes(text, is_hex=is_hex) for name, text in given.items() if text}
    if primary is not None:
        bounds["primary"] = _key(opened, primary, "", is_hex=is_hex).primary
    rows = map(_names, opened.keys(**bounds)) if keys_only else map(_entry, opened.entries(**bounds))
    shown = list(islice(rows, limit + 1))
    if len(shown) > limit:
        warn(f"output is limited to {limit:,} entries: raise --limit to see more")
    columns = ["key", *(["secondary"] if opened.configuration.secondary_key_bytes else [])]
    columns += [] if keys_only else ["value", "version"]
    show(shown[:limit], columns, form=form, empty=f"Table {scope}/{table} doesn't have matching keys.")


def _names(key: TableKey) -> Row:
    return {"key": _shown(key.primary), "secondary": _shown(key.secondary) or None}


def _entry(entry: TableEntry) -> Row:
    try:
        value = {"value": entry.value.decode()}
    except UnicodeDecodeError:
        value = {"value": base64.b64encode(entry.value).decode(), "encoding": "base64"}
    return _names(entry.key) | {"version": str(entry.version)} | value


def _shown(key: bytes) -> str:
    """Return a key as text without padding, or as hex digits."""
    try:
        text = key.rstrip(b"\0").decode()
    except UnicodeDecodeError:
        return f"0x{key.hex()}"
    return text if text.isprintable() else f"0x{key.hex()}"


def _key(table: KeyValueTable, key: str, secondary: str, *, is_hex: bool) -> TableKey:
    from nadi.client import TableKey

    config = table.configuration
    if secondary and not config.secondary_key_bytes:
        raise InvalidArgumentError("--secondary can't be used: this table doesn't have secondary keys")
    if is_hex:
        return TableKey(_bytes(key, is_hex=True), _bytes(secondary, is_hex=True))
    return TableKey(
        key.encode().ljust(config.primary_key_bytes, b"\0"), secondary.encode().ljust(config.secondary_key_bytes, b"\0")
    )


def _bytes(text: str, *, is_hex: bool) -> bytes:
    if not is_hex:
        return text.encode()
    try:
        return bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        raise InvalidArgumentError(f"{text!r} is not a hexadecimal text: use two digits per byte") from None


def _other_version(table: KeyValueTable, table_key: TableKey, key: str) -> ConflictError:
    entry = table.get(table_key)
    state = f"has version {entry.version}" if entry is not None else "doesn't exist"
    return ConflictError(f"key {key} {state}: nothing was changed")
