"""The kinds of engines and registries that share a conformance suite: a new one adds itself to `KINDS` or `SLOW_KINDS`.

Each opens as a context in the test's loop; its `open` is called once for each process that uses the store.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from pathlib import Path
from typing import Protocol, TypeVar

import pytest
from obstore.store import GCSStore, MemoryStore

from nadi.errors import UnavailableError
from nadi.object_log.engine import LogEngine, Registry, VersionedValue
from nadi.object_log.files import open_files
from nadi.object_log.hdfs import files as client
from nadi.object_log.hdfs.engine import open_hdfs
from nadi.object_log.objects import ObjectEngine, ObjectRegistry
from nadi.object_log.opening import open_engines, open_log
from nadi.object_log.urls import RemoteStore
from nadi.runtime import REAL
from tests.support.fake_s3 import FakeS3, Faults
from tests.support.hdfs.fake import FakeHdfs
from tests.support.nats import nats_servers, url_of
from tests.support.seaweed import seaweed_endpoint

T = TypeVar("T")
Engines = tuple[LogEngine, Registry]
MOST_TRIES = 200
LATE_S = 0.1  # maximum delay of a write that got no reply


class Opener(Protocol):
    async def __call__(self) -> Engines: ...


@contextlib.asynccontextmanager
async def memory(_: Path) -> AsyncIterator[Opener]:
    remote = RemoteStore(MemoryStore(), "memory", ())

    async def opened() -> Engines:
        return ObjectEngine(remote), ObjectRegistry(remote)

    yield opened


@contextlib.asynccontextmanager
async def files(folder: Path) -> AsyncIterator[Opener]:
    async with contextlib.AsyncExitStack() as stack:

        async def opened() -> Engines:
            engine, registry = await open_files(folder / "store", REAL)
            stack.push_async_callback(engine.close)
            return engine, registry

        yield opened


def s3(faults: Callable[[], Faults]) -> Callable[[Path], AbstractAsyncContextManager[Opener]]:
    @contextlib.asynccontextmanager
    async def kind(_: Path) -> AsyncIterator[Opener]:
        async with FakeS3(faults=faults()) as server:

            async def opened() -> Engines:
                return await open_engines("s3://bucket/a/prefix", REAL, **server.config())

            yield opened

    return kind


@contextlib.asynccontextmanager
async def google(_: Path) -> AsyncIterator[Opener]:
    async with FakeS3(faults=odd()) as server:

        async def opened() -> Engines:
            remote = RemoteStore(google_store(server), "gs", ())
            return ObjectEngine(remote), ObjectRegistry(remote)

        yield opened


def google_store(server: FakeS3) -> GCSStore:
    account = {"gcs_base_url": server.endpoint, "disable_oauth": True, "client_email": "", "private_key": ""}
    return GCSStore(
        "bucket",
        prefix="a/prefix",
        service_account_key=json.dumps(account | {"private_key_id": ""}),
        client_options={"allow_http": True},
        retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=10)},
    )


def jetstream(servers: int) -> Callable[[Path], AbstractAsyncContextManager[Opener]]:
    """JetStream as a log only, with a registry in memory."""

    @contextlib.asynccontextmanager
    async def kind(folder: Path) -> AsyncIterator[Opener]:
        with nats_servers(folder / "nats", servers) as running:
            async with contextlib.AsyncExitStack() as stack:
                remote = RemoteStore(MemoryStore(), "memory", ())

                async def opened() -> Engines:
                    engine = await open_log(url_of(running), REAL, make=True)
                    stack.push_async_callback(engine.close)
                    return engine, ObjectRegistry(remote)

                yield opened

    return kind


def odd() -> Faults:
    return Faults(lists_unordered=True, lists_late_s=0.2, page=7)


def faulty() -> Faults:
    return Faults(
        conflict=0.1, slow_down=0.05, lost_requests=0.05, lost_answers=0.05, late_puts=0.05, late_s=LATE_S, page=7
    )


@contextlib.asynccontextmanager
async def seaweed(_: Path) -> AsyncIterator[Opener]:
    """A new prefix in SeaweedFS."""
    config = {"endpoint": seaweed_endpoint(), "access_key_id": "a", "secret_access_key": "b", "region": "us-east-1"}
    url = f"s3://bucket/{REAL.unique()}"

    async def opened() -> Engines:
        return await open_engines(url, REAL, **config)

    yield opened


@contextlib.asynccontextmanager
async def hdfs(_: Path) -> AsyncIterator[Opener]:
    """A stand-in for HDFS, which has only a store's description and chunks, never a log."""
    fake = FakeHdfs()
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(client, "connect", fake.connect)

        async def opened() -> Engines:
            return open_hdfs("hdfs://name-node:8020/a/folder", REAL)

        yield opened


KINDS: dict[str, Callable[[Path], AbstractAsyncContextManager[Opener]]] = {
    "memory": memory,
    "files": files,
    "s3": s3(odd),
    "s3 with faults": s3(faulty),
    "google": google,
    "hdfs": hdfs,
}
LOGS: dict[str, Callable[[Path], AbstractAsyncContextManager[Opener]]] = {  # logs outside of a cluster's store
    "jetstream": jetstream(1),
    "jetstream of three": jetstream(3),
}
SLOW_KINDS = {"seaweedfs": seaweed}
PARAMS = [*KINDS, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW_KINDS)]
LOG_PARAMS = ["jetstream", pytest.param("jetstream of three", marks=pytest.mark.slow)]


def kind_named(name: str) -> Callable[[Path], AbstractAsyncContextManager[Opener]]:
    return (KINDS | SLOW_KINDS | LOGS)[name]


async def known(work: Callable[[], Awaitable[T]]) -> T:
    """Repeat idempotent work until there is a reply."""
    for left in reversed(range(MOST_TRIES)):
        try:
            return await work()
        except UnavailableError:
            if not left:
                raise
        await REAL.sleep(0.005)
    raise AssertionError


async def written(work: Callable[[], Awaitable[T]]) -> T:
    """Repeat work like `known`, waiting out writes that could otherwise be executed after the next."""
    for _ in range(MOST_TRIES):
        try:
            return await work()
        except UnavailableError:
            await late_writes()
    raise AssertionError("never an answer")


async def late_writes() -> None:
    """Wait until no late writes are possible: they would restore deleted objects."""
    await REAL.sleep(LATE_S + 0.05)


async def created(engine: LogEngine, name: str, body: bytes) -> bool:
    """Return whether the name has `body`, which is unique to the caller, by the rule for unknown outcomes."""
    for _ in range(MOST_TRIES):
        with contextlib.suppress(UnavailableError):
            if await engine.create(name, [body]):
                return True
            stored = await known(lambda: engine.get(name))
            if stored is not None:
                return bytes(stored) == body
        await REAL.sleep(0.005)
    raise AssertionError("never an answer")


async def was_set(registry: Registry, name: str, value: bytes, version: str | None) -> VersionedValue | None:
    """Return the name's value if it is `value`, unique to the caller, by the rule for unknown outcomes."""
    for _ in range(MOST_TRIES):
        with contextlib.suppress(UnavailableError):
            stored = await registry.compare_and_set(name, value, version)
            if stored is not None:
                return VersionedValue(value, stored)
        entry = await known(lambda: registry.get(name))
        if entry is not None and entry.value == value:
            return entry
        if (entry.version if entry else None) != version:
            return None
        await REAL.sleep(0.005)
    raise AssertionError("never an answer")
