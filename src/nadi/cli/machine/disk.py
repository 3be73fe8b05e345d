"""The disk under a data folder: its room, its kind, and how long it takes to make a write durable."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from nadi.cli.machine.finding import Finding, note, ok, wrong
from nadi.limits import KIB, MIB

_GIB = 1024 * MIB
_LEAST_BYTES, _LOW_SHARE = _GIB, 0.1
_SYNCED_S, _MOST_SYNCS = 2.0, 100_000
_WRITE_BYTES = 4 * KIB
_FILE_BYTES = 16 * MIB
_SLOW_MS, _STALL_MS = 10.0, 100.0
_IN_MEMORY = {"tmpfs", "ramfs"}
_OVER_A_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs"}
_MOUNTS = Path("/proc/self/mountinfo")


@dataclass(frozen=True, slots=True)
class SyncTimes:
    """How long a small write and its fdatasync took, in ms."""

    p50_ms: float
    p99_ms: float
    syncs: int


def looked_at(data: Path) -> list[Finding]:
    """What there is to say of the disk of a folder, which needn't be there yet."""
    folder = existing(data)
    looks: tuple[Callable[[Path], Finding], ...] = partial(_access, data), _room, _kind, _speed
    found, failed = list[Finding](), None
    for look in looks:
        try:
            found.append(look(folder))
        except OSError as error:
            failed = failed or error
    if failed is not None:
        is_full = failed.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = "make room" if is_full else "make it writable for this user"
        what = f"{folder} can't be written: {failed.strerror or failed}"
        found.append(wrong("data folder", what, f"{advice}, or give another folder with --data"))
    return found


def existing(data: Path) -> Path:
    """The folder, or the nearest above it that is there."""
    folder = data.resolve()
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    return folder


def sync_times(folder: Path, seconds: float = _SYNCED_S) -> SyncTimes:
    """Write and sync one small block after the other, as a server's log does, in a file that is removed then."""
    sync = getattr(os, "fdatasync", os.fsync)  # macOS has only the other
    took: list[float] = []
    with tempfile.TemporaryFile(dir=folder) as file:
        fd, block = file.fileno(), os.urandom(_WRITE_BYTES)
        file.write(bytes(_FILE_BYTES))
        file.flush()
        os.fsync(fd)
        until = time.perf_counter() + seconds
        while (began := time.perf_counter()) < until and len(took) < _MOST_SYNCS:
            os.pwrite(fd, block, len(took) * _WRITE_BYTES % _FILE_BYTES)
            sync(fd)
            took.append(time.perf_counter() - began)
    took.sort()
    return SyncTimes(took[len(took) // 2] * 1000, took[int(len(took) * 0.99)] * 1000, len(took))


def kind_of(folder: Path, mounts: str) -> str:
    """The kind of file system that a folder is in, of a table of mounts; "" if none is.

    >>> kind_of(Path("/data/a"), "1 0 8:1 / / rw - ext4 x rw\\n2 1 8:2 / /data rw shared:1 - xfs y rw\\n")
    'xfs'
    """
    found, longest = "", -1
    for line in mounts.splitlines():
        mount, dash, system = line.partition(" - ")
        if not dash:
            continue
        at = Path(mount.split()[4].replace("\\040", " "))
        if folder.is_relative_to(at) and len(at.parts) >= longest:
            found, longest = system.split()[0], len(at.parts)
    return found


def _access(data: Path, folder: Path) -> Finding:
    if data.exists() and not data.is_dir():
        return wrong("data folder", f"{data} is not a folder", "give another one with --data")
    with tempfile.TemporaryFile(dir=folder):
        pass
    there = "is there" if folder == data.resolve() else f"will be created in {folder}"
    return ok("data folder", f"{data} {there}")


def _room(folder: Path) -> Finding:
    total, _, free = shutil.disk_usage(folder)
    found = f"{free / _GIB:,.1f} of {total / _GIB:,.1f} GiB are free"
    if free < _LEAST_BYTES:
        return wrong("free room", found, "make room: a server needs half a GiB to start with, and writers stop without")
    if free < total * _LOW_SHARE:
        return note("free room", found, "make room before it is full: see retention, docs/retention.md")
    return ok("free room", found)


def is_memory(folder: Path) -> bool:
    return _kind_here(folder) in _IN_MEMORY


def _kind_here(folder: Path) -> str:
    try:
        return kind_of(folder.resolve(), _MOUNTS.read_text())
    except OSError:
        return ""


def _kind(folder: Path) -> Finding:
    kind = _kind_here(folder)
    if kind in _IN_MEMORY:
        return wrong("file system", f"{kind}, which is memory", "nothing in it outlives a restart: use a disk")
    if kind in _OVER_A_NETWORK or kind.startswith("fuse"):
        return note("file system", kind, "its server must keep what was synced; a disk of this machine is faster")
    if kind == "overlay":
        return note("file system", kind, "a container's own layer goes with the container: give it a volume")
    return ok("file system", kind or "unknown")


def _speed(folder: Path) -> Finding:
    took = sync_times(folder)
    found = f"p50 {took.p50_ms:.2f} ms, p99 {took.p99_ms:.2f} ms, of {took.syncs:,} writes of {_WRITE_BYTES // KIB} KiB"
    if took.p50_ms > _SLOW_MS:
        return note("fdatasync", found, "each acknowledgement waits for one: a solid-state disk takes below 1 ms")
    if took.p99_ms > _STALL_MS:
        return note("fdatasync", found, "some acknowledgements will take that long: look for what else uses the disk")
    return ok("fdatasync", found)
