"""The engine and the registry of a store, and the engine of a log that isn't in it, from their URLs."""

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
    """Those of `file:///folder`, `s3://bucket/prefix`, `gs://…`, `az://…`, or `memory:///`, of this call alone; for a
    cluster: `open_of_chunks` takes HDFS, too. Closing the engine closes both. config: see `remote_store`. Nothing is
    asked of a remote store yet: see `prove`. InvalidArgumentError: it isn't such a URL, or the configuration lacks
    something. UnavailableError: the folder can't be used."""
    check_shared(url)
    folder = folder_of(url, **config)
    if folder is not None:
        return await open_files(folder, runtime)
    remote = remote_store(url, retries=0, timeout_s=TIMEOUT_S, **config)
    return ObjectEngine(remote), ObjectRegistry(remote)


async def open_of_chunks(url: str, runtime: Runtime, **config: str) -> tuple[LogEngine, Registry]:
    """`open_engines`, for whoever says in a store whose the chunks in it are. Errors: likewise."""
    if urlsplit(url).scheme == HDFS:
        return open_hdfs(url, runtime, **config)
    return await open_engines(url, runtime, **config)


async def open_log(url: str, runtime: Runtime, *, make: bool, **options: str) -> OwnEngine:
    """The engine of `nats://host:4222/STREAM`; `tls://` wants TLS. make: make the stream if it isn't there. options:
    see `where`. InvalidArgumentError: it isn't such a URL, or `nats-py` isn't installed. StoreError: NATS refuses, or
    the stream can't hold a log. UnavailableError: it gives no answer for a long while."""
    place = where(url, os.environ, **options)
    try:
        from nadi.object_log.jetstream.engine import open_jetstream
    except ImportError:
        raise InvalidArgumentError("a log in NATS needs more: pip install 'nadi[nats]'") from None
    return await open_jetstream(place, runtime, make=make)


def log_name(url: str, **options: str) -> str:
    """What a cluster remembers of such a log: not its servers, which may move. Errors: see `where`."""
    return where(url, os.environ, **options).name
