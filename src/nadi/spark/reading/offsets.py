"""The offsets of a streaming query in Spark's checkpoint: a stream cut for each stream, as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nadi.errors import InvalidStreamCutError
from nadi.model.streamcut import StreamCut


@dataclass(frozen=True, slots=True)
class Offset:
    """A query's position in one stream.

    skipped_to: where the batch before it started instead of at the previous offset, as everything between was
    truncated. settled: the name of the cutover at whose cut the query has settled.
    """

    cut: StreamCut
    skipped_to: StreamCut | None = None
    settled: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON that Spark stores in the checkpoint, and shows in a query's progress."""
        data = {"cut": self.cut.as_text()}
        if self.skipped_to is not None:
            data["skipped_to"] = self.skipped_to.as_text()
        return data if self.settled is None else data | {"settled": self.settled}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Offset:
        """Parse an offset; InvalidStreamCutError if it isn't one of nadi's."""
        cut, skipped_to, settled = data.get("cut"), data.get("skipped_to"), data.get("settled")
        if not isinstance(cut, str) or not isinstance(skipped_to, str | None) or not isinstance(settled, str | None):
            raise _foreign_offset(data)
        to = StreamCut.from_text(skipped_to) if skipped_to is not None else None
        return cls(StreamCut.from_text(cut), to, settled)


@dataclass(frozen=True, slots=True)
class Offsets:
    """A query's position in each of its streams, by name. left: the streams that the batch before it left, as they were
    deleted."""

    streams: Mapping[str, Offset]
    left: tuple[str, ...] = ()

    def to_json(self, *, is_one: bool) -> dict[str, Any]:
        """Return the JSON that Spark stores. is_one: the query reads a single stream, not a variable number."""
        if is_one:
            (offset,) = self.streams.values()
            return offset.to_json()
        data: dict[str, Any] = {"streams": {name: self.streams[name].to_json() for name in sorted(self.streams)}}
        return data | {"left": list(self.left)} if self.left else data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Offsets:
        """Parse the offset of a query of one or several streams; InvalidStreamCutError if it isn't one of nadi's."""
        if "streams" not in data:
            offset = Offset.from_json(data)
            return cls({offset.cut.stream: offset})
        streams, left = data["streams"], data.get("left", [])
        if not isinstance(streams, Mapping) or not isinstance(left, list):
            raise _foreign_offset(data)
        offsets = {}
        for name, offset in streams.items():
            if not isinstance(offset, Mapping):
                raise _foreign_offset(data)
            offsets[name] = Offset.from_json(offset)
        return cls(offsets, tuple(map(str, left)))


def _foreign_offset(data: Mapping[str, Any]) -> InvalidStreamCutError:
    return InvalidStreamCutError(f"{data} is not an offset of a nadi stream: the checkpoint belongs to another query")
