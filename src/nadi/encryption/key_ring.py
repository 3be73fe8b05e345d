"""Stores the data keys of an encrypted store, wrapped by a master key, in the store itself: as the value `keys/data`
and a copy.

Rotating adds a data key, and wraps all of them with the current master key; nothing is sealed again. Servers read the
keys at their start, before each container they open, and while they store snapshots: so they soon seal with the newest
one. No key is ever removed, as any block may need it.
"""

from __future__ import annotations

import os

import msgspec

from nadi.encryption.master_keys import MasterKey, master_key
from nadi.encryption.sealing import KEY_BYTES, PLAIN, DataKeys, Sealing
from nadi.errors import ConflictError, EncryptionKeyError
from nadi.object_log.checksummed_lines import line_of, value_of
from nadi.object_log.engine import Registry, VersionedValue
from nadi.object_log.outcomes import was_set_patiently
from nadi.runtime import Runtime

NAME, COPY = "keys/data", "keys/data-copy"


class WrappedKey(msgspec.Struct, frozen=True):
    """A data key. created_ms: since 1970. master: the name of the master key that wrapped it."""

    id: int
    created_ms: int
    master: str
    wrapped: bytes


class _Keys(msgspec.Struct, frozen=True):
    keys: list[WrappedKey]
    nonce: str  # makes each version unique


class KeyRing:
    """The data keys in a store's registry."""

    def __init__(self, registry: Registry, runtime: Runtime) -> None:
        self._registry, self._runtime = registry, runtime

    async def listed(self) -> list[WrappedKey]:
        """Return all data keys, the newest last; none if the store isn't encrypted. EncryptionKeyError: the value and
        its copy are damaged."""
        return (await self._read())[0]

    async def _read(self) -> tuple[list[WrappedKey], str | None]:
        """Return the keys, and the version of the first value, which may be damaged."""
        first, copy = await self._registry.get(NAME), await self._registry.get(COPY)
        rings = [ring for ring in (_decoded(first), _decoded(copy)) if ring is not None]
        if not rings and (first is not None or copy is not None):
            raise EncryptionKeyError(f"`{NAME}` in the store and its copy are damaged: restore one of them")
        keys = max((ring.keys for ring in rings), key=len, default=[])
        return keys, first.version if first is not None else None

    async def unwrapped(self, master: MasterKey, *, heals: bool = False) -> dict[int, bytes]:
        """Return all data keys by id. heals: first make the value and its copy equal, so that nothing is sealed with a
        key that only one of them has. Raises as `listed` and `MasterKey.unwrap`."""
        keys, version = await self._read()
        if heals and keys:
            await self._store(keys, version)
        return await self._unwrapped(keys, master)

    async def _unwrapped(self, keys: list[WrappedKey], master: MasterKey) -> dict[int, bytes]:
        unwrap = self._runtime.in_thread
        return {key.id: await unwrap(master.unwrap, key.wrapped, _context(key.id)) for key in keys}

    async def rotate(self, master: MasterKey) -> WrappedKey:
        """Add a data key, the first one if there is none, and wrap all with this master key; return the new one. Raises
        as `unwrapped`; ConflictError if another process did so meanwhile."""
        keys, version = await self._read()
        data_keys = await self._unwrapped(keys, master)
        new = max(data_keys, default=0) + 1
        created = {key.id: key.created_ms for key in keys} | {new: self._runtime.now_ms()}
        data_keys[new] = os.urandom(KEY_BYTES)
        wrap = self._runtime.in_thread
        wrapped = [
            WrappedKey(key, created[key], master.name, await wrap(master.wrap, data_keys[key], _context(key)))
            for key in sorted(data_keys)
        ]
        await self._store(wrapped, version)
        return wrapped[-1]

    async def _store(self, keys: list[WrappedKey], version: str | None) -> None:
        """Store the keys in place of that version, and in the copy, unless both have them."""
        stored = [await self._registry.get(name) for name in (NAME, COPY)]
        if all((ring := _decoded(each)) is not None and ring.keys == keys for each in stored):
            return
        value = line_of(msgspec.json.encode(_Keys(keys, self._runtime.unique())))
        if await was_set_patiently(self._registry, NAME, value, version, self._runtime) is None:
            raise ConflictError("another process changed the data keys meanwhile: try again")
        await self._registry.put(COPY, value)


async def unlocked(registry: Registry, runtime: Runtime, where: str) -> Sealing:
    """Return the sealing of a store at that URL, which is encrypted if it has data keys. Raises as `master_key`, and
    `KeyRing.unwrapped`."""
    ring = KeyRing(registry, runtime)
    if not await ring.listed():
        return PLAIN
    return DataKeys(await ring.unwrapped(await runtime.in_thread(master_key, None, where)))


def _context(key: int) -> str:
    return f"data key {key}"


def _decoded(stored: VersionedValue | None) -> _Keys | None:
    value = value_of(stored.value) if stored is not None else None
    try:
        return msgspec.json.decode(value, type=_Keys) if value is not None else None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
