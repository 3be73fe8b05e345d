"""What a cluster is: one object, `cluster.json`, written once by whichever server is first and read by all.

    {"cluster": "…", "containers": 8, "format": 2, "created_ms": 1795000000000} <checksum>

A log that isn't in that store has an id of its own, `identity`, written once too, which `cluster.json` names as "log":
so no server runs with another log, nor with one that was lost and made again. It also says, in `cluster`, whose it is.
Beside it is the key that its servers sign tokens with: whoever may read the bucket may act as one.
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

FORMAT = 2
DEFAULT_CONTAINERS = 8
NAME, _KEY = "cluster.json", "keys/tokens"
FOLDER_LOG = "folder"  # the log of a data folder, whose chunks and records are in the store
MIGRATION = "migration"  # while a store is filled by one, and isn't a cluster's yet
TURN = "migrating"  # changes while one is under way, whichever way, and stays: see `nadi.migration.migration_lock`
_LOG_ID, _LOG_OF = "identity", "cluster"  # in a log
_KEY_BYTES = 32


class LogId(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """name: such as "nats:STREAM"."""

    name: str
    id: str


class Cluster(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """cluster: its unique id. created_ms: since 1970, by the clock of the server that was first. log: None if it is in
    the cluster's store."""

    cluster: str
    containers: int
    format: int
    created_ms: int
    log: LogId | None = None


class OwnLog(NamedTuple):
    name: str
    engine: OwnEngine


class _StoreFormat(msgspec.Struct):
    format: int


async def known_cluster(engine: LogEngine, log_name: str, runtime: Runtime) -> Cluster | None:
    """The cluster of this store, None if there is none yet. log_name: see `LogId`; "" is a log in the store.
    InvalidArgumentError: its log has another name. StoreError, UnavailableError: as `open_cluster`."""
    cluster = await patiently(f"read {NAME}", lambda: read_cluster(engine), runtime)
    if cluster is None:
        return None
    has = cluster.log.name if cluster.log is not None else ""
    if has == FOLDER_LOG:
        raise StoreError("the store is that of a data folder: serve that, with --data, or give a URL of its own")
    if has != log_name:
        raise InvalidArgumentError(
            f"the cluster in this store has its log in {has or 'the store itself'}, which can't be changed, and this "
            f"server was started with one in {log_name or 'the store itself'}: "
            + (f"start it with --log {has.partition(':')[0]}://…/{has.partition(':')[2]}" if has else "leave out --log")
        )
    return cluster


async def open_cluster(
    engine: LogEngine, containers: int | None, runtime: Runtime, log: OwnLog | None = None
) -> Cluster:
    """The cluster of this store, made if there is none. containers: how many it has; None: whatever it has, and
    `DEFAULT_CONTAINERS` if it is made. InvalidArgumentError: it has another number of containers, or another log.
    StoreError: something else is stored there, or written by another version, or the store refuses. UnavailableError:
    it gives no answer for a long while."""
    check_count(containers)
    log_name = log.name if log is not None else ""
    cluster = await known_cluster(engine, log_name, runtime)
    if cluster is None:
        await refuse_strangers(engine, runtime)
        own = None if log is None else LogId(log.name, await _identified(log, runtime))
        await named_cluster(engine, runtime.unique(), containers or DEFAULT_CONTAINERS, runtime, own)
        cluster = await known_cluster(engine, log_name, runtime)
        if cluster is None:
            raise StoreError(f"{NAME} was stored and isn't there: the store forgets what it has, use another")
    if containers is not None and containers != cluster.containers:
        raise InvalidArgumentError(
            f"the cluster in this store has {cluster.containers:,} containers, which can't be changed, and this server "
            f"was started with {containers:,}: start it with --containers {cluster.containers}, or without"
        )
    if log is not None:
        await check_its_log(cluster, log, runtime)
        is_ours, owner = await stored_patiently(log.engine, _LOG_OF, cluster.cluster.encode(), runtime)
        if not is_ours:
            raise StoreError(
                f"the log {log.name} is that of another cluster ({owner.decode()}): a cluster in another store needs "
                "a stream of its own"
            )
    return cluster


def check_count(containers: int | None) -> None:
    """Raise InvalidArgumentError if a cluster can't have so many containers; None is any number."""
    if containers is not None and not 1 <= containers <= MOST_CONTAINERS:
        raise InvalidArgumentError(f"a cluster has 1 to {MOST_CONTAINERS:,} containers, not {containers:,}")


async def find_cluster(engine: LogEngine, runtime: Runtime) -> Cluster:
    """The cluster of this store, for somebody who doesn't serve it. StoreError: there is none, or it was written by
    another version, or the store refuses. UnavailableError: it gives no answer for a long while."""
    cluster = await patiently(f"read {NAME}", lambda: read_cluster(engine), runtime)
    if cluster is None:
        raise StoreError(f"there is no {NAME} in this store, so no cluster: correct the URL")
    if cluster.log is not None and cluster.log.name == FOLDER_LOG:
        raise StoreError("the store is that of a data folder, not of a cluster: correct the URL")
    return cluster


