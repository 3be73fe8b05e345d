"""OFFSETS"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nadi.errors import InvalidStreamCutError
from nadi.model.streamcut import StreamCut


@dataclass(frozen=True, slots=True)
class Offset:
    """Where a query stands in one stream; and skipped_to: where the batch before it began instead of at the
    offset before it, because all between had been truncated. settled: the cutover at whose cut this is."""

    cut: StreamCut
    skipped_to: StreamCut | None = None
    settled: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As Spark keeps it in the checkpoint, and shows it in a query's progress."""
        found = {"cut": self.cut.as_text()}
        if self.skipped_to is not None:
            found["skipped_to"] = self.skipped_to.as_text()
        return found if self.settled is None else found | {"settled": self.settled}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Offset:
        """Read an offset; InvalidStreamCutError if it is not one of nadi's."""
        cut, skipped_to, settled = found.get("cut"), found.get("skipped_to"), found.get("settled")
        if not isinstance(cut, str) or not isinstance(skipped_to, str | None) or not isinstance(settled, str | None):
            raise _strange(found)
        to = StreamCut.from_text(skipped_to) if skipped_to is not None else None
        return cls(StreamCut.from_text(cut), to, settled)


@dataclass(frozen=True, slots=True)
class Offsets:
    """Where a query stands in each of its streams, by name. left: the streams that the batch before it left behind, as
    they had been deleted."""

    streams: Mapping[str, Offset]
    left: tuple[str, ...] = ()

    def to_json(self, *, is_one: bool) -> dict[str, Any]:
        """As Spark keeps it; is_one: the query is of one stream, not of however many there are."""
        if is_one:
            (offset,) = self.streams.values()
            return offset.to_json()
        found: dict[str, Any] = {"streams": {name: self.streams[name].to_json() for name in sorted(self.streams)}}
        return found | {"left": list(self.left)} if self.left else found

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Offsets:
        """Read the offset of a query of one stream or of several; InvalidStreamCutError if it is not one of nadi's."""
        if "streams" not in found:
            one = Offset.from_json(found)
            return cls({one.cut.stream: one})
        streams, left = found["streams"], found.get("left", [])
        if not isinstance(streams, Mapping) or not isinstance(left, list):
            raise _strange(found)
        offsets = {}
        for name, one in streams.items():
            if not isinstance(one, Mapping):
                raise _strange(found)
            offsets[name] = Offset.from_json(one)
        return cls(offsets, tuple(map(str, left)))


def _strange(found: Mapping[str, Any]) -> InvalidStreamCutError:
    return InvalidStreamCutError(f"{found} is not an offset of a nadi stream: the checkpoint belongs to another query")
