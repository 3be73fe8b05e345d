"""The error of search alone: there is no such index."""

from __future__ import annotations

from nadi.errors import NotFoundError


class IndexNotFoundError(NotFoundError):
    def __init__(self, scope: str, stream: str) -> None:
        super().__init__(f"stream {scope}/{stream} has no search index (any more): make one with `nadi search create`")
        self.scope, self.stream = scope, stream
