"""Whether a store keeps what a cluster stands on. Some S3 servers take a condition and ignore it: two servers would own
one container, and lose what was acknowledged. So a server proves its store as it starts, or doesn't run.

All of it happens under a name of its own in `proof/`, which is empty again afterwards.
"""

from __future__ import annotations

import asyncio
import logging

from nadi.engines.engine import Entry, LogEngine, Registry
from nadi.engines.objects import ObjectEngine
from nadi.engines.outcomes import Patience, patiently, stored_patiently, was_set_patiently
from nadi.errors import NadiError, StoreError
from nadi.runtime import Runtime

log = logging.getLogger(__name__)
PROOF = "proof"
_RACES, _RACERS = 3, 8
_ADVICE = (
    "a cluster can't run on it. S3, Google Cloud Storage, Azure, SeaweedFS and versitygw keep them, and some servers "
    "ignore them, such as `rclone serve s3`: use another store, or see whether a proxy in between drops the headers "
    "If-None-Match and If-Match"
)


_LOG_ADVICE = "a cluster's log can't be in it: see that these servers are NATS servers, all of one cluster"


async def prove_log(engine: LogEngine, runtime: Runtime) -> None:
    """Prove the same of the store of a log alone, which has no values.

    Raises: as `prove`.
    """
    proof = _Proof(engine, runtime)
    try:
        await proof.of_reads()
        await proof.of_creates()
        await proof.of_listings()
    except NadiError:
        await proof.forget()
        raise
    await proof.of_deletes()


async def prove(engine: LogEngine, registry: Registry, runtime: Runtime) -> None:
    """Prove that the store keeps its conditions, finds what was stored, lists it in the end, and deletes it.

    Takes some 30 requests. In the log, at worst: that the store keeps old versions of what is deleted.

    Raises:
        StoreError: it doesn't, or refuses; the text says what, and what to do.
        UnavailableError: it gives no answer for a long while.
    """
    proof = _StoreProof(engine, registry, runtime)
    try:
        await proof.of_reads()
        await proof.of_creates()
        await proof.of_sets()
        await proof.of_listings()
        await proof.of_versions()
    except NadiError:
        await proof.forget()
        raise
    await proof.of_deletes()


class _Proof:
    """Of what every engine does."""

    called, advice = "the store of the log", _LOG_ADVICE

    def __init__(self, engine: LogEngine, runtime: Runtime) -> None:
        self._engine, self._runtime = engine, runtime
        self._folder = f"{PROOF}/{runtime.unique()}"
        self._alone = f"{self._folder}/alone"
        self._races = [f"{self._folder}/{race}" for race in range(_RACES)]
        self._objects = dict.fromkeys([self._alone, *self._races], b"")

    def _unlike(self) -> bytes:
        return self._runtime.unique().encode()

    async def of_reads(self) -> None:
        body = self._unlike()
        await stored_patiently(self._engine, self._alone, body, self._runtime)
        if await self._get(self._alone) != body:
            raise self._broken("an object that was stored isn't found right afterwards")
        self._objects[self._alone] = body
        if await self._get(f"{self._folder}/none") is not None:
            raise self._broken("it has an object that nobody stored")

    async def of_creates(self) -> None:
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
            found = await self._get(name)
            if not won or found != won[0] or any(other != found for _, other in results):
                raise self._broken(
                    "an object that was stored, and that nobody may replace, was replaced or isn't found"
                )
            self._objects[name] = won[0]
        name = self._races[0]
        is_mine, _ = await stored_patiently(self._engine, name, self._unlike(), self._runtime)
        if is_mine or await self._get(name) != self._objects[name]:
            raise self._broken("it replaced an object that was to be stored only if it isn't there")

    async def of_listings(self) -> None:
        """A listing may be late, but not forever."""
        patience = Patience(f"list {self._folder}", self._runtime)
        sizes = {name: len(body) for name, body in self._objects.items()}
        while True:
            found = await patiently(f"list {self._folder}", self._listed, self._runtime)
            if {name: found.get(name) for name in sizes} == sizes and await self._lists_value():
                return
            await patience.pause()

    async def of_deletes(self) -> None:
        try:
            await self._delete()
        except StoreError as error:
            raise StoreError(f"{error}. What was stored to try is left in {self._folder}/") from None
        for name in self._left:
            if await self._get(name) is not None:
                raise StoreError(f"{self.called} has deleted {name}, and still has it: {self.advice}")
        is_mine, _ = await stored_patiently(self._engine, self._alone, self._unlike(), self._runtime)
        if not is_mine:
            raise self._broken("a name whose object was deleted can't be used again")
        await patiently("delete", lambda: self._engine.delete([self._alone]), self._runtime)

    async def _delete(self) -> None:
        await patiently("delete", lambda: self._engine.delete([*self._objects]), self._runtime)

    async def forget(self) -> None:
        """After a proof that failed: what can't be removed is little."""
        try:
            await self._engine.delete([*self._objects])
        except NadiError as error:
            log.warning("what was stored to try %s is left in %s/: %s", self.called, self._folder, error)

    async def _get(self, name: str) -> bytes | None:
        found = await patiently(f"read {name}", lambda: self._engine.get(name), self._runtime)
        return None if found is None else bytes(found)

    async def _listed(self) -> dict[str, int]:
        found: dict[str, int] = {}
        async for page in self._engine.listed(self._folder):
            found |= page
        return found

    async def _lists_value(self) -> bool:
        return True

    @property
    def _left(self) -> list[str]:
        """Names of all that was stored."""
        return [*self._objects]

    def _broken(self, what: str) -> StoreError:
        return StoreError(f"{self.called} doesn't keep its conditions: {what}. So {self.advice}")


