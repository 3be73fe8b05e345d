"""Parses the URLs of object stores, and opens them: the only place that knows which URLs are valid."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit
from urllib.request import url2pathname

from obstore.store import MemoryStore, ObjectStore, from_url

from nadi.errors import InvalidArgumentError
from nadi.object_log.failures import secrets_of, without_secrets
from nadi.object_log.hdfs.location import SCHEME as HDFS
from nadi.object_log.hdfs.location import check_form

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

REMOTE = ("s3", "gs", "az")  # of `obstore`
ELSEWHERE = (*REMOTE, HDFS)
_CONNECT_TIMEOUT = "5s"
_RETRY_TIMEOUT = timedelta(seconds=30)


class RemoteStore(NamedTuple):
    """Open object store. secrets: values to redact from messages. scheme: s3, gs, az or memory."""

    store: ObjectStore
    scheme: str
    secrets: tuple[str, ...]


def folder_of(url: str, **config: str) -> Path | None:
    """Return the folder of `file:///folder`; None for other stores.

    InvalidArgumentError: not the URL of a store.

    >>> folder_of("file:///data/tier2")
    PosixPath('/data/tier2')
    """
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None or parts.query:
        raise InvalidArgumentError(
            f"{parts.scheme}://…: a store's URL can't have credentials or a query: set environment variables instead"
        )
    if parts.scheme != "file":
        if parts.scheme not in (*ELSEWHERE, "memory"):
            raise InvalidArgumentError(
                f"{url!r} is not a store: use file://, {', '.join(f'{name}://' for name in ELSEWHERE)}"
            )
        if parts.scheme == HDFS:
            check_form(url)
        if parts.scheme in REMOTE and not parts.netloc:
            raise InvalidArgumentError(f"{url!r} names no bucket: write it as {parts.scheme}://bucket/prefix")
        return None
    if parts.netloc or not parts.path or config:
        raise InvalidArgumentError(f"{url}: use file:///path, without configuration, for a folder")
    return Path(url2pathname(parts.path))


def check_shared(url: str) -> None:
    """Raise InvalidArgumentError unless that store can hold a cluster."""
    if urlsplit(url).scheme == HDFS:
        raise InvalidArgumentError(
            f"{url}: HDFS can't be the store of a cluster, because it lacks conditional writes: use file://, "
            f"{', '.join(f'{name}://' for name in REMOTE)}, or use HDFS with --tier2 for the chunks of one server"
        )


def remote_store(url: str, *, retries: int, timeout_s: int, **config: str) -> RemoteStore:
    """Open the store at `s3://bucket/prefix`, `gs://…`, `az://…`, or an empty one for `memory:///`.

    retries: by `obstore`; 0 where the caller must know whether a refused put was its own. timeout_s: per request.
    config: such as `endpoint` or `access_key_id`, in addition to the environment variables. InvalidArgumentError: not
    such a URL, or the configuration is incomplete.
    """
    scheme = urlsplit(url).scheme
    if folder_of(url, **config) is not None or scheme == HDFS:
        raise InvalidArgumentError(f"{url} is not the URL of an object store")
    if scheme == "memory":
        return RemoteStore(MemoryStore(), scheme, ())
    client: ClientConfig = {"connect_timeout": _CONNECT_TIMEOUT, "timeout": f"{timeout_s}s"}
    retry: RetryConfig = {"max_retries": retries, "retry_timeout": _RETRY_TIMEOUT}
    if config.get("endpoint", "").startswith("http:"):
        client["allow_http"] = True
    secrets = secrets_of(config)
    try:
        store: ObjectStore = from_url(url, config=config, client_options=client, retry_config=retry)  # type: ignore[call-overload]
    except Exception as error:  # obstore passes on any error of the configuration's parser
        problem = InvalidArgumentError(f"{url}: {without_secrets(str(error), secrets)}")
    else:
        return RemoteStore(store, scheme, secrets)
    raise problem  # here, without the original error as context, whose message may contain credentials
