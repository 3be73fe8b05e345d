"""The client of HDFS: the package `hdfs-native`, or what stands in for it in tests, which replace `connect`.

All its calls block, and let others have the interpreter. Its asyncio client isn't used: it panics once it has to pause
before it tries a name node again, and checks what it reads in the loop's thread.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Protocol

from nadi.engines.hdfs.where import Where
from nadi.errors import InvalidArgumentError
from nadi.wire.fields import Buffer

# Of Hadoop's own defaults, the client would try a name node that is away for three minutes, and its caller, who tries
# again by itself, would have no word of it.
_PATIENCE = {
    "dfs.client.failover.max.attempts": "3",
    "dfs.client.failover.sleep.base.millis": "100",
    "dfs.client.failover.sleep.max.millis": "1000",
    "dfs.client.socket-timeout": "20000",
}
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

    def read_range(self, offset: int, len: int) -> bytes: ...


class Writer(Protocol):
    def write(self, buf: Buffer) -> int: ...

    def hsync(self) -> None: ...

    def close(self) -> None: ...


class Client(Protocol):
    """Paths are absolute. What is wrong, it says as `failures` reads it."""

    def get_file_info(self, path: str) -> Status: ...

    def list_status(self, path: str, recursive: bool = False) -> Iterator[Status]: ...

    def read(self, path: str) -> Reader: ...

    def create_file(self, path: str, block_bytes: int, replication: int | None) -> Writer:
        """A new file; the folders that lead to it are made."""

    def make_folder(self, path: str) -> None:
        """With those that lead to it."""

    def rename(self, src: str, dst: str, overwrite: bool = False) -> None: ...

    def delete(self, path: str, recursive: bool = False) -> bool: ...


def connect(where: Where) -> Client:
    """A client; nothing is asked of HDFS yet.

    Raises:
        InvalidArgumentError: `hdfs-native` isn't installed, or Hadoop's configuration can't be used.
    """
    try:
        import hdfs_native
    except ImportError:
        raise InvalidArgumentError("HDFS needs the package `hdfs-native`: pip install 'nadi[hdfs]'") from None

    class Native(hdfs_native.Client):  # type: ignore[misc, unused-ignore]  # of an extra
        def create_file(self, path: str, block_bytes: int, replication: int | None) -> Writer:
            options = hdfs_native.WriteOptions(
                block_size=block_bytes, replication=replication, permission=_FILE, overwrite=False, create_parent=True
            )
            writer: Writer = self.create(path, options)
            return writer

        def make_folder(self, path: str) -> None:
            self.mkdirs(path, _FOLDER, True)

    try:
        client: Client = Native(where.nodes, {**_PATIENCE, **where.settings})
    except (RuntimeError, OSError) as error:
        if _NO_SERVICE in str(error):
            raise InvalidArgumentError(
                f"{where.nodes} has no port, and no hdfs-site.xml in HADOOP_CONF_DIR knows a name service of that name"
            ) from None
        said = re.sub(r"\s+", " ", str(error))[:300]
        raise InvalidArgumentError(f"Hadoop's configuration in HADOOP_CONF_DIR can't be used: {said}") from None
    return client
