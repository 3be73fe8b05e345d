"""`nadi table`: key-value tables, their keys and values as text.

Keys of a table have a fixed length. A shorter text is filled up with zero bytes, which aren't shown again; `--hex`
takes keys as they are. A value that isn't text is shown in Base64.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nadi.cli.bookmarks import Scope
from nadi.cli.printing import Form, say, say_gone, show, warn
from nadi.cli.session import Yes, connected
from nadi.errors import (
    ConditionFailedError,
    ConflictError,
    InvalidArgumentError,
    KeyValueTableNotFoundError,
    NotFoundError,
)

if TYPE_CHECKING:
    from nadi.client import KeyValueTable, StreamManager, TableEntry, TableKey

table_app = typer.Typer(help="Key-value tables: create, list, get, put, remove, delete.", no_args_is_help=True)
Table = Annotated[str, typer.Argument(help="The table.")]
Key = Annotated[str, typer.Argument(help="The key; a short one is filled up with zero bytes.")]
Secondary = Annotated[str, typer.Option(help="The secondary key, in tables that have them.")]
Hex = Annotated[bool, typer.Option("--hex", help="Keys are hex digits, of all their bytes.")]
IfVersion = Annotated[str | None, typer.Option(help="Only if the value still has this version.", metavar="VERSION")]
Primary = Annotated[str | None, typer.Option(help="Only this primary key; the others are secondary keys then.")]
Prefix = Annotated[str, typer.Option(help="Only keys that start so.")]
First = Annotated[str, typer.Option("--from", help="The first key.")]
Last = Annotated[str, typer.Option("--to", help="The last key; it stands for all that start so.")]
Most = Annotated[int, typer.Option("--limit", help="Show at most so many.", min=1, max=1_000_000)]


@table_app.command("list")
@connected
def list_tables(manager: StreamManager, scope: Scope, form: Form = Form.TABLE) -> None:
    """List a scope's key-value tables."""
    rows = []
    for name in sorted(manager.list_key_value_tables(scope)):
        try:
            table = manager.key_value_table(scope, name)
            entries = table.entry_count()
        except KeyValueTableNotFoundError:
            continue  # deleted meanwhile
        known = table.configuration
        rows.append(
            {
                "table": name,
                "entries": entries,
                "key bytes": known.primary_key_bytes,
                "secondary bytes": known.secondary_key_bytes,
                "partitions": known.partitions,
            }
        )
    columns = ["table", "entries", "key bytes", "secondary bytes", "partitions"]
    show(rows, columns, form=form, empty=f"Scope {scope} has no key-value tables.")


@table_app.command("create")
@connected
def create_table(
    manager: StreamManager,
    scope: Scope,
    table: Table,
    key_bytes: Annotated[int, typer.Option(help="The length of its keys, which is the same for all.", min=1)] = 32,
    secondary_bytes: Annotated[int, typer.Option(help="The length of secondary keys; 0: it has none.", min=0)] = 0,
    partitions: Annotated[int, typer.Option(help="Over so many its keys are spread.", min=1)] = 1,
) -> None:
    """Create a key-value table; its scope must exist."""
    from nadi.client import KeyValueTableConfiguration

    config = KeyValueTableConfiguration(key_bytes, secondary_bytes, partitions)
    made = manager.create_key_value_table(scope, table, config)
    say(f"created table {scope}/{table}" if made else f"table {scope}/{table} already exists")


@table_app.command("delete")
@connected
def delete_table(manager: StreamManager, scope: Scope, table: Table, yes: Yes = False) -> None:
    """Delete a table and all that is in it."""
    if not yes:
        typer.confirm(f"Delete table {scope}/{table} and all its entries?", abort=True)
    gone = manager.delete_key_value_table(scope, table)
    say_gone(gone, f"deleted table {scope}/{table}", f"table {scope}/{table}")


@table_app.command("get")
@connected
def get(
    manager: StreamManager,
    scope: Scope,
    table: Table,
    key: Key,
    secondary: Secondary = "",
    is_hex: Hex = False,
    form: Form = Form.TABLE,
) -> None:
    """Print the value of a key as it is; as JSON or CSV, with its version."""
    opened = manager.key_value_table(scope, table)
    found = opened.get(_key(opened, key, secondary, is_hex=is_hex))
    if found is None:
        raise NotFoundError(f"table {scope}/{table} has no key {key!r}")
    if form is Form.TABLE:
        sys.stdout.buffer.write(found.value + b"\n")
        sys.stdout.buffer.flush()
    else:
        show([_entry(found)], [], form=form, empty="")


