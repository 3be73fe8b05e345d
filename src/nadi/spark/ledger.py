"""What queries keep about themselves: records in one table of each scope, changed by compare-and-set."""

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
    """The records of one kind. noun: what messages call one, before its name. prefix: of their keys."""
    kind: RecordKind[_T] = RecordKind(
        noun,
        scope,
        lambda name: f"remove {prefix}{name} from table {TABLE}: its query then starts anew",
        lambda name: NotFoundError(f"there is no {noun} {scope}/{name}"),
        lambda _, value: msgspec.json.decode(value, type=kept),
        prefix=prefix,
    )
    return Catalog(stores_of(manager), scope, TABLE, kind)
