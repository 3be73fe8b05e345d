"""Opens the engine and the registry of a store, and the engine of a separate log, from their URLs."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from nadi.errors import InvalidArgumentError
from nadi.object_log.engine import LogEngine, OwnEngine, Registry
from nadi.object_log.files import open_files
from nadi.object_log.hdfs.engine import open_hdfs
from nadi.object_log.hdfs.location import SCHEME as HDFS
from nadi.object_log.jetstream.location import where
from nadi.object_log.objects import TIMEOUT_S, ObjectEngine, ObjectRegistry
from nadi.object_log.urls import check_shared, folder_of, remote_store
from nadi.runtime import Runtime


async def open_engines(url: str, runtime: Runtime, **config: str) -> tuple[LogEngine, Registry]:
    """Open `file:///folder`, `s3://bucket/prefix`, `gs://…`, `az://…`, or `memory:///` (private to this call) for a
    cluster.

    Use `open_chunk_engines` for HDFS. Closing the engine closes both. config: see `remote_store`. A remote store isn't
    contacted yet: see `prove`. InvalidArgumentError: not such a URL, or the configuration is incomplete.
    UnavailableError: the folder can't be used.
    """
    check_shared(url)
    folder = folder_of(url, **config)
    if folder is not None:
        return await open_files(folder, runtime)
    remote = remote_store(url, retries=0, timeout_s=TIMEOUT_S, **config)
    return ObjectEngine(remote), ObjectRegistry(remote)


async def open_chunk_engines(url: str, runtime: Runtime, **config: str) -> tuple[LogEngine, Registry]:
    """`open_engines` for stores that hold only chunks and their owner's name, HDFS included. Same errors."""
    if urlsplit(url).scheme == HDFS:
        return open_hdfs(url, runtime, **config)
    return await open_engines(url, runtime, **config)


async def open_log(url: str, runtime: Runtime, *, make: bool, **options: str) -> OwnEngine:
    """Open the log at `nats://host:4222/STREAM`; `tls://` requires TLS.

    make: create a missing stream. options: see `where`. InvalidArgumentError: not such a URL, or `nats-py` isn't
    installed. StoreError: NATS refuses, or the stream can't hold a log. UnavailableError: it doesn't respond for a long
    time.
    """
    location = where(url, os.environ, **options)
    try:
        from nadi.object_log.jetstream.engine import open_jetstream
    except ImportError:
        raise InvalidArgumentError("a log in NATS needs the package `nats-py`: pip install 'nadi[nats]'") from None
    return await open_jetstream(location, runtime, make=make)


def log_name(url: str, **options: str) -> str:
    """Return the name by which a cluster identifies such a log: the stream, but not its servers, which may move.
    Errors: see `where`."""
    return where(url, os.environ, **options).name
