"""The offsets of a streaming query, as Spark keeps them in its checkpoint: JSON that one can read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nadi.errors import InvalidStreamCutError
from nadi.model.streamcut import StreamCut


@dataclass(frozen=True, slots=True)
class Offset:
    """One of a query's offsets: where it stands; and skipped_to: where the batch before it began instead of at the
    offset before it, because all between had been truncated."""

    cut: StreamCut
    skipped_to: StreamCut | None = None

    def to_json(self) -> dict[str, Any]:
        """As Spark keeps it in the checkpoint, and shows it in a query's progress."""
        found = {"cut": self.cut.as_text()}
        return found if self.skipped_to is None else found | {"skipped_to": self.skipped_to.as_text()}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Offset:
        """Read an offset; InvalidStreamCutError if it is not one of nadi's."""
        cut, skipped_to = found.get("cut"), found.get("skipped_to")
        if not isinstance(cut, str) or not isinstance(skipped_to, str | None):
            raise InvalidStreamCutError(
                f"{found} is not an offset of a nadi stream: the checkpoint belongs to another query"
            )
        return cls(StreamCut.from_text(cut), StreamCut.from_text(skipped_to) if skipped_to is not None else None)
