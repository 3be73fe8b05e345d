"""Proves that a store supports the conditional writes of a cluster. Some S3 servers accept a condition and ignore it:
two servers would own one container, and acknowledged writes would be lost. So a server proves its store as it starts,
or refuses to run.

All objects are written under a unique name in `proof/`, which is empty again afterwards.
"""

from __future__ import annotations

import asyncio
import logging

from nadi.errors import NadiError, StoreError
from nadi.object_log.engine import LogEngine, Registry, VersionedValue
from nadi.object_log.objects import ObjectEngine
from nadi.object_log.outcomes import ContradictionError, patiently, stored_patiently, was_set_patiently
from nadi.runtime import Runtime

log = logging.getLogger(__name__)
PROOF = "proof"
_RACES, _RACERS = 3, 8
_STORE_ADVICE = (
    "A cluster can't run on it. S3, Google Cloud Storage, Azure, SeaweedFS and versitygw support conditions; some "
    "servers, such as `rclone serve s3`, ignore them. Use another store, or check whether a proxy in between drops the "
    "headers If-None-Match and If-Match"
)
_LOG_ADVICE = "It can't hold a cluster's log: check that these servers are NATS servers of one cluster"


async def prove(engine: LogEngine, registry: Registry | None, runtime: Runtime) -> None:
    """Prove that the store honours conditions, and returns, lists and deletes stored objects. Takes about 30 requests.

    Also logs a warning if the store keeps old versions of deleted objects. registry: None for a store that holds only a
    log. StoreError: the store violates a guarantee, or refuses; the message says how to fix it. UnavailableError: it
    doesn't respond for a long time.
    """
    await _Proof(engine, registry, runtime).run()


class _Proof:
    def __init__(self, engine: LogEngine, registry: Registry | None, runtime: Runtime) -> None:
        self._engine, self._registry, self._runtime = engine, registry, runtime
        self._title, self._advice = "the object store", _STORE_ADVICE
        if registry is None:
            self._title, self._advice = "the store of the log", _LOG_ADVICE
        self._folder = f"{PROOF}/{runtime.unique()}"
        self._alone, self._value = f"{self._folder}/alone", f"{self._folder}/value"
        self._races = [f"{self._folder}/{race}" for race in range(_RACES)]
        self._objects = dict.fromkeys([self._alone, *self._races], b"")

    async def run(self) -> None:
        try:
            await self._prove_creates()
            if self._registry is not None:
                await self._prove_sets(self._registry)
            await self._prove_listings()
            await self._warn_of_versions()
        except NadiError:
            try:
                await self._delete()
            except NadiError as error:
                log.warning("test objects of %s remain in %s/: %s", self._title, self._folder, error)
            raise
        await self._prove_deletes()

    def _unique_body(self) -> bytes:
        return self._runtime.unique().encode()

    async def _prove_creates(self) -> None:
        body = self._unique_body()
        await stored_patiently(self._engine, self._alone, body, self._runtime)
        if await self._get(self._alone) != body:
            raise self._broken("an object isn't found right after it was stored")
        self._objects[self._alone] = body
        if await self._get(f"{self._folder}/none") is not None:
            raise self._broken("it returned an object that was never stored")
        for name in self._races:
            bodies = [self._unique_body() for _ in range(_RACERS)]
            results = await asyncio.gather(
                *(stored_patiently(self._engine, name, body, self._runtime) for body in bodies)
            )
            won = [body for body, (is_mine, _) in zip(bodies, results, strict=True) if is_mine]
            if len(won) > 1:
                raise self._broken(f"{len(won)} of {_RACERS} creations of one object succeeded")
            stored = await self._get(name)
            if not won or stored != won[0] or any(other != stored for _, other in results):
                raise self._broken("a write-once object was replaced or isn't found")
            self._objects[name] = won[0]
        name = self._races[0]
        is_mine, _ = await stored_patiently(self._engine, name, self._unique_body(), self._runtime)
        if is_mine or await self._get(name) != self._objects[name]:
            raise self._broken("it replaced an object in spite of the condition that none exists")

    async def _prove_sets(self, registry: Registry) -> None:
        async def set_to(value: bytes, version: str | None) -> VersionedValue | None:
            return await was_set_patiently(registry, self._value, value, version, self._runtime)

        first = await set_to(self._unique_body(), None)
        if first is None:
            raise self._broken("it has a value that was never set")
        if await set_to(self._unique_body(), None) is not None:
            raise self._broken("it replaced a value in spite of the condition that none exists")
        results = await asyncio.gather(*(set_to(self._unique_body(), first.version) for _ in range(_RACERS)))
        won = [entry for entry in results if entry is not None]
        if len(won) != 1:
            raise self._broken(f"{len(won)} of {_RACERS} conditional writes to one version of a value succeeded")
        if await set_to(self._unique_body(), first.version) is not None:
            raise self._broken("it replaced a value in spite of a condition on an older version")
        last = await set_to(self._unique_body(), won[0].version)
        if last is None:
            raise self._broken("it rejected a write on the condition of the current version")
        if await patiently(f"read {self._value}", lambda: registry.get(self._value), self._runtime) != last:
            raise self._broken("a value differs from the last one that was set")

    async def _prove_listings(self) -> None:
        sizes = {name: len(body) for name, body in self._objects.items()}

        async def prove() -> None:
            listed: dict[str, int] = {}
            async for page in self._engine.listed(self._folder):
                listed |= page
            if {name: listed.get(name) for name in sizes} != sizes:
                raise ContradictionError("the listing differs from the stored objects")
            if (registry := self._registry) is not None:
                entry, values = await registry.get(self._value), await registry.list(self._folder)
                if entry is None or values.get(self._value) != entry.version:
                    raise ContradictionError("the listed value differs from the stored one")

        await patiently(f"list {self._folder}", prove, self._runtime)  # a listing may be late, but not forever

    async def _warn_of_versions(self) -> None:
        engine = self._engine
        if isinstance(engine, ObjectEngine) and await patiently(
            "read", lambda: engine.keeps_versions(self._alone), self._runtime
        ):
            log.warning(
                "the bucket keeps old versions of all logs and heartbeats, which costs more each day: turn off "
                "versioning, or add a lifecycle rule that removes old versions"
            )

    async def _prove_deletes(self) -> None:
        try:
            await patiently("delete", self._delete, self._runtime)
        except StoreError as error:
            raise StoreError(f"{error}. Test objects remain in {self._folder}/") from None
        for name in (*self._objects, self._value):
            if await self._get(name) is not None:
                raise StoreError(f"{self._title} still returns {name} after deleting it. {self._advice}")
        is_mine, _ = await stored_patiently(self._engine, self._alone, self._unique_body(), self._runtime)
        if not is_mine:
            raise self._broken("the name of a deleted object can't be reused")
        await patiently("delete", lambda: self._engine.delete([self._alone]), self._runtime)

    async def _delete(self) -> None:
        await self._engine.delete([*self._objects])
        if self._registry is not None:
            await self._registry.delete(self._value)

    async def _get(self, name: str) -> bytes | None:
        data = await patiently(f"read {name}", lambda: self._engine.get(name), self._runtime)
        return None if data is None else bytes(data)

    def _broken(self, reason: str) -> StoreError:
        return StoreError(f"{self._title} doesn't honour conditions: {reason}. {self._advice}")
