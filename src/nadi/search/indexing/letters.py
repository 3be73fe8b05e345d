"""Dead letters: events that don't parse, as JSON in a stream, each once: its place in its stream is its number
there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from nadi.client.aio import StreamManager
from nadi.client.numbered.writer import NumberedEvent
from nadi.model.keyspace import key_position
from nadi.naming import segment_name
from nadi.process.dead_letters import DeadLetter
from nadi.process.outputs import Outputs
from nadi.search.definition import Definition
from nadi.search.shards.building import Unfit


def followed_since(origin: int) -> str:
    """The run of letters of a segment that is followed since then."""
    return f"since {origin}" if origin else ""


def part_from(start: int) -> str:
    """That of a part of the past, whose offsets ascend for themselves."""
    return f"from {start}"


class Letters:
    """Writes them to the index's dead-letter stream, if it has one."""

    def __init__(self, manager: StreamManager, scope: str, definition: Definition) -> None:
        self._scope, self._stream = scope, definition.stream
        to = definition.dead_letters
        self._outputs = None if to is None else Outputs(manager, scope, definition.stream, to, definition.id)

    @property
    def are_wanted(self) -> bool:
        return self._outputs is not None

    async def write(self, unfit: Sequence[Unfit], run: Callable[[int], str]) -> None:
        """Return once all are stored, those included that were before. run: of a segment, what of it has letters that
        are written one after the other, see `followed_since` and `part_from`."""
        if self._outputs is None:
            return
        made: dict[int, list[list[NumberedEvent]]] = {}
        for one in unfit:
            segment = segment_name(self._scope, self._stream, one.segment_id)
            letter = DeadLetter(
                by=f"index {self._scope}/{self._stream}",
                segment=segment,
                offset=one.offset,
                reason=one.reason,
                data=one.data,
            )
            numbered = NumberedEvent(one.offset, key_position(segment), letter.encode())
            made.setdefault(one.segment_id, []).append([numbered])
        outputs = self._outputs
        await asyncio.gather(*(outputs.write({each: groups}, run(each)) for each, groups in made.items()))

    def close(self) -> None:
        if self._outputs is not None:
            self._outputs.close()
