"""Writes a worker's outputs, each stored once: an output's number is the offset of its source event.

The numbers of one writer ascend. So each segment of the source has a separate writer, whose id is derived from the
names of both and from `name`. A worker that repeats events after a crash writes the same numbers, and the store skips
those that it has. All outputs of an event for one segment are stored in one append, because they share its number.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence

from nadi.client.aio import StreamManager
from nadi.client.idempotent.writer import IdempotentWriter, NumberedEvent, StreamShape
from nadi.client.manager.streams import stores_of
from nadi.model.keyspace import key_position
from nadi.naming import parse_segment_name, segment_name
from nadi.process.dead_letters import DeadLetter

_APPEND_BYTES = 1 << 20  # more only for a single event


class OutputWriter:
    """Outputs of the segments of `scope`/`stream` to the stream `to`, "scope/stream". name: of the program."""

    def __init__(self, manager: StreamManager, scope: str, stream: str, to: str, name: str) -> None:
        self._scope, self._stream, self._name = scope, stream, name
        self._shape = StreamShape(stores_of(manager), *to.split("/"))
        self._writers: dict[tuple[int, str], IdempotentWriter] = {}

    async def write(self, outputs: Mapping[int, Sequence[Sequence[NumberedEvent]]], part: str = "") -> None:
        """Write outputs and return once all are stored, now or earlier. outputs: by segment, the outputs of each event,
        in order. part: a separate series of ascending numbers. StreamNotFoundError, StreamSealedError."""
        await asyncio.gather(*(self._write(segment, part, groups) for segment, groups in outputs.items() if groups))

    async def write_dead_letters(
        self, dead_letters: Iterable[DeadLetter], parts: Mapping[int, str] | None = None
    ) -> None:
        """Write dead letters of events of the source. parts: by segment, see `write`."""
        outputs: dict[int, list[list[NumberedEvent]]] = {}
        for letter in dead_letters:
            numbered = NumberedEvent(letter.offset, key_position(letter.segment), letter.encode())
            outputs.setdefault(parse_segment_name(letter.segment)[2], []).append([numbered])
        await asyncio.gather(
            *(self.write({segment: outputs[segment]}, (parts or {}).get(segment, "")) for segment in outputs)
        )

    async def _write(self, segment_id: int, part: str, groups: Sequence[Sequence[NumberedEvent]]) -> None:
        writer = self._writers.get((segment_id, part))
        if writer is None:
            names = (self._name, segment_name(self._scope, self._stream, segment_id), part)
            writer_id = hashlib.blake2b("/".join(filter(None, names)).encode(), digest_size=16).digest()
            writer = self._writers[segment_id, part] = IdempotentWriter(self._shape, writer_id)
        batch: list[NumberedEvent] = []
        size = 0
        for group in groups:
            length = sum(len(output.data) for output in group)
            if batch and size + length > _APPEND_BYTES:
                await writer.write(batch)
                batch, size = [], 0
            batch += group
            size += length
        await writer.write(batch)

    def keep(self, segments: Collection[int]) -> None:
        """Close the writers of all other segments."""
        for key in [key for key in self._writers if key[0] not in segments]:
            self._writers.pop(key).close()

    def close(self) -> None:
        self.keep(())
