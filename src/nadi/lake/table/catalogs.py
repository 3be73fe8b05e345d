"""Catalogs, and the tables in them.

A catalog is described by PyIceberg's properties (`type`, `uri`, `warehouse`, `s3.endpoint`, ...). They are kept in the
store, so a secret is named instead: `${NAME}` stands for a variable of the environment of whoever opens the catalog.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from nadi.errors import InvalidArgumentError, UnavailableError
from nadi.lake.table.reaching import CATALOG, reaching

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_SECRET = re.compile(r"secret|password|token|credential|access-key", re.IGNORECASE)
_USUAL = {"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}
NAME = "name"
_DEFAULT_NAME = "nadi"


def check_installed() -> None:
    try:
        import pyiceberg  # noqa: F401
    except ImportError:
        raise InvalidArgumentError("a lake needs PyIceberg: pip install 'nadi[lake]'") from None


def catalog_properties(given: Mapping[str, str]) -> dict[str, str]:
    """The properties as the store may keep them; InvalidArgumentError for a secret in plain text.

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
            raise InvalidArgumentError(f"a catalog's properties are texts, not {name!r}: {value!r:.40}")
        if _SECRET.search(name) and not _VARIABLE.search(value):
            raise InvalidArgumentError(
                f"the catalog's property {name!r} would be kept in the store as it is: name a variable of the "
                f"environment instead, {name}=${{NAME}}"
            )
    return dict(given)


def open_catalog(properties: Mapping[str, str]) -> Catalog:
    """The catalog; InvalidArgumentError for one that can't be meant, UnavailableError if it doesn't answer."""
    check_installed()
    from pyiceberg.catalog import load_catalog

    found = {name: _VARIABLE.sub(_from_environment, value) for name, value in properties.items()}
    name = found.pop(NAME, _DEFAULT_NAME)
    with reaching(CATALOG):
        try:
            return load_catalog(name, **(_USUAL | found))
        except (ValueError, TypeError, ImportError) as error:
            raise InvalidArgumentError(f"there is no such catalog: {error}") from error
        except Exception as error:
            if type(error).__name__ == "NotInstalledError":
                raise InvalidArgumentError(f"the catalog needs more: {error}") from error
            raise


def _from_environment(found: re.Match[str]) -> str:
    value = os.environ.get(found[1])
    if value is None:
        raise InvalidArgumentError(
            f"the catalog's properties name the variable {found[1]}, which isn't set in this environment"
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
