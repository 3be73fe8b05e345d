"""The errors of search alone: there is no such index, or no such set of standing queries."""

from __future__ import annotations

from nadi.errors import NotFoundError


class IndexNotFoundError(NotFoundError):
    def __init__(
        self, scope: str, stream: str, why: str = "has no search index (any more): make one with `nadi search create`"
    ) -> None:
        super().__init__(f"stream {scope}/{stream} {why}")
        self.scope, self.stream = scope, stream


class NoStandingQueriesError(NotFoundError):
    def __init__(self, scope: str, stream: str) -> None:
        super().__init__(
            f"stream {scope}/{stream} has no standing queries (any more): make a set with `nadi search standing create`"
        )
        self.scope, self.stream = scope, stream
