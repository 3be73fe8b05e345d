"""Whether a store keeps what a cluster stands on. Some S3 servers take a condition and ignore it: two servers would own
one container, and lose what was acknowledged. So a server proves its store as it starts, or doesn't run.

All of it happens under a name of its own in `proof/`, which is empty again afterwards.
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
    "a cluster can't run on it. S3, Google Cloud Storage, Azure, SeaweedFS and versitygw keep them, and some servers "
    "ignore them, such as `rclone serve s3`: use another store, or see whether a proxy in between drops the headers "
    "If-None-Match and If-Match"
)
_LOG_ADVICE = "a cluster's log can't be in it: see that these servers are NATS servers, all of one cluster"


async def prove(engine: LogEngine, registry: Registry | None, runtime: Runtime) -> None:
    """Prove that the store keeps its conditions, finds what was stored, lists it in the end, and deletes it. Takes some
    30 requests. registry: None is the store of a log alone, which has no values. In the log, at worst: that the store
    keeps old versions of what is deleted. StoreError: it doesn't keep them, or refuses; the text says what, and what to
    do. UnavailableError: it gives no answer for a long while."""
    await _Proof(engine, registry, runtime).run()


class _Proof:
    def __init__(self, engine: LogEngine, registry: Registry | None, runtime: Runtime) -> None:
        self._engine, self._registry, self._runtime = engine, registry, runtime
        self._called, self._advice = "the object store", _STORE_ADVICE
        if registry is None:
            self._called, self._advice = "the store of the log", _LOG_ADVICE
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
                log.warning("what was stored to try %s is left in %s/: %s", self._called, self._folder, error)
            raise
        await self._prove_deletes()

    def _unlike(self) -> bytes:
        return self._runtime.unique().encode()

    async def _prove_creates(self) -> None:
        body = self._unlike()
        await stored_patiently(self._engine, self._alone, body, self._runtime)
        if await self._get(self._alone) != body:
            raise self._broken("an object that was stored isn't found right afterwards")
        self._objects[self._alone] = body
        if await self._get(f"{self._folder}/none") is not None:
            raise self._broken("it has an object that nobody stored")
        for name in self._races:
            bodies = [self._unlike() for _ in range(_RACERS)]
            results = await asyncio.gather(
                *(stored_patiently(self._engine, name, body, self._runtime) for body in bodies)
            )
            won = [body for body, (is_mine, _) in zip(bodies, results, strict=True) if is_mine]
            if len(won) > 1:
                raise self._broken(
                    f"of {_RACERS} that stored one object if it isn't there, {len(won)} were told they had"
                )
            stored = await self._get(name)
            if not won or stored != won[0] or any(other != stored for _, other in results):
                raise self._broken(
                    "an object that was stored, and that nobody may replace, was replaced or isn't found"
                )
            self._objects[name] = won[0]
        name = self._races[0]
        is_mine, _ = await stored_patiently(self._engine, name, self._unlike(), self._runtime)
        if is_mine or await self._get(name) != self._objects[name]:
            raise self._broken("it replaced an object that was to be stored only if it isn't there")

    async def _prove_sets(self, registry: Registry) -> None:
        async def set_to(value: bytes, version: str | None) -> VersionedValue | None:
            return await was_set_patiently(registry, self._value, value, version, self._runtime)

        first = await set_to(self._unlike(), None)
        if first is None:
            raise self._broken("it has a value that nobody set")
        if await set_to(self._unlike(), None) is not None:
            raise self._broken("it replaced a value that was to be set only if there is none")
        results = await asyncio.gather(*(set_to(self._unlike(), first.version) for _ in range(_RACERS)))
        won = [entry for entry in results if entry is not None]
        if len(won) != 1:
            raise self._broken(f"of {_RACERS} that replaced one version of a value, {len(won)} were told they had")
        if await set_to(self._unlike(), first.version) is not None:
            raise self._broken("it replaced a value on the condition of a version that it no longer had")
        last = await set_to(self._unlike(), won[0].version)
        if last is None:
            raise self._broken("it refused to replace a value on the condition of the version that it has")
        if await patiently(f"read {self._value}", lambda: registry.get(self._value), self._runtime) != last:
            raise self._broken("a value that was set isn't the one that is found")

    async def _prove_listings(self) -> None:
        sizes = {name: len(body) for name, body in self._objects.items()}

        async def prove() -> None:
            listed: dict[str, int] = {}
            async for page in self._engine.listed(self._folder):
                listed |= page
            if {name: listed.get(name) for name in sizes} != sizes:
                raise ContradictionError("what is listed isn't what was stored")
            if (registry := self._registry) is not None:
                entry, values = await registry.get(self._value), await registry.list(self._folder)
                if entry is None or values.get(self._value) != entry.version:
                    raise ContradictionError("the value that is listed isn't what was set")

        await patiently(f"list {self._folder}", prove, self._runtime)  # a listing may be late, but not forever

    async def _warn_of_versions(self) -> None:
        engine = self._engine
        if isinstance(engine, ObjectEngine) and await patiently(
            "read", lambda: engine.keeps_versions(self._alone), self._runtime
        ):
            log.warning(
                "the bucket keeps old versions of what is replaced and deleted, of all logs and heartbeats, which "
                "costs more each day: turn versioning off for it, or give it a lifecycle rule that removes old versions"
            )

    async def _prove_deletes(self) -> None:
        try:
            await patiently("delete", self._delete, self._runtime)
        except StoreError as error:
            raise StoreError(f"{error}. What was stored to try is left in {self._folder}/") from None
        for name in (*self._objects, self._value):
            if await self._get(name) is not None:
                raise StoreError(f"{self._called} has deleted {name}, and still has it: {self._advice}")
        is_mine, _ = await stored_patiently(self._engine, self._alone, self._unlike(), self._runtime)
        if not is_mine:
            raise self._broken("a name whose object was deleted can't be used again")
        await patiently("delete", lambda: self._engine.delete([self._alone]), self._runtime)

    async def _delete(self) -> None:
        await self._engine.delete([*self._objects])
        if self._registry is not None:
            await self._registry.delete(self._value)

    async def _get(self, name: str) -> bytes | None:
        data = await patiently(f"read {name}", lambda: self._engine.get(name), self._runtime)
        return None if data is None else bytes(data)

    def _broken(self, what: str) -> StoreError:
        return StoreError(f"{self._called} doesn't keep its conditions: {what}. So {self._advice}")
