"""Nodes on one machine, each in a network namespace with its own address, joined by a bridge.

A process on a node sees only its own loopback and the other nodes: a program that finds its server only on 127.0.0.1
fails here as on a cluster. Everything is named after the process that created it, and removed by `close`; remains of a
killed run are removed by the next `Network`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import psutil

_PREFIX = "ndp"  # with a pid, a letter and a number: at most 15 characters, as Linux wants an interface's name to be


class Network:
    """A bridge, with this process at its `host` address, and nodes."""

    def __init__(self) -> None:
        _sweep()
        pid = os.getpid()
        self._name = f"{_PREFIX}{pid}"
        self._subnet = f"198.{18 + (pid >> 8) % 2}.{pid % 256}"  # of the range kept for tests of networks
        self.host = f"{self._subnet}.1"
        self._nodes: list[Node] = []
        self._bridge = f"{self._name}b"
        try:
            _ip("link", "add", self._bridge, "type", "bridge")
            _ip("address", "add", f"{self.host}/24", "dev", self._bridge)
            _ip("link", "set", self._bridge, "up")
        except BaseException:
            self.close()
            raise

    def node(self) -> Node:
        number = len(self._nodes) + 2
        node = Node(f"{self._name}n{number}", f"{self._name}v{number}", f"{self._subnet}.{number}")
        self._nodes.append(node)
        node.plug_in(self._bridge)
        return node

    def close(self) -> None:
        for node in self._nodes:
            node.kill()
        subprocess.run(["ip", "link", "delete", self._bridge], capture_output=True, check=False)


class Node:
    """A namespace; the other nodes reach it at `address`."""

    def __init__(self, name: str, link: str, address: str) -> None:
        self.name, self._link, self.address = name, link, address
        self._children: list[subprocess.Popen[bytes]] = []

    def plug_in(self, bridge: str) -> None:
        _ip("netns", "add", self.name)
        _ip("link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        _ip("link", "set", self._link, "master", bridge, "up")
        _ip("-n", self.name, "address", "add", f"{self.address}/24", "dev", "eth0")
        _ip("-n", self.name, "link", "set", "eth0", "up")
        _ip("-n", self.name, "link", "set", "lo", "up")

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], said: IO[bytes], without: Path | None = None
    ) -> subprocess.Popen[bytes]:
        """Run a command on this node; `said` gets all its output. without: a folder that is empty on this node."""
        covered = ["sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(without)] if without else []
        child = subprocess.Popen(
            ["ip", "netns", "exec", self.name, *covered, *command],
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._children.append(child)
        return child

    def processes(self) -> list[psutil.Process]:
        return list(_processes(self.name))

    def kill(self) -> None:
        """Kill all its processes at once and remove its address, as in a power failure."""
        # the kernel takes down a deleted namespace's end later, and this one only with it
        subprocess.run(["ip", "link", "delete", self._link], capture_output=True, check=False)
        _end(self.name)
        for child in self._children:
            child.wait(60)


def why_not() -> str | None:
    """Return why such a network is impossible here; None if it is possible."""
    if shutil.which("ip") is None:
        return "nodes are made with `ip` of iproute2, which is not installed"
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    try:
        network = Network()
    except subprocess.CalledProcessError as error:
        return f"no network namespaces here: {error.stderr.decode().strip()}"
    try:
        network.node()
    except subprocess.CalledProcessError as error:
        return f"no network namespaces here: {error.stderr.decode().strip()}"
    finally:
        network.close()
    return None


@contextmanager
def a_network() -> Iterator[Network]:
    network = Network()
    try:
        yield network
    finally:
        network.close()


def _ip(*words: str) -> bytes:
    return subprocess.run(["ip", *words], capture_output=True, check=True, timeout=60).stdout


def _namespaces() -> list[str]:
    said = _ip("-json", "netns", "list")
    return [str(row["name"]) for row in json.loads(said or b"[]")]


def _processes(namespace: str) -> Iterator[psutil.Process]:
    if not Path("/run/netns", namespace).exists():
        return
    for pid in _ip("netns", "pids", namespace).split():
        try:
            yield psutil.Process(int(pid))
        except psutil.NoSuchProcess:
            continue


def _end(namespace: str) -> None:
    while living := [process for process in _processes(namespace) if process.status() != psutil.STATUS_ZOMBIE]:
        for process in living:  # until none is left: one may have forked meanwhile
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(living, timeout=30)
    subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, check=False)


def _sweep() -> None:
    """Remove objects of processes that have ended."""
    for namespace in _namespaces():
        found = re.fullmatch(rf"{_PREFIX}(\d+)n\d+", namespace)
        if found and not psutil.pid_exists(int(found[1])):
            _end(namespace)
    for row in json.loads(_ip("-json", "link", "show", "type", "bridge") or b"[]"):
        found = re.fullmatch(rf"{_PREFIX}(\d+)b", str(row.get("ifname", "")))
        if found and not psutil.pid_exists(int(found[1])):
            _ip("link", "delete", found[0])
