"""What a full disk keeps aside for freeing room is the controller's to use: no peer may take it."""

from __future__ import annotations

from pathlib import Path

import pytest

from nadi.access.permissions import Permission
from nadi.access.tokens import TokenKey
from nadi.wire import commands as wire
from nadi.wire.fields import NO_VERSION, TableEntry, TableKey
from tests.segmentstore.harness import connect, open_store

TABLES = ["home/table_kvtable/0.#epoch.0", "home/_RGgroup_kvtable/0.#epoch.0", "_system/_tables/work"]
ENTRY = TableEntry(b"k", NO_VERSION, b"v")


def command(table: str, token: str = "") -> wire.UpdateTableToFreeRoom:
    return wire.UpdateTableToFreeRoom(7, table, token, (ENTRY,), True)


@pytest.mark.parametrize("table", TABLES)
async def test_no_connection_brings_it_where_nobody_is_asked_who_he_is(tmp_path: Path, table: str) -> None:
    async with open_store(tmp_path) as (store, peer):
        peer.send(command(table))
        with pytest.raises(ConnectionResetError):
            await peer.receive()
        look = wire.ReadTable(8, table, "", (TableKey(b"k"),))
        other = await connect(store.address)
        assert isinstance(await other.ask(look), wire.NoSuchSegment)
        other.close()
        assert isinstance(await store.exchange(command(table)), wire.TableEntriesUpdated), "the controller may"


@pytest.mark.parametrize("table", TABLES)
async def test_no_token_but_the_servers_own_is_for_it(tmp_path: Path, table: str) -> None:
    key = TokenKey(b"k" * 64)
    async with open_store(tmp_path, tokens=key) as (store, peer):
        scope, name, _ = table.split("/", 2)
        mine = key.issue(scope, name, Permission.READ_UPDATE)
        assert isinstance(await store.exchange(command(table, mine)), wire.AuthTokenCheckFailed)
        assert isinstance(await store.exchange(command(table, key.master())), wire.TableEntriesUpdated)
        peer.send(command(table, key.master()))  # nor by the network
        with pytest.raises(ConnectionResetError):
            await peer.receive()
