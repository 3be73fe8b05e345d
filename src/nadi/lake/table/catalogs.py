"""Opens catalogs, and creates, loads and changes the tables in them.

A catalog is described by PyIceberg's properties (`type`, `uri`, `warehouse`, `s3.endpoint`, ...). They are stored, so
secrets must be references: `${NAME}` is a variable in the environment of the process that opens the catalog, see
`error_mapping`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from nadi.client.serializers.types import names_differing_in_case
from nadi.errors import InvalidArgumentError, UnavailableError
from nadi.lake.table.error_mapping import (
    CATALOG,
    LakeStoppedError,
    cause,
    mapped_errors,
    plain_secret,
    resolved,
    without_secrets,
)
from nadi.lake.table.reading import columns_of

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot


def evolved(catalog: Catalog, table: Table, rows: pa.Schema) -> Table:
    """Return the table with all columns of the rows; LakeStoppedError for a change that Iceberg doesn't support.

    New columns are null in existing rows, and columns that the rows lack are null in new ones. Numbers widen: int to
    long, float to double, a decimal's digits before the point.
    """
    from pyiceberg.exceptions import CommitFailedException, ValidationError

    name = ".".join(table.name())
    before = table.schema()
    current = columns_of(table)
    misfits = (
        _misfit(field.type, current.field(field.name).type, field.name) for field in rows if field.name in current.names
    )
    problem = case_problem(rows, current) or next(filter(None, misfits), None)
    if problem is not None:
        raise _cannot_follow(name, problem)
    with mapped_errors(CATALOG):
        try:
            with table.update_schema() as change:
                change.union_by_name(rows)
        except CommitFailedException as error:
            raise UnavailableError(f"another writer has changed the columns of {name}: {error}") from error
        except (ValueError, TypeError, ValidationError) as error:
            raise _cannot_follow(name, str(error)) from error
    if table.schema() == before:
        return table
    changed = load_table(catalog, name)
    if changed is None:
        raise UnavailableError(f"table {name} was dropped meanwhile: restore it")
    return changed


def _cannot_follow(name: str, why: str) -> LakeStoppedError:
    return LakeStoppedError(
        f"the events' columns have changed in a way that table {name} can't follow ({why}). Events before the table's "
        "cut are in it. Write events of the new kind to another stream, restrict the lake to common fields (--schema), "
        "or start another lake with another table from here (--name, --table, --from)"
    )


def case_problem(fields: Iterable[pa.Field], before: Iterable[pa.Field] = ()) -> str | None:
    """Return why SQL engines couldn't distinguish the columns from each other or the table's; None if they can."""
    pair = names_differing_in_case(fields, before)
    if pair is None:
        return None
    return f"{pair[0]!r} and {pair[1]!r} differ only by case, which SQL ignores: rename the field"


def _misfit(rows: pa.DataType, table: pa.DataType, path: str) -> str | None:
    """Return why a column can't be stored in the table's column, widened or not; None if it can."""
    types = pa.types
    if types.is_struct(rows) and types.is_struct(table):
        fields = {field.name: field.type for field in table}
        problems = (
            _misfit(field.type, fields[field.name], f"{path}.{field.name}") for field in rows if field.name in fields
        )
        return next(filter(None, problems), None)
    if types.is_list(rows) and types.is_list(table):
        return _misfit(rows.value_type, table.value_type, f"{path}.element")
    if types.is_map(rows) and types.is_map(table):
        return _misfit(rows.key_type, table.key_type, f"{path}.key") or _misfit(
            rows.item_type, table.item_type, f"{path}.value"
        )
    grows = (
        rows == table
        or (types.is_integer(rows) and types.is_integer(table))
        or (types.is_floating(rows) and types.is_floating(table))
        or (types.is_decimal(rows) and types.is_decimal(table) and rows.scale == table.scale)
        or (types.is_string(rows) and types.is_binary(table))
    )
    return None if grows else f"{path} is {table} in the table, and {rows} now"


def fitted(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows with the columns of a table, in their order."""
    columns = []
    for field in schema:
        at = rows.schema.get_field_index(field.name)
        columns.append(pa.nulls(rows.num_rows, field.type) if at < 0 else _as(rows.column(at), field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _as(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert a column to that type: fields by name, missing ones null."""
    types = pa.types
    if column.type == kind:
        return column
    if types.is_struct(kind):
        fields = [
            _as(pa.compute.struct_field(column, field.name), field.type)
            if column.type.get_field_index(field.name) >= 0
            else pa.nulls(len(column), field.type)
            for field in kind
        ]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=column.is_null())
    if types.is_large_list(kind) and (types.is_list(column.type) or types.is_large_list(column.type)):
        offsets = column.offsets.cast(pa.int64())
        values = _as(column.values, kind.value_type)
        return pa.LargeListArray.from_arrays(
            offsets, values, type=kind, mask=column.is_null() if column.null_count else None
        )
    return column.cast(kind)


_USUAL = {"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}
NAME = "name"
_DEFAULT_NAME = "nadi"


def catalog_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties to store; InvalidArgumentError for plain-text secrets, which are not in the message.

    >>> catalog_properties({"type": "rest", "token": "${LAKE_TOKEN}"})["token"]
    '${LAKE_TOKEN}'
    """
    if not properties:
        raise InvalidArgumentError(
            "the catalog is missing: pass its properties, such as type=sql, uri=sqlite:////lake/catalog.db and "
            "warehouse=file:///lake; or name=NAME for a catalog in PyIceberg's configuration"
        )
    for name, value in properties.items():
        if not isinstance(name, str) or not isinstance(value, str) or not name:
            raise InvalidArgumentError(
                f"a catalog's properties must be texts, such as type=sql, not of type {type(name).__name__} and "
                f"{type(value).__name__}"
            )
        secret = plain_secret(name, value)
        if secret is not None:
            instead = f"{name}=${{NAME}}" if secret == "a secret" else f"{name}=postgresql://user:${{NAME}}@host/…"
            raise InvalidArgumentError(
                f"the catalog's property {name!r} has {secret}, which would be stored in plain text: use an "
                f"environment variable, as in {instead}"
            )
    return dict(properties)


def open_catalog(properties: Mapping[str, str]) -> Catalog:
    """Open the catalog; InvalidArgumentError for invalid properties, UnavailableError if it doesn't answer."""
    try:
        from pyiceberg.catalog import load_catalog
    except ImportError:
        raise InvalidArgumentError("a lake needs PyIceberg: pip install 'nadi[lake]'") from None

    options, secrets = resolved(properties, _from_environment)
    name = options.pop(NAME, _DEFAULT_NAME)
    with mapped_errors(CATALOG, secrets):
        try:
            return load_catalog(name, **(_USUAL | options))
        except (ValueError, TypeError, ImportError) as error:
            problem = f"can't open the catalog, check its properties: {without_secrets(str(error), secrets)}"
            raise InvalidArgumentError(problem) from cause(error, secrets)
        except Exception as error:
            if type(error).__name__ == "NotInstalledError":
                raise InvalidArgumentError(f"the catalog needs another package: {error}") from error
            raise


def _from_environment(variable: str) -> str:
    value = os.environ.get(variable)
    if value is None:
        raise InvalidArgumentError(
            f"the variable {variable} in the catalog's properties isn't set: set it in this environment"
        )
    return value


def load_table(catalog: Catalog, identifier: str) -> Table | None:
    """Return the table's current state; None if it doesn't exist."""
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    with mapped_errors(CATALOG):
        try:
            return catalog.load_table(identifier)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None


def table_of(properties: Mapping[str, str], identifier: str) -> Table | None:
    """Return the table's current state, closing the catalog; None if it doesn't exist."""
    with open_catalog(properties) as catalog:
        return load_table(catalog, identifier)


def create_table(catalog: Catalog, identifier: str, schema: Any, fields: list[tuple[str, str]]) -> Table:
    """Create the table, or load it if it exists. fields: partition columns with transforms."""
    from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError

    namespace = identifier.rpartition(".")[0]
    properties = {
        "write.metadata.delete-after-commit.enabled": "true",  # deletes old metadata files
        "write.metadata.previous-versions-max": "20",
    }
    with mapped_errors(CATALOG):
        catalog.create_namespace_if_not_exists(namespace)
        try:
            with catalog.create_table_transaction(identifier, schema, properties=properties) as transaction:
                if fields:
                    with transaction.update_spec() as spec:
                        for column, transform in fields:
                            spec.add_field(column, transform)
        except (TableAlreadyExistsError, CommitFailedException):
            pass
        except ValueError as error:
            raise InvalidArgumentError(f"can't create the table, change its schema or partition: {error}") from error
    table = load_table(catalog, identifier)
    if table is None:
        raise UnavailableError(f"table {identifier} was created, but is gone again")
    return table


def retained_snapshots(table: Table, before: datetime) -> list[Snapshot]:
    """Return the snapshots that remain when older ones are expired; the newest always does."""
    heads = {ref.snapshot_id for ref in table.refs().values()}
    before_ms = before.timestamp() * 1000
    return [
        snapshot
        for snapshot in table.snapshots()
        if snapshot.snapshot_id in heads or snapshot.timestamp_ms >= before_ms
    ]


def expire_snapshots(table: Table, before: datetime) -> None:
    with mapped_errors(CATALOG):
        table.maintenance.expire_snapshots().older_than(before).commit()
