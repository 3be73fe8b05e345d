"""Wires in front of a server's ports, at the address that it advertises.

The kind of a connection is known from its socket's owner: one of the servers' processes, or a client.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.cluster.processes.wires import Address, Wires

CLIENTS, SERVERS = "clients", "servers"
_HERE = "127.0.0.1"


class PortWires:
    """Wires of one server, which itself listens on loopback at `ports`. pids: returns the processes of all servers."""

    def __init__(self, wires: Wires, number: int, ports: Iterable[int], pids: Callable[[], list[int]]) -> None:
        self.host = f"127.0.1.{number + 1}"
        self._pids = pids
        self._wires = [wires.wire((_HERE, port), self.host, port, self._kind_of) for port in ports]
        self.refuse()

    def cut(self, kind: str) -> None:
        """Cut off clients, or the other servers."""
        for wire in self._wires:
            wire.cut(kind)

    def mend(self) -> None:
        for wire in self._wires:
            wire.mend()

    def refuse(self) -> None:
        """Refuse connections until the server listens."""
        for wire in self._wires:
            wire.refuse()

    def _kind_of(self, source: Address) -> str:
        inode = _inode_of(source[1])
        return SERVERS if any(_has(pid, inode) for pid in self._pids()) else CLIENTS


def _inode_of(port: int) -> str:
    """Return the inode of the local socket with that port, "" if it is closed already."""
    suffix = f":{port:04X}"
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split(maxsplit=10)
        if fields[1].endswith(suffix) and fields[9] != "0":
            return fields[9]
    return ""


def _has(pid: int, inode: str) -> bool:
    try:
        with os.scandir(f"/proc/{pid}/fd") as entries:
            return any(_link(entry.path) == f"socket:[{inode}]" for entry in entries)
    except OSError:  # the process has ended
        return False


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:  # closed meanwhile
        return ""
