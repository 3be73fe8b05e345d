"""What is durable of a handover: one record, changed by compare-and-set, and a place that each of the queries tells.

    following  →  asked  →  fixed at a cut  →  switched
        └───────────┴────────────┴──→ abandoned

Anybody may ask. Only the old query's planner fixes the cut: where it stands, with all before it in its output. From
then on neither query goes past the cut, and each says when its output is complete up to there.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

import msgspec

from nadi.client.aio import StreamManager
from nadi.client.tables.change import change_value
from nadi.client.tables.table import Table, value_or_none
from nadi.errors import ConflictError

TABLE = "spark-handovers"


class State(Enum):
    FOLLOWING = "following"  # the new query follows the old one, into its trial stream
    ASKED = "asked"
    FIXED = "fixed"
    SWITCHED = "switched"
    ABANDONED = "abandoned"


class Handover(msgspec.Struct, frozen=True, kw_only=True):
    """output, trial: streams of the same scope. start: where the new query began, as the text of a stream cut;
    from_head: that was the head. cut: of the input, once it is fixed. is_old_done, is_new_done: that query's output is
    complete up to the cut."""

    new: str
    output: str
    trial: str
    start: str
    from_head: bool
    state: State = State.FOLLOWING
    cut: str | None = None
    is_old_done: bool = False
    is_new_done: bool = False


class OldPlace(msgspec.Struct, frozen=True):
    """Where the old query's input stood when its output stood there; None if the output stream is not there."""

    cut: str
    output: str | None


class Mark(msgspec.Struct, frozen=True):
    """Where both outputs are the results of the same input."""

    cut: str
    output: str
    trial: str


class NewPlace(msgspec.Struct, frozen=True):
    """Where the new query's input stands, and the first and the latest of its marks."""

    cut: str
    first: Mark | None = None
    last: Mark | None = None


class HandoverRecord:
    """What is known of the handover by the query `old` of a stream."""

    def __init__(self, manager: StreamManager, scope: str, stream: str, old: str) -> None:
        self.old = old
        self._table: Table = manager.table(scope, TABLE)
        self._keys = {what: f"{stream}/{old}/{what}".encode() for what in ("handover", "old", "new")}

    async def read(self) -> Handover | None:
        """The handover as it stands, if there is one."""
        held = await value_or_none(self._table, self._keys["handover"])
        return None if held is None else msgspec.json.decode(held.value, type=Handover)

    async def begin(self, wanted: Handover) -> Handover:
        """Make the record, in place of an abandoned one; what stands there now."""
        await self._table.create()

        async def make(value: bytes | None) -> tuple[bytes | None, Handover]:
            found = None if value is None else msgspec.json.decode(value, type=Handover)
            if found is not None and (found.state is not State.ABANDONED or found.new == wanted.new):
                return None, found
            return msgspec.json.encode(wanted), wanted

        found = await change_value(self._table, self._keys["handover"], self._what, make)
        if found is wanted:  # marks of an abandoned one would be of another trial stream
            await self._table.put(self._keys["new"], msgspec.json.encode(NewPlace(wanted.start)))
        return found

    async def change(self, how: Callable[[Handover], Handover]) -> Handover:
        """Change what stands there; as it stands then. how: gives its argument itself to leave it."""

        async def make(value: bytes | None) -> tuple[bytes | None, Handover]:
            if value is None:
                raise ConflictError(f"{self._what} is gone: its table {TABLE} was deleted")
            found = msgspec.json.decode(value, type=Handover)
            wanted = how(found)
            return (None if wanted is found else msgspec.json.encode(wanted)), wanted

        return await change_value(self._table, self._keys["handover"], self._what, make)

    async def old_place(self) -> OldPlace | None:
        held = await value_or_none(self._table, self._keys["old"])
        return None if held is None else msgspec.json.decode(held.value, type=OldPlace)

    async def new_place(self) -> NewPlace | None:
        held = await value_or_none(self._table, self._keys["new"])
        return None if held is None else msgspec.json.decode(held.value, type=NewPlace)

    async def tell(self, place: OldPlace | NewPlace) -> None:
        """Told by the query itself, which is the only one to do so."""
        key = self._keys["old" if isinstance(place, OldPlace) else "new"]
        await self._table.put(key, msgspec.json.encode(place))

    @property
    def _what(self) -> str:
        return f"the handover by the query {self.old}"
