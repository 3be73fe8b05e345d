"""An encrypted index: its objects and local copies hide the events, and it is searched with the master key only."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from nadi.encryption.master_keys import new_key
from nadi.errors import EncryptionKeyError, InvalidArgumentError, StoreError
from nadi.search.objects import find
from nadi.search.searching import shard_cache
from nadi.search.shards.building import work_folder

from .support import Indexed, event

pytest.importorskip("tantivy", reason="search needs tantivy")
pytest.importorskip("cryptography", reason="encryption needs cryptography")
WORD = b"secretword"


def renew(master: Path) -> None:
    master.write_text(new_key())


@pytest.fixture
def master(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "master.key"
    renew(path)
    monkeypatch.setenv("NADI_ENCRYPTION_KEY", f"file:{path}")
    monkeypatch.delenv("NADI_SEARCH_CACHE", raising=False)
    return path


def readable(logs: Indexed) -> list[Path]:
    return [path for path in logs.objects() if WORD in path.read_bytes() or b'"logs"' in path.read_bytes()]


async def index(logs: Indexed, *, encrypt: bool) -> int:
    search = await logs.indexed([event(1, level=WORD.decode()) for _ in range(100)], encrypt=encrypt)
    return (await search.count(f"level:{WORD.decode()}"))["all"]


async def test_an_encrypted_index_hides_the_events(logs: Indexed, master: Path) -> None:
    assert await index(logs, encrypt=True) == 100
    assert len(logs.objects()) >= 4  # shards, the label, the keys
    assert readable(logs) == []


async def test_a_plain_index_does_not(logs: Indexed, master: Path) -> None:
    assert await index(logs, encrypt=False) == 100
    assert len(readable(logs)) >= 2


async def test_local_copies_are_in_memory(master: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shard_cache.cache_folder().is_relative_to("/dev/shm")
    with work_folder() as folder:
        assert folder.is_relative_to("/dev/shm")
    monkeypatch.delenv("NADI_ENCRYPTION_KEY")
    assert not shard_cache.cache_folder().is_relative_to("/dev/shm")
    with work_folder() as folder:
        assert folder.is_relative_to(tempfile.gettempdir())


async def test_a_search_needs_the_key(logs: Indexed, master: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await index(logs, encrypt=True)
    where = str(logs.folder / "shards")
    assert await find(logs.manager, where) == []
    monkeypatch.delenv("NADI_ENCRYPTION_KEY")
    with pytest.raises(EncryptionKeyError, match="is encrypted"):
        await (await logs.search()).count("ok:true")
    with pytest.raises(EncryptionKeyError, match="is encrypted"):
        await find(logs.manager, where)
    monkeypatch.setenv("NADI_ENCRYPTION_KEY", f"file:{master}")
    renew(master)
    with pytest.raises(EncryptionKeyError, match="pass the right key"):
        await (await logs.search()).count("ok:true")


async def test_a_damaged_shard_is_an_error(logs: Indexed, master: Path) -> None:
    await index(logs, encrypt=True)
    for path in logs.objects("search"):
        data = bytearray(path.read_bytes())
        data[-20] ^= 1
        path.write_bytes(data)
    with pytest.raises(StoreError, match="can't be decrypted"):
        await (await logs.search()).count("ok:true")


async def test_plain_shards_stay_readable(logs: Indexed, master: Path) -> None:
    await index(logs, encrypt=False)
    await logs.manager.create_stream(logs.scope, "others")
    where = str(logs.folder / "shards")
    with pytest.raises(InvalidArgumentError, match="choose another location"):
        await logs.indexes.create("others", "message:text", where=where, encrypt=True)
    shutil.rmtree(logs.folder / "cache0")
    assert (await (await logs.search()).count("ok:true"))["all"] == 0
