"""The records that queries keep about themselves: one table per scope, changed by compare-and-set."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from nadi.client.aio import StreamManager
from nadi.client.manager.streams import stores_of
from nadi.client.tables.catalog import Catalog, RecordKind
from nadi.errors import NotFoundError

TABLE = "spark-ledger"
_T = TypeVar("_T")


def ledger(manager: StreamManager, scope: str, noun: str, prefix: str, kept: type[_T]) -> Catalog[_T]:
    """Return the catalog of one kind of record. noun: names a record in messages. prefix: of its keys."""
    kind: RecordKind[_T] = RecordKind(
        noun,
        scope,
        lambda name: f"remove {prefix}{name} from table {TABLE}; its query then starts afresh",
        lambda name: NotFoundError(f"{noun} {scope}/{name} doesn't exist"),
        lambda _, value: msgspec.json.decode(value, type=kept),
        prefix=prefix,
    )
    return Catalog(stores_of(manager), scope, TABLE, kind)
