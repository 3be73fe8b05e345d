"""Dead letters: events that don't parse, as JSON in a stream, each once: its place in its stream is its number
there."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence

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


class Letters:
    """Writes them to the index's dead-letter stream, if it has one. part: of the past, whose offsets ascend for
    themselves."""

    def __init__(self, manager: StreamManager, scope: str, definition: Definition, part: str = "") -> None:
        self._scope, self._definition, self._part = scope, definition, part
        stream = definition.dead_letters
        self._shape = None if stream is None else StreamShape(stores_of(manager), *stream.split("/"))
        self._writers: dict[int, NumberedWriter] = {}

    async def write(self, unfit: Sequence[Unfit]) -> None:
        """Return once all are stored, those included that were before."""
        if self._shape is None or not unfit:
            return
        by_segment: dict[int, list[Unfit]] = {}
        for one in unfit:
            by_segment.setdefault(one.segment_id, []).append(one)
        await asyncio.gather(*(self._write(self._shape, *item) for item in by_segment.items()))

    async def _write(self, shape: StreamShape, segment_id: int, unfit: Sequence[Unfit]) -> None:
        name = segment_name(self._scope, self._definition.stream, segment_id)
        if segment_id not in self._writers:
            writer_id = hashlib.blake2b(f"{self._definition.id}/{name}/{self._part}".encode(), digest_size=16).digest()
            self._writers[segment_id] = NumberedWriter(shape, writer_id)
        position = key_position(name)
        batch: list[NumberedEvent] = []
        size = 0
        for one in unfit:
            letter = self._letter(name, one)
            if batch and size + len(letter) > _APPEND_BYTES:
                await self._writers[segment_id].write(batch)
                batch, size = [], 0
            batch.append(NumberedEvent(one.offset, position, letter))
            size += len(letter)
        await self._writers[segment_id].write(batch)

    def _letter(self, segment: str, one: Unfit) -> bytes:
        data = one.data if len(one.data) <= DEAD_LETTER_DATA_BYTES else None
        index = f"{self._scope}/{self._definition.stream}"
        return msgspec.json.encode(
            UnfitLetter(index=index, segment=segment, offset=one.offset, reason=one.reason, data=data)
        )

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
