"""Full-text search in streams: `fields` and `query` are the language, `definition` what an index is, `indexing` fills
it while events come, `shards` is what it consists of, `asking` answers queries; `standing` is for queries that wait for
events.

    >>> from nadi import search
    >>> with nadi.StreamManager() as manager:  # doctest: +SKIP
    ...     search.indexes(manager, "home").create("logs", "message:text,level:keyword", where="/data/search")
    >>> search.run("home", "logs")  # doctest: +SKIP

It needs the extra `nadi[search]`. What is named here is imported when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nadi.search.blocking import clean, indexes, leftovers, standing_queries
    from nadi.search.catalog import IndexStatus
    from nadi.search.definition import IndexDefinition, IndexNotFoundError
    from nadi.search.indexing import BackfillPart, past_parts, run, serve
    from nadi.search.objects import Leftover
    from nadi.search.percolate.catalog import StandingStatus
    from nadi.search.percolate.matcher import match, serve_matcher
    from nadi.search.percolate.query_index import StandingHit
    from nadi.search.percolate.records import StandingQuery
    from nadi.search.searching.index_search import Excerpt, Hit, Page

_NAMES = {
    "asking.searching": "Excerpt Hit Page",
    "blocking": "clean indexes leftovers standing_queries",
    "catalog": "IndexStatus",
    "definition": "IndexDefinition IndexNotFoundError",
    "indexing": "BackfillPart past_parts run serve",
    "objects": "Leftover",
    "standing.catalog": "StandingStatus",
    "standing.matcher": "match serve_matcher",
    "standing.matching": "StandingHit",
    "standing.records": "StandingQuery",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "BackfillPart",
    "Excerpt",
    "Hit",
    "IndexDefinition",
    "IndexNotFoundError",
    "IndexStatus",
    "Leftover",
    "Page",
    "StandingHit",
    "StandingQuery",
    "StandingStatus",
    "clean",
    "indexes",
    "leftovers",
    "match",
    "past_parts",
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
