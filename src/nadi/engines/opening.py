"""The engine and the registry of a store, from its URL."""

from __future__ import annotations

from nadi.engines.engine import LogEngine
from nadi.engines.files import open_files
from nadi.engines.objects import TIMEOUT_S, ObjectEngine, ObjectRegistry
from nadi.engines.registry import Registry
from nadi.engines.urls import folder_of, remote_store
from nadi.runtime import Runtime


async def open_engines(url: str, runtime: Runtime, **config: str) -> tuple[LogEngine, Registry]:
    """Those of `file:///folder`, `s3://bucket/prefix`, `gs://…`, `az://…`, or `memory:///`, of this call alone.

    Closing the engine closes both. config: see `remote_store`. Nothing is asked of a remote store yet: see `prove`.

    Raises:
        InvalidArgumentError: it isn't such a URL, or the configuration lacks something.
        UnavailableError: the folder can't be used.
    """
    folder = folder_of(url, **config)
    if folder is not None:
        return await open_files(folder, runtime)
    remote = remote_store(url, retries=0, timeout_s=TIMEOUT_S, **config)
    return ObjectEngine(remote), ObjectRegistry(remote)