@table_app.command("put")
@connected
def put(
    manager: StreamManager,
    scope: Scope,
    table: Table,
    key: Key,
    value: Annotated[str, typer.Argument(help="The value; `-` takes it from standard input, as it is.")],
    secondary: Secondary = "",
    is_hex: Hex = False,
    if_version: IfVersion = None,
    if_absent: Annotated[bool, typer.Option("--if-absent", help="Only if the key has no value.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The value must be JSON.")] = False,
) -> None:
    """Store a value under a key, and print its version."""
    import msgspec

    from nadi.client import Version
    from nadi.limits import TABLE_VALUE_MAX_BYTES

    if if_absent and if_version is not None:
        raise InvalidArgumentError("--if-version and --if-absent exclude each other: choose one")
    data = sys.stdin.buffer.read(TABLE_VALUE_MAX_BYTES + 1) if value == "-" else value.encode()
    if as_json:
        try:
            msgspec.json.decode(data)
        except msgspec.DecodeError as error:
            raise InvalidArgumentError(f"the value is not JSON: {error}") from None
    opened = manager.key_value_table(scope, table)
    whole = _key(opened, key, secondary, is_hex=is_hex)
    version = Version.from_text(if_version) if if_version is not None else None
    try:
        made = opened.insert(whole, data) if if_absent else opened.put(whole, data, version)
    except ConditionFailedError:
        raise _other_version(opened, whole, key) from None
    say(str(made))


@table_app.command("remove")
@connected
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
    whole = _key(opened, key, secondary, is_hex=is_hex)
    version = Version.from_text(if_version) if if_version is not None else None
    was_there = opened.exists(whole)
    try:
        opened.remove(whole, version)
    except ConditionFailedError:
        raise _other_version(opened, whole, key) from None
    say_gone(was_there, f"removed key {key}", f"key {key}")


@table_app.command("keys")
@connected
def keys(
    manager: StreamManager,
    scope: Scope,
    table: Table,
    primary: Primary = None,
    prefix: Prefix = "",
    first: First = "",
    last: Last = "",
    is_hex: Hex = False,
    limit: Most = 1000,
    form: Form = Form.TABLE,
) -> None:
    """List the keys of a table, in order."""
    opened = manager.key_value_table(scope, table)
    found = opened.keys(**_range(opened, primary, prefix, first, last, is_hex=is_hex))
    rows = _limited((_names(one) for one in found), limit)
    columns = ["key", *(["secondary"] if opened.configuration.secondary_key_bytes else [])]
    show(rows, columns, form=form, empty=f"Table {scope}/{table} has no such key.")


@table_app.command("entries")
@connected
def entries(
    manager: StreamManager,
    scope: Scope,
    table: Table,
    primary: Primary = None,
    prefix: Prefix = "",
    first: First = "",
    last: Last = "",
    is_hex: Hex = False,
    limit: Most = 1000,
    form: Form = Form.TABLE,
) -> None:
    """List the entries of a table, in order of their keys."""
    opened = manager.key_value_table(scope, table)
    found = opened.entries(**_range(opened, primary, prefix, first, last, is_hex=is_hex))
    rows = _limited((_entry(one) for one in found), limit)
    columns = ["key", *(["secondary"] if opened.configuration.secondary_key_bytes else []), "value", "version"]
    show(rows, columns, form=form, empty=f"Table {scope}/{table} has no such key.")


def _limited(rows: Iterable[dict[str, Any]], limit: int) -> list[dict[str, Any]]:
    found = list(islice(rows, limit + 1))
    if len(found) > limit:
        warn(f"there are more: --limit shows more than {limit:,}")
    return found[:limit]


def _names(key: TableKey) -> dict[str, Any]:
    return {"key": _shown(key.primary), "secondary": _shown(key.secondary) or None}


def _entry(entry: TableEntry) -> dict[str, Any]:
    try:
        value = {"value": entry.value.decode()}
    except UnicodeDecodeError:
        value = {"value": base64.b64encode(entry.value).decode(), "encoding": "base64"}
    return _names(entry.key) | {"version": str(entry.version)} | value


def _shown(key: bytes) -> str:
    """As text without what fills it up, or as hex digits of all of it."""
    try:
        text = key.rstrip(b"\0").decode()
    except UnicodeDecodeError:
        return f"0x{key.hex()}"
    return text if text.isprintable() else f"0x{key.hex()}"


def _key(table: KeyValueTable, key: str, secondary: str, *, is_hex: bool) -> TableKey:
    from nadi.client import TableKey

    config = table.configuration
    if secondary and not config.secondary_key_bytes:
        raise InvalidArgumentError("--secondary has no effect: keys of this table have no second part")
    if is_hex:
        return TableKey(_bytes(key, is_hex=True), _bytes(secondary, is_hex=True))
    return TableKey(
        key.encode().ljust(config.primary_key_bytes, b"\0"),
        secondary.encode().ljust(config.secondary_key_bytes, b"\0"),
    )


def _range(
    table: KeyValueTable, primary: str | None, prefix: str, first: str, last: str, *, is_hex: bool
) -> Mapping[str, Any]:
    if prefix and (first or last):
        raise InvalidArgumentError("--prefix excludes --from and --to: choose one")
    bounds = {"prefix": prefix, "start": first, "end": last}
    given: dict[str, Any] = {name: _bytes(text, is_hex=is_hex) for name, text in bounds.items() if text}
    if primary is not None:
        given["primary"] = _key(table, primary, "", is_hex=is_hex).primary
    return given


def _bytes(text: str, *, is_hex: bool) -> bytes:
    if not is_hex:
        return text.encode()
    try:
        return bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        raise InvalidArgumentError(f"{text!r} are not hex digits of whole bytes") from None


def _other_version(table: KeyValueTable, whole: TableKey, key: str) -> ConflictError:
    found = table.get(whole)
    now = f"has version {found.version}" if found is not None else "has no value"
    return ConflictError(f"key {key} {now}: nothing was changed")
