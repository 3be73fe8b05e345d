"""The histories of streams: read whole from their tables, kept in memory, added to, and their oldest epochs forgotten.

Forgetting changes what a stream's table says in one step: a record of the oldest epoch that stays, `base`, makes all
records of older ones count for nothing. They are removed after it, some at a time, and `base` says how far that has
got. Who reads while records are removed, and finds one missing, finds the new `base` when it reads again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from cachetools import LRUCache
from msgspec.structs import replace

from nadi.controller.state.history import History
from nadi.controller.state.records import EpochBase, EpochChange, HistoryRecord, SealedSizes, Stream
from nadi.controller.state.store import ABSENT, ANY_VERSION, RecordTable
from nadi.errors import SegmentNotFoundError, UnavailableError
from nadi.limits import CONTROLLER_HISTORY_SEGMENTS, CUT_QUICK_SEGMENTS, EPOCHS_FORGOTTEN_AT_ONCE
from nadi.runtime import Runtime

T = TypeVar("T")

Table = RecordTable[HistoryRecord]
BASE = "base"
_OWN_WEIGHT = 20  # what a history takes besides, in segments
_TRIES = 5  # while epochs are forgotten or published
_thread = ThreadPoolExecutor(1, "nadi stream cuts")


def first_change(stream: Stream) -> EpochChange:
    """Epoch 0 of a stream that was never scaled."""
    return EpochChange(0, 0, stream.epoch_created_ms, (), stream.segments)


def history_of(base: EpochBase | None, changes: Iterable[EpochChange], sizes: Iterable[SealedSizes]) -> History | None:
    """The history that these records tell, up to the first gap in it; None if its first epoch is missing."""
    first = -1 if base is None else base.epoch
    told = sorted((change for change in changes if change.epoch > first), key=lambda change: change.epoch)
    whole = itertools.takewhile(lambda one: one[1].epoch == first + 1 + one[0], enumerate(told))
    chain = [change for _, change in whole]
    began_ms: dict[int, int] = {}
    if base is not None:
        chain.insert(0, EpochChange(base.epoch, base.reference, base.created_ms, (), base.segments))
        began_ms = {piece.id: began for piece, began in zip(base.segments, base.began_ms, strict=True)}
    if not chain:
        return None
    history = History(chain, began_ms=began_ms)
    for some in sizes:
        history.sizes |= {segment: size for segment, size in some.sizes.items() if not history.is_forgotten(segment)}
    return history


def base_of(history: History, cleared: int) -> EpochBase:
    """The record of a history's first epoch."""
    first = history.change(history.first)
    began_ms = tuple(history.began_ms(piece.id) for piece in first.added)
    return EpochBase(first.epoch, first.reference, first.created_ms, first.added, began_ms, cleared)


class Histories:
    def __init__(self) -> None:
        self._kept: LRUCache[str, History] = LRUCache(CONTROLLER_HISTORY_SEGMENTS, _weight)

    def kept(self, name: str, stream: Stream | None) -> History | None:
        """What is in memory of a stream, if that reaches its epoch, or if its record isn't known. Another of the same
        name, whose segments have new numbers, may have been made since."""
        found = self._kept.get(name)
        if found is None or stream is None:
            return found
        return found if stream.epoch <= found.newest and stream.segments[0].id in found.segments else None

    def drop(self, name: str) -> None:
        """Read it anew when it is next needed."""
        self._kept.pop(name, None)

    async def read(self, name: str, table: Table, stream: Stream) -> History:
        """The history of a stream, from its table."""
        for _ in range(_TRIES):
            history = await _read(table, stream)
            if history is None:
                continue
            known = self.kept(name, stream)
            if known is not None and known.newest >= history.newest:
                return known  # another reader was faster, or an epoch was published meanwhile
            self._kept[name] = history
            return history
        raise UnavailableError(f"the epochs of {name} can't be read whole while they change: try again")

    async def publish(self, name: str, table: Table, history: History, changes: Sequence[EpochChange]) -> None:
        """Record new epochs, of which the first follows the history."""
        first: list[EpochChange] = []
        if history.newest == 0:
            first = [history.change(0)]
            await table.create()
        self.drop(name)
        records = [(f"epoch/{change.epoch}", change, ANY_VERSION) for change in (*first, *changes)]
        await table.put_all(records, cached=False)
        known = self._kept.pop(name, history)  # read meanwhile: with these epochs, or without
        for change in changes:
            known.add(change)
        self._kept[name] = known

    async def put_sizes(self, table: Table, history: History, label: str, sizes: dict[int, int]) -> None:
        """Record the lengths of sealed segments under a label that stays the same when the step is repeated."""
        record: tuple[str, HistoryRecord, int] = (f"sizes/{label}", SealedSizes(sizes), ANY_VERSION)
        try:
            await table.put_all([record], cached=False)
        except SegmentNotFoundError:  # sealed before it was ever scaled
            await table.create()
            await table.put_all([("epoch/0", history.change(0), ANY_VERSION), record])
        history.sizes.update(sizes)

    async def forget(self, name: str, table: Table, history: History, first: int) -> None:
        """Forget what lies before the epoch `first`, unless that is little; finish forgetting what a crash has left.

        The caller holds the stream's lock.
        """
        found = await table.get(BASE, fresh=True)
        base, version = (found.value, found.version) if found is not None else (None, ABSENT)
        assert base is None or isinstance(base, EpochBase)
        known = 0 if base is None else base.epoch
        if first - known >= EPOCHS_FORGOTTEN_AT_ONCE:
            history = history.forgetting(first)
            base = base_of(history, cleared=0 if base is None else base.cleared)
            version = (await table.put(BASE, base, version)).version
            self._kept[name] = history
        if base is None or base.cleared == base.epoch:
            return
        for begin in range(base.cleared, base.epoch + 1, EPOCHS_FORGOTTEN_AT_ONCE):
            epochs = range(begin, min(begin + EPOCHS_FORGOTTEN_AT_ONCE, base.epoch + 1))
            await table.remove([f"{kind}/{epoch}" for epoch in epochs for kind in ("epoch", "sizes")])
        await table.put(BASE, replace(base, cleared=base.epoch), version)


async def _read(table: Table, stream: Stream) -> History | None:
    """None if something else is there as soon as it is read again."""
    base: EpochBase | None = None
    changes: list[EpochChange] = []
    sizes: list[SealedSizes] = []
    async for _, record in table.scan():
        if isinstance(record.value, EpochChange):
            changes.append(record.value)
        elif isinstance(record.value, SealedSizes):
            sizes.append(record.value)
        else:
            base = record.value
    if not changes and base is None:
        changes = [first_change(stream)]
    history = history_of(base, changes, sizes)
    newest = max((change.epoch for change in changes), default=0)
    return history if history is not None and history.newest >= max(newest, stream.epoch) else None


def _weight(history: History) -> int:
    return min(_OWN_WEIGHT + len(history.segments), CONTROLLER_HISTORY_SEGMENTS)


async def ask(runtime: Runtime, history: History, question: Callable[[History], T], *, cuts: int = 1) -> T:
    """The answer to `question` about the history; the question changes nothing and may raise any error. cuts: how many
    it is about.

    Comparing cuts of ten thousand segments takes a fifth of a second, during which the loop would serve nobody else. So
    one thread does it for all streams, on a view of the history, since the loop may add epochs meanwhile.
    """
    if len(history.segments) * cuts <= CUT_QUICK_SEGMENTS:
        return question(history)
    return await runtime.in_thread(question, history.view(), pool=_thread)
