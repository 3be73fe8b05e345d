"""Master keys from files and variables, and the data keys in a store: rotation, damage, wrong keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from nadi.encryption.key_ring import COPY, NAME, KeyRing
from nadi.encryption.master_keys import LocalKeys, MasterKey, new_key, open_master_key
from nadi.errors import ConflictError, EncryptionKeyError, InvalidArgumentError
from nadi.object_log.files import FileRegistry, open_files
from nadi.runtime import REAL

pytest.importorskip("cryptography", reason="encryption needs cryptography")


def local(*lines: str) -> MasterKey:
    return LocalKeys("\n".join(lines), "the test")


async def opened(folder: Path) -> tuple[FileRegistry, KeyRing]:
    _, registry = await open_files(folder, REAL)
    return registry, KeyRing(registry, REAL)


def test_the_first_line_wraps_and_all_lines_unwrap() -> None:
    old, new = new_key(), new_key()
    wrapped = local(old).wrap(b"d" * 32, "data key 1")
    assert local(new, old).unwrap(wrapped, "data key 1") == b"d" * 32
    assert local(new, old).name == local(new).name != local(old).name
    with pytest.raises(EncryptionKeyError, match=f"master key {local(old).name} wrapped"):
        local(new).unwrap(wrapped, "data key 1")
    for damaged in (wrapped[:-1] + bytes([wrapped[-1] ^ 1]), wrapped[:-1], wrapped[:9]):
        with pytest.raises(EncryptionKeyError, match="data key 1 is damaged"):
            local(old).unwrap(damaged, "data key 1")
    with pytest.raises(EncryptionKeyError, match="data key 2 is damaged"):
        local(old).unwrap(wrapped, "data key 2")


def test_sources_are_files_and_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = new_key()
    (tmp_path / "key").write_text(key + "\n")
    monkeypatch.setenv("THE_KEY", key)
    assert open_master_key(f"file:{tmp_path / 'key'}").name == open_master_key("env:THE_KEY").name == local(key).name


@pytest.mark.parametrize(
    ("source", "kind", "problem"),
    [
        ("", InvalidArgumentError, "isn't a source"),
        ("/etc/key", InvalidArgumentError, "isn't a source"),
        ("file:", InvalidArgumentError, "isn't a source"),
        ("vase:x", InvalidArgumentError, "use file:…, env:…"),
        ("file:missing", EncryptionKeyError, "can't be read from missing"),
        ("env:NOT_SET_ANYWHERE", EncryptionKeyError, "NOT_SET_ANYWHERE .* isn't set"),
        ("env:EMPTY", EncryptionKeyError, "lacks a master key"),
        ("env:SHORT", EncryptionKeyError, "isn't a master key: it must be 32 bytes"),
        ("env:TEXT", EncryptionKeyError, "isn't a master key: it must be 32 bytes"),
    ],
)
def test_a_bad_source_is_refused(
    source: str, kind: type[Exception], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"EMPTY": "\n", "SHORT": "AAAA", "TEXT": "correct horse"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(kind, match=problem):
        open_master_key(source)


async def test_rotation_adds_a_data_key_and_wraps_all_with_the_new_master_key(tmp_path: Path) -> None:
    _, ring = await opened(tmp_path)
    old, new = new_key(), new_key()
    assert await ring.listed() == []
    assert (await ring.rotate(local(old))).id == 1
    first = await ring.unwrapped(local(old))
    with pytest.raises(EncryptionKeyError):
        await ring.rotate(local(new))  # it can't unwrap the first
    assert (await ring.rotate(local(new, old))).id == 2
    both = await ring.unwrapped(local(new))
    assert both[1] == first[1] != both[2]
    assert [key.master for key in await ring.listed()] == [local(new).name] * 2
    with pytest.raises(EncryptionKeyError):
        await ring.unwrapped(local(old))


async def test_the_copy_replaces_a_damaged_value_and_is_healed(tmp_path: Path) -> None:
    registry, ring = await opened(tmp_path)
    master = local(new_key())
    await ring.rotate(master)
    keys = await ring.unwrapped(master)
    for damaged in (NAME, COPY):
        await registry.put(damaged, b"damaged")
        assert await ring.unwrapped(master, heals=True) == keys
        await registry.delete(COPY if damaged == NAME else NAME)
        assert await ring.unwrapped(master, heals=True) == keys
    await registry.put(NAME, b"damaged")
    await registry.put(COPY, b"damaged")
    with pytest.raises(EncryptionKeyError, match="restore one of them"):
        await ring.listed()


async def test_of_two_rotations_at_once_only_one_counts(tmp_path: Path) -> None:
    _, ring = await opened(tmp_path)
    key = new_key()
    await ring.rotate(local(key))

    class Late(LocalKeys):
        """Another process rotates while this key wraps."""

        def wrap(self, key: bytes, context: str) -> bytes:
            path = tmp_path / NAME
            path.write_bytes(b"f" * 32 + path.read_bytes()[32:])  # a value starts with its version
            return super().wrap(key, context)

    with pytest.raises(ConflictError, match="another process changed the data keys"):
        await ring.rotate(Late(key, "the test"))
    assert [key.id for key in await ring.listed()] == [1]
