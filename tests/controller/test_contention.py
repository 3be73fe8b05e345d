"""Records that several controllers change at the same time: no change is lost, and one that can't be made says so."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from nadi.controller.state.segments import RecordTable, Segments, Store, Versioned
from nadi.errors import ContentionError, InvalidArgumentError
from nadi.limits import CHANGE_TRIES
from nadi.runtime import Runtime
from nadi.wire import commands as wire

from .fake_store import FakeStore

NAME = "_system/_tables/numbers"


class ShortClock(Runtime):
    """One whose pauses are turns of the loop."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


def controller(store: FakeStore) -> RecordTable[int]:
    """The table with a cache of its own."""
    return Store(Segments(store.exchange, ShortClock())).table(NAME, int)


async def one_more(held: int | None) -> int:
    return (held or 0) + 1


async def test_no_change_of_two_tables_views_is_lost() -> None:
    store = FakeStore()
    tables = [controller(store) for _ in range(2)]
    await tables[0].create()

    async def count(table: RecordTable[int]) -> None:
        for _ in range(100):
            await table.change("n", "the number", one_more)

    await asyncio.gather(*(count(table) for table in tables))
    assert await tables[0].get("n", fresh=True) == await tables[1].get("n", fresh=True)
    assert (await tables[0].change("n", "the number", one_more, fresh=True)).value == 201
    puts = sum(isinstance(command, wire.UpdateTableEntries) for command in store.log)
    assert puts > 201, "they met"


async def test_a_record_known_before_is_not_read_again() -> None:
    store = FakeStore()
    table = controller(store)
    await table.create()
    known = await table.change("n", "the number", one_more)
    store.log.clear()
    stored = await controller(store).change("n", "the number", one_more, known=known)
    assert (stored.value, len(store.log)) == (2, 1)
    stored = await controller(store).change("n", "the number", one_more, known=known)
    assert stored.value == 3, "it was old, and made anew of the newest"


def test_what_is_given_back_is_not_stored() -> None:
    async def same(held: int | None) -> int:
        assert held is not None
        return held

    async def run() -> None:
        store = FakeStore()
        table = controller(store)
        await table.create()
        held = await table.change("n", "the number", one_more)
        assert await table.change("n", "the number", same) == held
        assert await table.get("n", fresh=True) == held

    asyncio.run(run())


async def test_a_change_that_is_always_lost_is_given_up() -> None:
    store = FakeStore()
    table, other = controller(store), controller(store)
    await table.create()
    tries: list[int | None] = []

    async def late(held: int | None) -> int:
        tries.append(held)
        await other.change("n", "the number", one_more, fresh=True)
        return -1

    with pytest.raises(ContentionError, match=f"^the number was changed by others before each of {CHANGE_TRIES}"):
        await table.change("n", "the number", late)
    assert tries == [None, *range(1, CHANGE_TRIES)], "each of the newest"


async def test_a_refusal_ends_the_tries() -> None:
    store = FakeStore()
    table = controller(store)
    await table.create()

    async def refuse(held: int | None) -> Any:
        raise InvalidArgumentError("not this")

    with pytest.raises(InvalidArgumentError):
        await table.change("n", "the number", refuse, known=Versioned(1, 0))
    assert not [command for command in store.log if isinstance(command, wire.UpdateTableEntries)]