class _StoreProof(_Proof):
    """Of a registry, too."""

    called, advice = "the object store", _ADVICE

    def __init__(self, engine: LogEngine, registry: Registry, runtime: Runtime) -> None:
        super().__init__(engine, runtime)
        self._registry = registry
        self._value = f"{self._folder}/value"

    async def of_sets(self) -> None:
        first = await self._set(self._unlike(), None)
        if first is None:
            raise self._broken("it has a value that nobody set")
        if await self._set(self._unlike(), None) is not None:
            raise self._broken("it replaced a value that was to be set only if there is none")
        results = await asyncio.gather(*(self._set(self._unlike(), first.version) for _ in range(_RACERS)))
        won = [entry for entry in results if entry is not None]
        if len(won) != 1:
            raise self._broken(f"of {_RACERS} that replaced one version of a value, {len(won)} were told they had")
        if await self._set(self._unlike(), first.version) is not None:
            raise self._broken("it replaced a value on the condition of a version that it no longer had")
        last = await self._set(self._unlike(), won[0].version)
        if last is None:
            raise self._broken("it refused to replace a value on the condition of the version that it has")
        if await self._entry() != last:
            raise self._broken("a value that was set isn't the one that is found")

    async def _lists_value(self) -> bool:
        entry = await self._entry()
        values = await patiently("list", lambda: self._registry.list(self._folder), self._runtime)
        return entry is not None and values.get(self._value) == entry.version

    async def of_versions(self) -> None:
        if isinstance(self._engine, ObjectEngine) and await patiently(
            "read", lambda: self._keeps_versions(self._alone), self._runtime
        ):
            log.warning(
                "the bucket keeps old versions of what is replaced and deleted, of all logs and heartbeats, which "
                "costs more each day: turn versioning off for it, or give it a lifecycle rule that removes old versions"
            )

    async def _keeps_versions(self, name: str) -> bool:
        assert isinstance(self._engine, ObjectEngine)
        return await self._engine.keeps_versions(name)

    @property
    def _left(self) -> list[str]:
        return [*self._objects, self._value]

    async def _delete(self) -> None:
        await super()._delete()
        await patiently("delete", lambda: self._registry.delete(self._value), self._runtime)

    async def forget(self) -> None:
        await super().forget()
        try:
            await self._registry.delete(self._value)
        except NadiError as error:
            log.warning("what was stored to try %s is left in %s/: %s", self.called, self._folder, error)

    async def _entry(self) -> Entry | None:
        return await patiently(f"read {self._value}", lambda: self._registry.get(self._value), self._runtime)

    async def _set(self, value: bytes, version: str | None) -> Entry | None:
        return await was_set_patiently(self._registry, self._value, value, version, self._runtime)
