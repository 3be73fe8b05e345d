"""Keys of a table that several clients change at the same time."""

from __future__ import annotations

import asyncio

import pytest

from nadi.client.manager.streams import stores_of
from nadi.client.tables.change import change_value
from nadi.client.tables.table import Table
from nadi.errors import ContentionError

from .world import world

KEY = b"count"


async def one_more(held: bytes | None) -> tuple[bytes, int]:
    count = int(held or b"0") + 1
    return str(count).encode(), count


async def test_no_change_is_lost() -> None:
    async with world() as w:
        tables = [Table(stores_of(w.manager), "sc", "counts") for _ in range(12)]
        await tables[0].create()
        given = await asyncio.gather(*(change_value(table, KEY, "the count", one_more) for table in tables))
        assert sorted(given) == list(range(1, 13))
        held = await tables[0].get(KEY)
        assert held is not None
        assert held.value == b"12"


def test_nothing_is_stored_where_nothing_is_to_be() -> None:
    async def leave(held: bytes | None) -> tuple[None, bytes | None]:
        return None, held

    async def run() -> None:
        async with world() as w:
            table = Table(stores_of(w.manager), "sc", "counts")
            await table.create()
            version = await table.put(KEY, b"7")
            assert await change_value(table, KEY, "the count", leave) == b"7"
            held = await table.get(KEY)
            assert held is not None
            assert held.version == version

    asyncio.run(run())


async def test_a_change_that_is_always_lost_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.backoff.CHANGE_TRIES", 4)
    async with world() as w:
        table = Table(stores_of(w.manager), "sc", "counts")
        await table.create()
        tries = []

        async def late(held: bytes | None) -> tuple[bytes, None]:
            tries.append(held)
            await table.put(KEY, str(len(tries)).encode())
            return b"late", None

        with pytest.raises(ContentionError, match="changed by others before each of 4 tries"):
            await change_value(table, KEY, "the count", late)
        assert tries == [None, b"1", b"2", b"3"], "each of the newest"