async def read_cluster(engine: LogEngine) -> Cluster | None:
    """Whose the store is, a data folder's included; None if it is nobody's. StoreError: as `decoded`."""
    found = await engine.get(NAME)
    return None if found is None else decoded(bytes(found))


async def named_cluster(
    engine: LogEngine, cluster: str, containers: int, runtime: Runtime, log: LogId | None = None
) -> Cluster:
    """The cluster of this store, made with that id if there is none. Errors: `patiently`."""
    new = Cluster(cluster, containers, FORMAT, runtime.now_ms(), log)
    _, found = await stored_patiently(engine, NAME, encoded(new), runtime)
    return decoded(found)


async def refuse_strangers(engine: LogEngine, runtime: Runtime) -> None:
    """StoreError if something is stored there that is no cluster's. Nothing is written."""
    strangers = await patiently("list what it holds", lambda: _strangers(engine), runtime)
    if strangers and await _got(engine, NAME, runtime) is None:  # otherwise another server has just made it
        if await _got(engine, MIGRATION, runtime) is not None:
            raise StoreError(
                "a migration to this store hasn't ended, so there is no cluster yet: start `nadi migrate` again, or "
                "remove what is under this URL"
            )
        raise StoreError(
            f"the object store holds {', '.join(strangers)} and no {NAME}: it isn't a cluster's, or that was removed. "
            "Give each cluster, and each data folder, a URL of its own, such as s3://bucket/prefix with a prefix that "
            "nothing has"
        )


async def _identified(log: OwnLog, runtime: Runtime) -> str:
    found = await _got(log.engine, _LOG_ID, runtime)
    if found is None:
        strangers = await patiently("list the log", lambda: _strangers(log.engine), runtime)
        if strangers and await _got(log.engine, _LOG_ID, runtime) is None:
            raise StoreError(
                f"the log {log.name} holds {', '.join(strangers)}, and isn't a cluster's: give it a stream of its own"
            )
        _, found = await stored_patiently(log.engine, _LOG_ID, runtime.unique().encode(), runtime)
    return found.decode()


async def check_its_log(cluster: Cluster, log: OwnLog, runtime: Runtime) -> None:
    """StoreError if the log isn't the one that the cluster has always had. Nothing is written."""
    found = await _got(log.engine, _LOG_ID, runtime)
    if cluster.log is None or found is None or found.decode() != cluster.log.id:
        raise StoreError(
            f"the log {log.name} isn't the one that this cluster has: start this server with that, or restore it if it "
            "was lost. What was acknowledged lately is nowhere else"
        )


async def _strangers(engine: LogEngine) -> list[str]:
    """Some of what is there before a cluster is; servers that are starting, too, leave their proofs."""
    async for page in engine.listed(""):
        found = list(islice((name for name in page if not name.startswith(f"{PROOF}/") and name != TURN), 3))
        if found:
            return found
    return []


def encoded(cluster: Cluster) -> bytes:
    return line_of(msgspec.json.encode(cluster))


def decoded(data: bytes) -> Cluster:
    """What `encoded` was given; StoreError if it is damaged, or written by another version."""
    found = value_of(data)
    if found is None:
        raise StoreError(f"{NAME} in the object store is damaged, or isn't one that nadi wrote. Restore it")
    try:
        written = msgspec.json.decode(found, type=_StoreFormat).format
        if written != FORMAT:
            raise StoreError(
                f"the cluster in this store has format {written}, and this nadi reads format {FORMAT}: "
                "use the nadi version that wrote it, or another URL"
            )
        cluster = msgspec.json.decode(found, type=Cluster)
    except msgspec.MsgspecError as error:
        raise StoreError(f"{NAME} in the object store isn't one that nadi wrote: {error}. Restore it") from error
    if not cluster.cluster or not 1 <= cluster.containers <= MOST_CONTAINERS:
        raise StoreError(f"{NAME} in the object store isn't one that nadi wrote. Restore it")
    return cluster


async def signing_key(engine: LogEngine, runtime: Runtime) -> bytes:
    """The 32 bytes that the cluster's servers sign tokens with, made if there are none. StoreError: they are damaged,
    or the store refuses. UnavailableError: it gives no answer for a long while."""
    found = await _got(engine, _KEY, runtime)
    if found is None:
        chance = "".join(runtime.unique() for _ in range(4))  # 122 bits each, of the system's own
        _, found = await stored_patiently(engine, _KEY, hashlib.sha256(chance.encode()).digest(), runtime)
    if len(found) != _KEY_BYTES:
        raise StoreError(
            f"{_KEY} in the object store has {len(found):,} bytes, not {_KEY_BYTES}: restore it, or remove it while no "
            "server runs, and the next one to start makes another"
        )
    return found


async def _got(engine: LogEngine, name: str, runtime: Runtime) -> bytes | None:
    found = await patiently(f"read {name}", lambda: engine.get(name), runtime)
    return None if found is None else bytes(found)
