"""Resources used by a process on Linux, such as a server: processor time, memory, and bytes written to disk."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_POLL_S = 0.02  # between two polls of the files of a log; filling one takes much longer
QUIET_BYTES = 1 << 20  # written by a server that has nothing to do: its state, now and then


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_memory_bytes(pid: int) -> int:
    """Return the maximum memory that the process had at any time."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def disk_bytes(pid: int) -> int:
    """Return the bytes that the process has written to disk: whole pages, each time one is written, without those of
    files deleted or truncated before. The file system's own writes aren't included."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    figures = {name: int(value) for name, value in (line.split(": ") for line in lines)}
    return figures["write_bytes"] - figures["cancelled_write_bytes"]


def folder_bytes(folder: Path) -> int:
    """Return the bytes of the files in a folder, recursively; 0 if it doesn't exist. Files may change meanwhile."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total


def settle(pid: int, tier2: Path, least_bytes: int, *, quiet_s: float = 3.0, timeout_s: float = 180.0) -> None:
    """Wait until tier 2 has all stored bytes, and the server has hardly written for a while: all data is tiered and
    compacted. TimeoutError otherwise."""
    end = time.monotonic() + timeout_s
    before, since = disk_bytes(pid), time.monotonic()
    while time.monotonic() < end:
        time.sleep(0.2)
        now = disk_bytes(pid)
        if now - before > QUIET_BYTES or folder_bytes(tier2) < least_bytes:
            before, since = now, time.monotonic()
        elif time.monotonic() - since > quiet_s:
            return
    raise TimeoutError(f"the server still writes after {timeout_s:.0f} s, or holds less than {least_bytes:,} bytes")


class FilledFiles:
    """Counts bytes of new files in a log's folder, which are filled with zeros before use.

    Reused files were filled before, and keep their inode under their new name.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sizes: dict[int, int] = {}
        self._replaced_bytes = 0
        self._poll()
        self._before = self._sum()

    def _poll(self) -> None:
        for path in self._folder.glob("*.*"):
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            known = self._sizes.get(status.st_ino, 0)
            if status.st_size < known:  # another file, which was given the number of one that is gone
                self._replaced_bytes += known
            self._sizes[status.st_ino] = status.st_size

    def _sum(self) -> int:
        return sum(self._sizes.values()) + self._replaced_bytes

    @property
    def bytes(self) -> int:
        """The bytes since the start."""
        self._poll()
        return self._sum() - self._before

    @classmethod
    @contextmanager
    def watched(cls, folder: Path) -> Iterator[FilledFiles]:
        """Poll in a thread, as a file may come and go."""
        found, over = cls(folder), threading.Event()

        def watch() -> None:
            while not over.wait(_POLL_S):
                found._poll()

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield found
        finally:
            over.set()
            thread.join()
