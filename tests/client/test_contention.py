"""A record of a table that several clients change at the same time."""

from __future__ import annotations

import asyncio

import pytest

from nadi.client.manager.streams import stores_of
from nadi.client.tables.catalog import CatalogRecord, RecordKind
from nadi.client.tables.table import Table
from nadi.errors import ContentionError, NotFoundError, UnavailableError

from .world import World, world

KEY = b"count"


def record(w: World, *, cls: type[Table] = Table) -> tuple[CatalogRecord[int], Table]:
    kind: RecordKind[int] = RecordKind(
        "the count", "sc", str, NotFoundError, lambda _, value: int(value), lambda count: str(count).encode(), key=KEY
    )
    table = cls(stores_of(w.manager), "sc", "counts")
    return CatalogRecord(table, kind, "n"), table


async def one_more(held: int | None) -> int:
    await asyncio.sleep(0)
    return (held or 0) + 1


async def test_no_change_is_lost() -> None:
    async with world() as w:
        given = await asyncio.gather(*(record(w)[0].put(one_more) for _ in range(12)))
        assert set(given) == set(range(1, 13))
        assert await record(w)[0].get() == 12


async def test_nothing_is_stored_where_nothing_is_to_be() -> None:
    async with world() as w:
        count, table = record(w)
        await table.create()
        version = await table.put(KEY, b"7")
        assert await count.put(lambda stored: None) == 7
        held = await table.get(KEY)
        assert held is not None
        assert held.version == version


async def test_a_change_that_is_always_lost_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.backoff.CHANGE_TRIES", 4)
    async with world() as w:
        count, table = record(w)
        await table.create()
        tries = []

        async def late(stored: int | None) -> int:
            tries.append(stored)
            await table.put(KEY, str(len(tries)).encode())
            return 99

        with pytest.raises(ContentionError, match="changed by others before each of 4 tries"):
            await count.put(late)
        assert tries == [None, 1, 2, 3], "each of the newest"


async def test_a_change_whose_answer_was_lost_is_looked_for() -> None:
    class Mute(Table):
        """Its first answers to `put` are lost, once what was asked is stored."""

        lost = 2

        async def put(self, key: bytes, value: bytes, version: int = -1) -> int:
            stored = await super().put(key, value, version)
            self.lost -= 1
            if self.lost >= 0:
                raise UnavailableError("the answer is lost")
            return stored

    async with world() as w:
        count, table = record(w, cls=Mute)
        await table.create()
        assert await count.put(one_more, lambda stored: stored == 1) == 1
        assert await count.put(one_more) == 3, "stored, not known, and so made again"


async def test_what_a_change_raises_passes() -> None:
    async def failing(stored: int | None) -> int:
        raise UnavailableError("of something else")

    async with world() as w:
        with pytest.raises(UnavailableError, match="of something else"):
            await record(w)[0].put(failing)
