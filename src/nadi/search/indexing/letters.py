"""Dead letters: events that don't parse, as JSON in a stream, each once: its place in its stream is its number
there."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence

import msgspec

from nadi.client.aio import StreamManager
from nadi.client.manager.streams import stores_of
from nadi.client.numbered.places import StreamShape
from nadi.client.numbered.writer import NumberedEvent, NumberedWriter
from nadi.limits import DEAD_LETTER_DATA_BYTES
from nadi.model.keyspace import key_position
from nadi.naming import segment_name
from nadi.search.definition import Definition
from nadi.search.shards.building import Unfit

_APPEND_BYTES = 1 << 20  # letters of one append, unless one is larger


class UnfitLetter(msgspec.Struct, frozen=True, kw_only=True):
    """An event that isn't in an index. index: its stream, as `scope/stream`; segment, offset: where it is there;
    reason: why; data: the event, base64 in the JSON, or None for one over 4 MiB, which has to be read there."""

    index: str
    segment: str
    offset: int
    reason: str
    data: bytes | None


def followed_since(origin: int) -> str:
    """The run of letters of a segment that is followed since then."""
    return f"since {origin}" if origin else ""


def part_from(start: int) -> str:
    """That of a part of the past, whose offsets ascend for themselves."""
    return f"from {start}"


class Letters:
    """Writes them to the index's dead-letter stream, if it has one."""

    def __init__(self, manager: StreamManager, scope: str, definition: Definition) -> None:
        self._scope, self._definition = scope, definition
        stream = definition.dead_letters
        self._shape = None if stream is None else StreamShape(stores_of(manager), *stream.split("/"))
        self._writers: dict[tuple[int, str], NumberedWriter] = {}

    @property
    def are_wanted(self) -> bool:
        return self._shape is not None

    async def write(self, unfit: Sequence[Unfit], run: Callable[[int], str]) -> None:
        """Return once all are stored, those included that were before. run: of a segment, what of it has letters that
        are written one after the other, see `followed_since` and `part_from`."""
        if self._shape is None or not unfit:
            return
        by_segment: dict[int, list[Unfit]] = {}
        for one in unfit:
            by_segment.setdefault(one.segment_id, []).append(one)
        await asyncio.gather(
            *(self._write(self._shape, segment, run(segment), given) for segment, given in by_segment.items())
        )

    async def _write(self, shape: StreamShape, segment_id: int, run: str, unfit: Sequence[Unfit]) -> None:
        name = segment_name(self._scope, self._definition.stream, segment_id)
        writer = self._writers.get((segment_id, run))
        if writer is None:
            writer_id = hashlib.blake2b(f"{self._definition.id}/{name}/{run}".encode(), digest_size=16).digest()
            writer = self._writers[segment_id, run] = NumberedWriter(shape, writer_id)
        position = key_position(name)
        batch: list[NumberedEvent] = []
        size = 0
        for one in unfit:
            letter = self._letter(name, one)
            if batch and size + len(letter) > _APPEND_BYTES:
                await writer.write(batch)
                batch, size = [], 0
            batch.append(NumberedEvent(one.offset, position, letter))
            size += len(letter)
        await writer.write(batch)

    def _letter(self, segment: str, one: Unfit) -> bytes:
        data = one.data if len(one.data) <= DEAD_LETTER_DATA_BYTES else None
        index = f"{self._scope}/{self._definition.stream}"
        return msgspec.json.encode(
            UnfitLetter(index=index, segment=segment, offset=one.offset, reason=one.reason, data=data)
        )

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
