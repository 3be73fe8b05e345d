"""Stream cuts: a consistent event boundary over all segments of a stream.

The text format is Pravega's, `0:scope/stream:numbers:epochs:offsets`, gzipped and in Base64, so other clients can
read it. Offset -1 means "not yet reached".

>>> cut = StreamCut("sc", "st", {(1 << 32) | 2: 70000, 0: 100})
>>> StreamCut.from_text(cut.as_text()) == cut
True
"""

from __future__ import annotations

import base64
import binascii
import gzip
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral
from types import MappingProxyType

from nadi.display import Displayed
from nadi.errors import InvalidStreamCutError
from nadi.limits import MIB
from nadi.naming import SEGMENT_NUMBER_MAX, segment_epoch, segment_id, segment_number

_TEXT_MAX_BYTES = 64 * MIB  # unpacked: limits the memory that a small text can take
_OFFSET_MAX = (1 << 63) - 1
_PLAIN = re.compile(r"0:([^/:]+)/([^/:]+):([0-9]+(?:,[0-9]+)*):([0-9]+(?:,[0-9]+)*):((?:-1|[0-9]+)(?:,(?:-1|[0-9]+))*)")


@dataclass(frozen=True, slots=True)
class StreamCut(Displayed):
    """A position in one stream: offsets by segment id."""

    scope: str
    stream: str
    positions: Mapping[int, int] = field(hash=False)

    def __post_init__(self) -> None:
        positions: object = self.positions
        numbers = [*positions, *positions.values()] if isinstance(positions, Mapping) else [None]
        if not all(isinstance(number, Integral) and int(number) <= _OFFSET_MAX for number in numbers):
            raise InvalidStreamCutError(f"positions must map segment ids to offsets, not {str(positions)[:60]!r}")
        object.__setattr__(self, "positions", MappingProxyType(dict(sorted(self.positions.items()))))

    def __reduce__(self) -> tuple[type[StreamCut], tuple[str, str, dict[int, int]]]:
        return StreamCut, (self.scope, self.stream, dict(self.positions))

    def __str__(self) -> str:
        inner = ", ".join(f"{segment}={offset}" for segment, offset in self.positions.items())
        return f"{self.scope}/{self.stream}: {inner}"

    def as_text(self) -> str:
        """Return the cut as text in Pravega's format."""
        ids = list(self.positions)
        plain = ":".join(
            [
                "0",
                f"{self.scope}/{self.stream}",
                ",".join(str(segment_number(i)) for i in ids),
                ",".join(str(segment_epoch(i)) for i in ids),
                ",".join(str(self.positions[i]) for i in ids),
            ]
        )
        return base64.b64encode(gzip.compress(plain.encode(), mtime=0)).decode()

    @classmethod
    def from_text(cls, text: str) -> StreamCut:
        """Parse the output of `as_text` or Pravega's `StreamCut.asText`; InvalidStreamCutError."""
        try:
            raw = base64.b64decode(text, validate=True)
            inflater = zlib.decompressobj(wbits=31)
            match = _PLAIN.fullmatch(inflater.decompress(raw, _TEXT_MAX_BYTES).decode())
            if match is None or not inflater.eof:
                raise ValueError("its content has another format")
            scope, stream = match[1], match[2]
            numbers, epochs, offsets = ([int(n) for n in match[i].split(",")] for i in (3, 4, 5))
            if max(*numbers, *epochs) > SEGMENT_NUMBER_MAX or max(offsets) > _OFFSET_MAX:
                raise ValueError("a number in it is too large")
            ids = map(segment_id, numbers, epochs)
            positions = dict(zip(ids, offsets, strict=True))
            if not len(positions) == len(numbers) == len(epochs):
                raise ValueError("the numbers of segments and offsets differ")
        except (TypeError, ValueError, binascii.Error, zlib.error) as error:
            raise InvalidStreamCutError(
                f"{str(text)[:40]!r} is not the text of a stream cut ({error}): use the output of StreamCut.as_text()"
            ) from error
        return cls(scope, stream, positions)
