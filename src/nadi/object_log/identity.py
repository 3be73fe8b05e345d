"""Identity of a cluster: one object, `cluster.json`, written once by the first server and read by all.

    {"cluster": "…", "containers": 8, "format": 2, "created_ms": 1795000000000} <checksum>

A log outside the store has an object `identity` with its own id, written once too, which `cluster.json` names as "log":
so no server runs with another log, nor with one that was lost and recreated. The log's object `cluster` names its
cluster. Next to `cluster.json` is the key with which servers sign tokens: read access to the bucket is full access.
"""

from __future__ import annotations

import hashlib
from itertools import islice
from typing import NamedTuple

import msgspec

from nadi.defaults import MOST_CONTAINERS
from nadi.errors import InvalidArgumentError, StoreError
from nadi.object_log.checksummed_lines import line_of, value_of
from nadi.object_log.engine import LogEngine, OwnEngine
from nadi.object_log.outcomes import patiently, stored_patiently
from nadi.object_log.store_probe import PROOF
from nadi.runtime import Runtime

FORMAT, ENCRYPTED_FORMAT = 2, 3  # of a store that is encrypted (`nadi.encryption`)
DEFAULT_CONTAINERS = 8
NAME, _KEY = "cluster.json", "keys/tokens"
FOLDER_LOG = "folder"  # log of a data folder that has its chunks and records in the store
MIGRATION = "migration"  # present while a migration fills the store, before it is a cluster's
MIGRATION_LOCK = (
    "migrating"  # lock of migrations in either direction, never removed: see `nadi.migration.migration_lock`
)
_LOG_ID, _LOG_OF = "identity", "cluster"  # in a log
_KEY_BYTES = 32
_BEFORE = (f"{PROOF}/", "keys/data")  # stored before the cluster


