"""Full-text search in streams: `fields` and `query` define the language, `definition` an index; `indexing` fills the
index with new events, `shards` stores it, `searching` answers queries; `percolate` implements standing queries.

    >>> from nadi import search
    >>> with nadi.StreamManager() as manager:  # doctest: +SKIP
    ...     search.indexes(manager, "home").create("logs", "message:text,level:keyword", where="/data/search")
    >>> search.run("home", "logs")  # doctest: +SKIP

It needs the extra `nadi[search]`. Exported names are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nadi.search.blocking import clean, indexes, orphaned_shards, standing_queries
    from nadi.search.catalog import IndexStatus
    from nadi.search.definition import IndexDefinition, IndexNotFoundError
    from nadi.search.indexing import BackfillPart, backfill_parts, run, serve
    from nadi.search.objects import OrphanedShards
    from nadi.search.percolate.catalog import StandingStatus
    from nadi.search.percolate.matcher import match, serve_matcher
    from nadi.search.percolate.query_index import StandingHit
    from nadi.search.percolate.records import StandingQuery
    from nadi.search.searching.index_search import Excerpt, Hit, Page

_NAMES = {
    "searching.index_search": "Excerpt Hit Page",
    "blocking": "clean indexes orphaned_shards standing_queries",
    "catalog": "IndexStatus",
    "definition": "IndexDefinition IndexNotFoundError",
    "indexing": "BackfillPart backfill_parts run serve",
    "objects": "OrphanedShards",
    "percolate.catalog": "StandingStatus",
    "percolate.matcher": "match serve_matcher",
    "percolate.query_index": "StandingHit",
    "percolate.records": "StandingQuery",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "BackfillPart",
    "Excerpt",
    "Hit",
    "IndexDefinition",
    "IndexNotFoundError",
    "IndexStatus",
    "OrphanedShards",
    "Page",
    "StandingHit",
    "StandingQuery",
    "StandingStatus",
    "backfill_parts",
    "clean",
    "indexes",
    "match",
    "orphaned_shards",
    "run",
    "serve",
    "serve_matcher",
    "standing_queries",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'nadi.search' has no attribute {name!r}")
        return getattr(import_module(f"nadi.search.{_HOMES[name]}"), name)
