"""Events that a worker makes of a stream's events, each stored once: its number is its event's offset.

Numbers of one writer ascend. So each segment of the source has a writer of its own, whose id follows from the names of
both and from `name`; whoever processes events again after a kill writes under the same numbers, and what is there is
left out. What an event makes for one segment is stored in one append, for a number counts for all events that have it.
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

_APPEND_BYTES = 1 << 20  # unless those of one event are more


class OutputWriter:
    """Outputs of the segments of `scope`/`stream` in the stream `to`, "scope/stream". name: of what makes them."""

    def __init__(self, manager: StreamManager, scope: str, stream: str, to: str, name: str) -> None:
        self._scope, self._stream, self._name = scope, stream, name
        self._shape = StreamShape(stores_of(manager), *to.split("/"))
        self._writers: dict[tuple[int, str], IdempotentWriter] = {}

    async def write(self, made: Mapping[int, Sequence[Sequence[NumberedEvent]]], part: str = "") -> None:
        """Return once all are stored, those included that were before. made: of each segment, what each of its events
        made, in order. part: a run of numbers that ascend for themselves. StreamNotFoundError, StreamSealedError."""
        await asyncio.gather(*(self._write(segment, part, groups) for segment, groups in made.items() if groups))

    async def set_aside(self, letters: Iterable[DeadLetter], parts: Mapping[int, str] | None = None) -> None:
        """As `write`, for dead letters of events of the source. parts: by segment."""
        made: dict[int, list[list[NumberedEvent]]] = {}
        for one in letters:
            numbered = NumberedEvent(one.offset, key_position(one.segment), one.encode())
            made.setdefault(parse_segment_name(one.segment)[2], []).append([numbered])
        await asyncio.gather(*(self.write({one: made[one]}, (parts or {}).get(one, "")) for one in made))

    async def _write(self, segment_id: int, part: str, groups: Sequence[Sequence[NumberedEvent]]) -> None:
        writer = self._writers.get((segment_id, part))
        if writer is None:
            names = (self._name, segment_name(self._scope, self._stream, segment_id), part)
            writer_id = hashlib.blake2b("/".join(filter(None, names)).encode(), digest_size=16).digest()
            writer = self._writers[segment_id, part] = IdempotentWriter(self._shape, writer_id)
        batch: list[NumberedEvent] = []
        size = 0
        for group in groups:
            length = sum(len(one.data) for one in group)
            if batch and size + length > _APPEND_BYTES:
                await writer.write(batch)
                batch, size = [], 0
            batch += group
            size += length
        await writer.write(batch)

    def keep(self, segments: Collection[int]) -> None:
        """Let go of the writers of all other segments."""
        for key in [key for key in self._writers if key[0] not in segments]:
            self._writers.pop(key).close()

    def close(self) -> None:
        self.keep(())
