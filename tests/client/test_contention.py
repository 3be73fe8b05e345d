"""A table record changed concurrently by several clients."""

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


async def test_change_that_returns_none_stores_nothing() -> None:
    async with world() as w:
        count, table = record(w)
        await table.create()
        version = await table.put(KEY, b"7")
        assert await count.put(lambda stored: None) == 7
        held = await table.get(KEY)
        assert held is not None
        assert held.version == version


async def test_change_that_always_loses_raises_contention_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.backoff.CHANGE_TRIES", 4)
    async with world() as w:
        count, table = record(w)
        await table.create()
        tries = []

        async def late(stored: int | None) -> int:
            tries.append(stored)
            await table.put(KEY, str(len(tries)).encode())
            return 99

        with pytest.raises(ContentionError) as raised:
            await count.put(late)
        assert raised.value.attempts == 4
        assert tries == [None, 1, 2, 3], "each of the newest"


async def test_change_with_a_lost_reply_is_read_back() -> None:
    class Mute(Table):
        """A table whose first replies to `put` are lost after the change is stored."""

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


async def test_error_of_a_change_is_raised() -> None:
    async def failing(stored: int | None) -> int:
        raise UnavailableError("of something else")

    async with world() as w:
        with pytest.raises(UnavailableError):
            await record(w)[0].put(failing)