class LogId(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Identity of a log outside the store. name: such as "nats:STREAM"."""

    name: str
    id: str


class Cluster(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Contents of `cluster.json`. cluster: unique id. created_ms: since 1970, by the first server's clock. log: None if
    it is in the cluster's store."""

    cluster: str
    containers: int
    format: int
    created_ms: int
    log: LogId | None = None

    @property
    def is_encrypted(self) -> bool:
        return self.format == ENCRYPTED_FORMAT


class OwnLog(NamedTuple):
    name: str
    engine: OwnEngine


class _StoreFormat(msgspec.Struct):
    format: int


async def known_cluster(engine: LogEngine, log_name: str, runtime: Runtime) -> Cluster | None:
    """Return the cluster of this store, None if there is none yet. log_name: see `LogId`; "" for a log in the store.

    InvalidArgumentError: its log has another name. StoreError, UnavailableError: as `open_cluster`.
    """
    cluster = await patiently(f"read {NAME}", lambda: read_cluster(engine), runtime)
    if cluster is None:
        return None
    known_log = cluster.log.name if cluster.log is not None else ""
    if known_log == FOLDER_LOG:
        raise StoreError("the store belongs to a data folder: serve it with --data, or use another URL")
    if known_log != log_name:
        raise InvalidArgumentError(
            f"the cluster in this store has its log in {known_log or 'the store itself'}, not in "
            f"{log_name or 'the store itself'}, and a cluster's log can't be changed: "
            + (
                f"start it with --log {known_log.partition(':')[0]}://…/{known_log.partition(':')[2]}"
                if known_log
                else "leave out --log"
            )
        )
    return cluster


async def open_cluster(
    engine: LogEngine, containers: int | None, runtime: Runtime, log: OwnLog | None = None, *, encrypted: bool = False
) -> Cluster:
    """Return the cluster of this store, created if there is none; encrypted: with encryption.

    containers: expected number; None: any, or `DEFAULT_CONTAINERS` if created. InvalidArgumentError: it has another
    number of containers, or another log. StoreError: the store has other objects or another version's, or refuses.
    UnavailableError: it doesn't respond for a long time.
    """
    check_count(containers)
    log_name = log.name if log is not None else ""
    cluster = await known_cluster(engine, log_name, runtime)
    if cluster is None:
        await refuse_strangers(engine, runtime)
        own = None if log is None else LogId(log.name, await _log_id(log, runtime))
        await named_cluster(
            engine, runtime.unique(), containers or DEFAULT_CONTAINERS, runtime, own, encrypted=encrypted
        )
        cluster = await known_cluster(engine, log_name, runtime)
        if cluster is None:
            raise StoreError(f"{NAME} was stored but isn't found: the store loses objects, use another one")
    if containers is not None and containers != cluster.containers:
        raise InvalidArgumentError(
            f"the cluster in this store has {cluster.containers:,} containers, not {containers:,}, and their number "
            f"can't be changed: start with --containers {cluster.containers}, or leave it out"
        )
    if log is not None:
        await check_log_identity(cluster, log, runtime)
        is_ours, owner = await stored_patiently(log.engine, _LOG_OF, cluster.cluster.encode(), runtime)
        if not is_ours:
            raise StoreError(
                f"the log {log.name} belongs to another cluster ({owner.decode()}): use a separate stream for each "
                "cluster"
            )
    return cluster


def check_count(containers: int | None) -> None:
    """Raise InvalidArgumentError unless a cluster can have that many containers; None is valid."""
    if containers is not None and not 1 <= containers <= MOST_CONTAINERS:
        raise InvalidArgumentError(f"a cluster can have 1 to {MOST_CONTAINERS:,} containers, not {containers:,}")


async def find_cluster(engine: LogEngine, runtime: Runtime) -> Cluster:
    """Return the cluster of this store, for a program that doesn't serve it. StoreError: there is none, it was written
    by another version, or the store refuses. UnavailableError: it doesn't respond for a long time."""
    cluster = await patiently(f"read {NAME}", lambda: read_cluster(engine), runtime)
    if cluster is None:
        raise StoreError(f"{NAME} isn't in this store, so it isn't a cluster's: correct the URL")
    if cluster.log is not None and cluster.log.name == FOLDER_LOG:
        raise StoreError("the store belongs to a data folder, not to a cluster: correct the URL")
    return cluster


async def read_cluster(engine: LogEngine) -> Cluster | None:
    """Return the identity of the store's owner (cluster or data folder); None if it has none. StoreError: as
    `decoded`."""
    data = await engine.get(NAME)
    return None if data is None else decoded(bytes(data))


async def named_cluster(
    engine: LogEngine,
    cluster: str,
    containers: int,
    runtime: Runtime,
    log: LogId | None = None,
    *,
    encrypted: bool = False,
) -> Cluster:
    """Return the cluster of this store, created with that id if there is none. Errors: as `patiently`."""
    new = Cluster(cluster, containers, ENCRYPTED_FORMAT if encrypted else FORMAT, runtime.now_ms(), log)
    _, data = await stored_patiently(engine, NAME, encoded(new), runtime)
    return decoded(data)


async def refuse_strangers(engine: LogEngine, runtime: Runtime) -> None:
    """Raise StoreError if the store has objects but no cluster. Nothing is written."""
    strangers = await patiently("list its objects", lambda: _strangers(engine), runtime)
    if strangers and await _get(engine, NAME, runtime) is None:  # otherwise another server has just made it
        if await _get(engine, MIGRATION, runtime) is not None:
            raise StoreError(
                "a migration to this store is unfinished: run `nadi migrate` again, or delete all objects under this "
                "URL"
            )
        raise StoreError(
            f"the object store has {', '.join(strangers)} but no {NAME}: it isn't a cluster's, or that was removed. "
            "Use a separate URL for each cluster and each data folder, such as s3://bucket/prefix with an unused prefix"
        )


async def _log_id(log: OwnLog, runtime: Runtime) -> str:
    data = await _get(log.engine, _LOG_ID, runtime)
    if data is None:
        strangers = await patiently("list the log", lambda: _strangers(log.engine), runtime)
        if strangers and await _get(log.engine, _LOG_ID, runtime) is None:
            raise StoreError(
                f"the log {log.name} has {', '.join(strangers)} and isn't a cluster's: use a separate stream"
            )
        _, data = await stored_patiently(log.engine, _LOG_ID, runtime.unique().encode(), runtime)
    return data.decode()


async def check_log_identity(cluster: Cluster, log: OwnLog, runtime: Runtime) -> None:
    """Raise StoreError unless the cluster was created with this log. Nothing is written."""
    data = await _get(log.engine, _LOG_ID, runtime)
    if cluster.log is None or data is None or data.decode() != cluster.log.id:
        raise StoreError(
            f"the log {log.name} isn't this cluster's log: start this server with the right one, or restore it if it "
            "was lost. Recently acknowledged writes exist nowhere else"
        )


async def _strangers(engine: LogEngine) -> list[str]:
    """Return some names of objects that don't belong to a store before its cluster is created. Proofs of servers that
    are starting, and their data keys, don't count."""
    async for page in engine.listed(""):
        names = list(islice((name for name in page if not name.startswith(_BEFORE) and name != MIGRATION_LOCK), 3))
        if names:
            return names
    return []


def encoded(cluster: Cluster) -> bytes:
    return line_of(msgspec.json.encode(cluster))


def decoded(data: bytes) -> Cluster:
    """Return the cluster that was `encoded`. StoreError: it is damaged, or written by another version."""
    payload = value_of(data)
    if payload is None:
        raise StoreError(f"{NAME} in the object store is damaged, or not written by nadi: restore it")
    try:
        format_number = msgspec.json.decode(payload, type=_StoreFormat).format
        if format_number not in (FORMAT, ENCRYPTED_FORMAT):
            raise StoreError(
                f"the cluster in this store has format {format_number}, but this version of nadi reads formats "
                f"{FORMAT} and {ENCRYPTED_FORMAT}: use the version that wrote it, or another URL"
            )
        cluster = msgspec.json.decode(payload, type=Cluster)
    except msgspec.MsgspecError as error:
        raise StoreError(f"{NAME} in the object store wasn't written by nadi ({error}): restore it") from error
    if not cluster.cluster or not 1 <= cluster.containers <= MOST_CONTAINERS:
        raise StoreError(f"{NAME} in the object store wasn't written by nadi: restore it")
    return cluster


async def signing_key(engine: LogEngine, runtime: Runtime) -> bytes:
    """Return the cluster's 32-byte token signing key, created if there is none. StoreError: it is damaged, or the store
    refuses. UnavailableError: it doesn't respond for a long time."""
    data = await _get(engine, _KEY, runtime)
    if data is None:
        entropy = "".join(runtime.unique() for _ in range(4))  # 122 bits each, from the system
        _, data = await stored_patiently(engine, _KEY, hashlib.sha256(entropy.encode()).digest(), runtime)
    if len(data) != _KEY_BYTES:
        raise StoreError(
            f"{_KEY} in the object store has {len(data):,} bytes, not {_KEY_BYTES}: restore it, or remove it while no "
            "server runs and let the next server create a new one"
        )
    return data


async def _get(engine: LogEngine, name: str, runtime: Runtime) -> bytes | None:
    data = await patiently(f"read {name}", lambda: engine.get(name), runtime)
    return None if data is None else bytes(data)
