"""HDFS as its client presents it, in memory: `nadi.object_log.hdfs.files.connect` with the real errors and texts, which
`tests/hdfs` compares with a real cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from nadi.object_log.hdfs.location import HdfsLocation
from nadi.wire.fields import Buffer


@dataclass
class Status:
    path: str
    length: int
    isdir: bool
    modification_time: int


@dataclass
class Node:
    """body: None for a folder."""

    body: bytes | None
    modification_time: int = field(default_factory=lambda: time.time_ns() // 1_000_000)


class FakeHdfs:
    """A name node and its files. error: raised by each call while it is set; what: only by calls with these names."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {"/": Node(None)}
        self.error: Exception | None = None
        self.of: Sequence[str] = ()
        self.is_silent = False  # calls get no reply

    def connect(self, where: HdfsLocation) -> FakeClient:
        return FakeClient(self)

    async def check(self, call: str) -> None:
        if self.error is not None and (not self.of or call in self.of):
            raise self.error
        if self.is_silent:
            await asyncio.Event().wait()

    def make_folder(self, path: str) -> None:
        for place in _above(path + "/x"):
            node = self.nodes.setdefault(place, Node(None))
            if node.body is not None:
                raise RuntimeError(
                    f'RPCError("org.apache.hadoop.fs.ParentNotDirectoryException", "{place} (is not a directory)")'
                )


class FakeClient:
    def __init__(self, hdfs: FakeHdfs) -> None:
        self._hdfs = hdfs

    async def get_file_info(self, path: str) -> Status:
        await self._hdfs.check("get_file_info")
        return _status(path, self._found(path))

    async def list_status(self, path: str, recursive: bool = False) -> AsyncIterator[Status]:
        await self._hdfs.check("list_status")
        node = self._found(path)
        below = {name: node for name, node in self._hdfs.nodes.items() if name.startswith(path.rstrip("/") + "/")}
        if not recursive:
            below = {name: node for name, node in below.items() if "/" not in name[len(path) + 1 :]}
        for name, one in below.items() if node.body is None else [(path, node)]:
            yield _status(name, one)

    async def read(self, path: str) -> FakeReader:
        await self._hdfs.check("read")
        body = self._found(path).body
        if body is None:
            raise FileNotFoundError(f"Path is not a file: {path}\n\tat org.apache")
        return FakeReader(body)

    async def create_file(self, path: str, block_bytes: int, replication: int | None) -> FakeWriter:
        await self._hdfs.check("create_file")
        if path in self._hdfs.nodes:
            raise FileExistsError(f"{path} for client 127.0.0.1 already exists")
        self._hdfs.make_folder(path.rpartition("/")[0])
        self._hdfs.nodes[path] = Node(b"")
        return FakeWriter(self._hdfs, path)

    async def make_folder(self, path: str) -> None:
        await self._hdfs.check("make_folder")
        self._hdfs.make_folder(path)

    async def rename(self, src: str, dst: str, overwrite: bool = False) -> None:
        await self._hdfs.check("rename")
        nodes = self._hdfs.nodes
        is_folder = self._found(src, f"rename source {src} is not found.").body is None
        self._found(dst.rpartition("/")[0] or "/", f"rename destination parent {dst} not found.")
        if dst in nodes and (nodes[dst].body is None) != is_folder:
            raise RuntimeError(
                f'RPCError("java.io.IOException", "Source {src} and destination {dst} must both be directories")'
            )
        if dst in nodes and not overwrite:
            raise FileExistsError(f"rename destination {dst} already exists")
        nodes.pop(dst, None)
        for name in [name for name in nodes if name == src or name.startswith(src + "/")]:
            nodes[dst + name[len(src) :]] = nodes.pop(name)

    async def delete(self, path: str, recursive: bool = False) -> bool:
        await self._hdfs.check("delete")
        below = [name for name in self._hdfs.nodes if name == path or name.startswith(path + "/")]
        if len(below) > 1 and not recursive:
            text = f"`{path} is non empty': Directory is not empty"
            raise RuntimeError(f'RPCError("org.apache.hadoop.fs.PathIsNotEmptyDirectoryException", "{text}")')
        for name in below:
            del self._hdfs.nodes[name]
        return bool(below)

    def _found(self, path: str, why: str = "") -> Node:
        node = self._hdfs.nodes.get(path)
        if node is None:
            raise FileNotFoundError(why or path)
        return node


class FakeReader:
    def __init__(self, body: bytes) -> None:
        self._body = body

    def __len__(self) -> int:
        return len(self._body)

    async def read_range(self, offset: int, len: int) -> bytes:
        assert offset + len <= self.__len__(), "the real one panics"
        return self._body[offset : offset + len]


class FakeWriter:
    def __init__(self, hdfs: FakeHdfs, path: str) -> None:
        self._hdfs, self._path, self._written, self._is_synced = hdfs, path, b"", True

    async def write(self, buf: Buffer) -> int:
        await self._hdfs.check("write")
        self._written += bytes(buf)
        self._is_synced = False
        return len(buf)

    async def hsync(self) -> None:
        await self._hdfs.check("hsync")
        self._is_synced = True

    async def close(self) -> None:
        await self._hdfs.check("close")
        assert self._is_synced, "data that was closed but not synced may still be in memory"
        self._hdfs.nodes[self._path] = Node(self._written)


def _status(path: str, node: Node) -> Status:
    return Status(path, len(node.body or b""), node.body is None, node.modification_time)


def _above(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) or "/" for count in range(1, len(parts))]
