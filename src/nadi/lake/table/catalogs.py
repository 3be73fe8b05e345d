"""Catalogs, and the tables in them.

A catalog is described by PyIceberg's properties (`type`, `uri`, `warehouse`, `s3.endpoint`, ...). They are kept in the
store, so a secret is named instead: `${NAME}` stands for a variable of the environment of whoever opens the catalog,
see `secrets`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from nadi.errors import InvalidArgumentError, UnavailableError
from nadi.lake.table.reaching import CATALOG, cause, reaching
from nadi.lake.table.secrets import plain_secret, resolved, without_secrets

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

_USUAL = {"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}
NAME = "name"
_DEFAULT_NAME = "nadi"


def check_installed() -> None:
    try:
        import pyiceberg  # noqa: F401
    except ImportError:
        raise InvalidArgumentError("a lake needs PyIceberg: pip install 'nadi[lake]'") from None


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
    check_installed()
    from pyiceberg.catalog import load_catalog

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
    """Have the table forget those that aren't `lasting`."""
    with reaching(CATALOG):
        table.maintenance.expire_snapshots().older_than(before).commit()
