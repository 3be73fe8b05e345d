"""Catalogs, and the tables in them.

A catalog is described by PyIceberg's properties (`type`, `uri`, `warehouse`, `s3.endpoint`, ...). They are kept in the
store, so a secret is named instead: `${NAME}` stands for a variable of the environment of whoever opens the catalog,
see `reaching`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from nadi.client.serializers.types import alike
from nadi.errors import InvalidArgumentError, UnavailableError
from nadi.lake.table.error_mapping import (
    CATALOG,
    LakeStoppedError,
    cause,
    plain_secret,
    reaching,
    resolved,
    without_secrets,
)
from nadi.lake.table.reading import columns_of

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot


def evolved(catalog: Catalog, table: Table, rows: pa.Schema) -> Table:
    """The table with all columns that rows have; LakeStoppedError for a change that Iceberg doesn't have.

    New columns are null in the rows that are there, and columns that rows don't have any more in new ones. Numbers
    grow: int to long, float to double, a decimal's digits before the point.
    """
    from pyiceberg.exceptions import CommitFailedException, ValidationError

    name = ".".join(table.name())
    before = table.schema()
    there = columns_of(table)
    misfits = (
        _misfit(field.type, there.field(field.name).type, field.name) for field in rows if field.name in there.names
    )
    problem = case_problem(rows, there) or next(filter(None, misfits), None)
    if problem is not None:
        raise _cannot_follow(name, problem)
    with reaching(CATALOG):
        try:
            with table.update_schema() as change:
                change.union_by_name(rows)
        except CommitFailedException as error:
            raise UnavailableError(f"another has changed the columns of {name} meanwhile: {error}") from error
        except (ValueError, TypeError, ValidationError) as error:
            raise _cannot_follow(name, str(error)) from error
    if table.schema() == before:
        return table
    found = load_table(catalog, name)
    if found is None:
        raise UnavailableError(f"table {name} was dropped meanwhile")
    return found


def _cannot_follow(name: str, why: str) -> LakeStoppedError:
    return LakeStoppedError(
        f"the events' columns have changed so that table {name} can't follow ({why}). What lies before the table's cut "
        "is in it. Give events of the new kind a stream, or the lake fields that both have (--schema), or start "
        "another lake with a table of its own from here (--name, --table, --from)"
    )


def case_problem(fields: Iterable[pa.Field], before: Iterable[pa.Field] = ()) -> str | None:
    """Why no engine could tell the columns of rows apart, or from those that a table has."""
    found = alike(fields, before)
    if found is None:
        return None
    return f"{found[0]!r} and {found[1]!r} differ by case alone, and SQL can't tell them apart: rename the field"


def _misfit(rows: pa.DataType, table: pa.DataType, path: str) -> str | None:
    """What keeps a column from being one of the table, grown or not; None if nothing does."""
    types = pa.types
    if types.is_struct(rows) and types.is_struct(table):
        there = {one.name: one.type for one in table}
        problems = (_misfit(one.type, there[one.name], f"{path}.{one.name}") for one in rows if one.name in there)
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
    return None if grows else f"{path} is {table} there, and {rows} now"


def fitted(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The rows with the columns of a table, in their order."""
    columns = []
    for field in schema:
        at = rows.schema.get_field_index(field.name)
        columns.append(pa.nulls(rows.num_rows, field.type) if at < 0 else _as(rows.column(at), field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _as(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column as that type: fields by their names, those that are missing null."""
    types = pa.types
    if column.type == kind:
        return column
    if types.is_struct(kind):
        fields = [
            _as(pa.compute.struct_field(column, one.name), one.type)
            if column.type.get_field_index(one.name) >= 0
            else pa.nulls(len(column), one.type)
            for one in kind
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


def catalog_properties(given: Mapping[str, str]) -> dict[str, str]:
    """The properties as the store may keep them; InvalidArgumentError for a secret in plain text, which no message has.

    >>> catalog_properties({"type": "rest", "token": "${LAKE_TOKEN}"})["token"]
    '${LAKE_TOKEN}'
    """
    if not given:
        raise InvalidArgumentError(
            "say which catalog: type=sql, uri=sqlite:////lake/catalog.db and warehouse=file:///lake, say; or "
            "name=NAME, for one that PyIceberg's configuration knows"
        )
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str) or not name:
            raise InvalidArgumentError(
                f"a catalog's properties are texts, as type=sql, not of type {type(name).__name__} and "
                f"{type(value).__name__}"
            )
        secret = plain_secret(name, value)
        if secret is not None:
            instead = f"{name}=${{NAME}}" if secret == "a secret" else f"{name}=postgresql://user:${{NAME}}@host/…"
            raise InvalidArgumentError(
                f"the catalog's property {name!r} has {secret}, which would be kept in the store as it is: name a "
                f"variable of the environment instead, as {instead}"
            )
    return dict(given)


def open_catalog(properties: Mapping[str, str]) -> Catalog:
    """The catalog; InvalidArgumentError for one that can't be meant, UnavailableError if it doesn't answer."""
    try:
        from pyiceberg.catalog import load_catalog
    except ImportError:
        raise InvalidArgumentError("a lake needs PyIceberg: pip install 'nadi[lake]'") from None

    found, secrets = resolved(properties, _from_environment)
    name = found.pop(NAME, _DEFAULT_NAME)
    with reaching(CATALOG, secrets):
        try:
            return load_catalog(name, **(_USUAL | found))
        except (ValueError, TypeError, ImportError) as error:
            problem = f"there is no such catalog: {without_secrets(str(error), secrets)}"
            raise InvalidArgumentError(problem) from cause(error, secrets)
        except Exception as error:
            if type(error).__name__ == "NotInstalledError":
                raise InvalidArgumentError(f"the catalog needs more: {error}") from error
            raise


def _from_environment(variable: str) -> str:
    value = os.environ.get(variable)
    if value is None:
        raise InvalidArgumentError(
            f"the catalog's properties name the variable {variable}, which isn't set in this environment"
        )
    return value


def load_table(catalog: Catalog, identifier: str) -> Table | None:
    """The table as it is now; None if there is none of that name."""
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    with reaching(CATALOG):
        try:
            return catalog.load_table(identifier)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None


def table_of(properties: Mapping[str, str], identifier: str) -> Table | None:
    """The table as it is now, from a catalog that is closed again; None if there is none of that name."""
    with open_catalog(properties) as catalog:
        return load_table(catalog, identifier)


def create_table(catalog: Catalog, identifier: str, schema: Any, fields: list[tuple[str, str]]) -> Table:
    """The table, made anew unless somebody was faster. fields: of the partitions, columns with their transforms."""
    from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError

    namespace = identifier.rpartition(".")[0]
    properties = {
        "write.metadata.delete-after-commit.enabled": "true",  # of the older states that each commit leaves behind
        "write.metadata.previous-versions-max": "20",
    }
    with reaching(CATALOG):
        catalog.create_namespace_if_not_exists(namespace)
        try:
            with catalog.create_table_transaction(identifier, schema, properties=properties) as making:
                if fields:
                    with making.update_spec() as spec:
                        for column, transform in fields:
                            spec.add_field(column, transform)
        except (TableAlreadyExistsError, CommitFailedException):
            pass
        except ValueError as error:
            raise InvalidArgumentError(f"the table can't be made so: {error}") from error
    made = load_table(catalog, identifier)
    if made is None:
        raise UnavailableError(f"the table {identifier} was made, and is gone again")
    return made


def lasting(table: Table, before: datetime) -> list[Snapshot]:
    """The snapshots that stay when those that are older than that are expired: the newest does."""
    heads = {ref.snapshot_id for ref in table.refs().values()}
    before_ms = before.timestamp() * 1000
    return [one for one in table.snapshots() if one.snapshot_id in heads or one.timestamp_ms >= before_ms]


def expire_snapshots(table: Table, before: datetime) -> None:
    with reaching(CATALOG):
        table.maintenance.expire_snapshots().older_than(before).commit()
