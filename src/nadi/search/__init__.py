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
    from nadi.search.asking.excerpts import Excerpt
    from nadi.search.asking.searching import Hit, Page
    from nadi.search.blocking import clean, indexes, leftovers, standing_queries
    from nadi.search.catalog import Status
    from nadi.search.definition import Definition, IndexNotFoundError
    from nadi.search.indexing.past import Part, past_parts
    from nadi.search.labelling import Leftover
    from nadi.search.running import match, run, serve, serve_matcher
    from nadi.search.standing.catalog import StandingStatus
    from nadi.search.standing.matching import StandingHit
    from nadi.search.standing.records import StandingQuery

_HOMES = {
    "Definition": "definition",
    "Excerpt": "asking.excerpts",
    "Hit": "asking.searching",
    "IndexNotFoundError": "definition",
    "Leftover": "labelling",
    "Page": "asking.searching",
    "Part": "indexing.past",
    "StandingHit": "standing.matching",
    "StandingQuery": "standing.records",
    "StandingStatus": "standing.catalog",
    "Status": "catalog",
    "clean": "blocking",
    "indexes": "blocking",
    "leftovers": "blocking",
    "match": "running",
    "past_parts": "indexing.past",
    "run": "running",
    "serve": "running",
    "serve_matcher": "running",
    "standing_queries": "blocking",
}

__all__ = [
    "Definition",
    "Excerpt",
    "Hit",
    "IndexNotFoundError",
    "Leftover",
    "Page",
    "Part",
    "StandingHit",
    "StandingQuery",
    "StandingStatus",
    "Status",
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
