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
from nadi.spark.ledger import ledger


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
        self.old, name = old, f"{stream}/{old}"
        self._handover = ledger(manager, scope, "the handover by", "handover/", Handover).record(name)
        self._old = ledger(manager, scope, "the place of", "handover-old/", OldPlace).record(name)
        self._new = ledger(manager, scope, "the place of what follows", "handover-new/", NewPlace).record(name)

    async def read(self) -> Handover | None:
        """The handover as it stands, if there is one."""
        return await self._handover.find()

    async def begin(self, wanted: Handover) -> Handover:
        """Make the record, in place of an abandoned one; what stands there now."""

        def made(stored: Handover | None) -> Handover | None:
            is_free = stored is None or (stored.state is State.ABANDONED and stored.new != wanted.new)
            return wanted if is_free else None

        stored = await self._handover.put(made)
        assert stored is not None, "there is one now"
        if stored is wanted:  # marks of an abandoned one would be of another trial stream
            await self.tell(NewPlace(wanted.start))
        return stored

    async def change(self, how: Callable[[Handover], Handover]) -> Handover:
        """Change what stands there; as it stands then. how: gives its argument itself to leave it."""

        def made(stored: Handover) -> Handover | None:
            wanted = how(stored)
            return None if wanted is stored else wanted

        return await self._handover.change(made)

    async def old_place(self) -> OldPlace | None:
        return await self._old.find()

    async def new_place(self) -> NewPlace | None:
        return await self._new.find()

    async def tell(self, place: OldPlace | NewPlace) -> None:
        """Told by the query itself, which is the only one to do so."""
        if isinstance(place, OldPlace):
            await self._old.put(lambda _: place)
        else:
            await self._new.put(lambda _: place)
