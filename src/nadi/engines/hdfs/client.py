"""The client of HDFS: the package `hdfs-native`, or what stands in for it in tests, which replace `connect`.

Its asyncio client is used, as what hangs can be cancelled: a sync may, whose data node has died while a block began.
But it panics where it would pause before it tries a name node again, so it is told to try each once, and no more.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit
from xml.etree import ElementTree

from nadi.engines.hdfs.where import Where
from nadi.errors import InvalidArgumentError
from nadi.wire.fields import Buffer

_PATIENCE = {"dfs.client.failover.sleep.base.millis": "0", "dfs.client.socket-timeout": "20000"}
_FILE, _FOLDER = 0o640, 0o750  # HDFS gives both the group of the folder that they are in, which may read
_NO_SERVICE = "No NameNode hosts found"


class Status(Protocol):
    """modification_time: milliseconds since 1970, by the name node's clock."""

    path: str
    length: int
    isdir: bool
    modification_time: int


class Reader(Protocol):
    def __len__(self) -> int: ...

    async def read_range(self, offset: int, len: int) -> bytes: ...


class Writer(Protocol):
    async def write(self, buf: Buffer) -> int: ...

    async def hsync(self) -> None: ...

    async def close(self) -> None: ...


class Client(Protocol):
    """Paths are absolute. What is wrong, it says as `failures` reads it."""

    async def get_file_info(self, path: str) -> Status: ...

    def list_status(self, path: str, recursive: bool = False) -> AsyncIterator[Status]: ...

    async def read(self, path: str) -> Reader: ...

    async def create_file(self, path: str, block_bytes: int, replication: int | None) -> Writer:
        """A new file; the folders that lead to it are made."""

    async def make_folder(self, path: str) -> None:
        """With those that lead to it."""

    async def rename(self, src: str, dst: str, overwrite: bool = False) -> None: ...

    async def delete(self, path: str, recursive: bool = False) -> bool: ...


def connect(where: Where) -> Client:
    """A client; nothing is asked of HDFS yet.

    Raises:
        InvalidArgumentError: `hdfs-native` isn't installed, or Hadoop's configuration can't be used.
    """
    try:
        import hdfs_native
    except ImportError:
        raise InvalidArgumentError("HDFS needs the package `hdfs-native`: pip install 'nadi[hdfs]'") from None

    class Native(hdfs_native.AsyncClient):  # type: ignore[misc, unused-ignore]  # of an extra
        async def create_file(self, path: str, block_bytes: int, replication: int | None) -> Writer:
            options = hdfs_native.WriteOptions(
                block_size=block_bytes, replication=replication, permission=_FILE, overwrite=False, create_parent=True
            )
            writer: Writer = await self.create(path, options)
            return writer

        async def make_folder(self, path: str) -> None:
            await self.mkdirs(path, _FOLDER, True)

    try:
        tries = {"dfs.client.failover.max.attempts": str(_others(where.nodes))}
        client: Client = Native(where.nodes, {**_PATIENCE, **tries, **where.settings})
    except (RuntimeError, OSError, ElementTree.ParseError) as error:
        if _NO_SERVICE in str(error):
            raise InvalidArgumentError(
                f"{where.nodes} has no port, and no hdfs-site.xml in HADOOP_CONF_DIR knows a name service of that name"
            ) from None
        said = re.sub(r"\s+", " ", str(error))[:300]
        raise InvalidArgumentError(f"Hadoop's configuration in HADOOP_CONF_DIR can't be used: {said}") from None
    return client


def _others(nodes: str) -> int:
    """How many name nodes there are to try after the first. Raises OSError, ElementTree.ParseError."""
    parts = urlsplit(nodes)
    if parts.port is not None:
        return 0
    folder = os.environ.get("HADOOP_CONF_DIR") or os.environ.get("HADOOP_HOME", "") + "/etc/hadoop"
    known = ""
    for file in (Path(folder) / "core-site.xml", Path(folder) / "hdfs-site.xml"):
        if file.exists():
            for found in ElementTree.parse(file).iter("property"):
                if found.findtext("name") == f"dfs.ha.namenodes.{parts.netloc}":
                    known = found.findtext("value") or ""
    return known.count(",")
