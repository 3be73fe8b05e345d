"""A program that logs, rotates its files, and says what it has written; and what came of it in the stream."""

from __future__ import annotations

import os
import random
import shutil
from collections import defaultdict
from pathlib import Path

import nadi


class Logging:
    """Writes numbered lines to `name`.log in a folder, and rotates by renaming or by copying and truncating."""

    def __init__(self, folder: Path, name: str, chance: random.Random, *, copies: bool) -> None:
        self.path, self.name, self._chance, self._copies = folder / f"{name}.log", name, chance, copies
        self.written = 0
        self.rotations = 0
        self._file = self.path.open("ab", buffering=0)

    def write(self, count: int = 1) -> None:
        for _ in range(count):
            line = f"{self.written:07d} {self.name} {'x' * self._chance.randrange(60)}\n".encode()
            self.written += 1
            at = self._chance.randrange(len(line))
            for part in (line[:at], line[at:]) if self._chance.random() < 0.1 else (line,):
                self._file.write(part)

    def rotate(self) -> None:
        """As logrotate does: the older ones get higher numbers, and the oldest are compressed."""
        self.rotations += 1
        older = [self.path.with_suffix(f".log.{number}") for number in range(1, 6)]
        if older[-1].exists():
            older[-1].rename(self.path.with_suffix(f".log.{5 + self.rotations}.gz"))
        for newer, one in reversed(list(zip(older, older[1:], strict=False))):
            if newer.exists():
                newer.rename(one)
        if self._copies:
            shutil.copyfile(self.path, older[0])
            os.truncate(self.path, 0)
        else:
            self.path.rename(older[0])
            self._file.close()
            self._file = self.path.open("ab", buffering=0)

    def close(self) -> None:
        self._file.close()


def stored(manager: nadi.StreamManager, stream: str) -> dict[str, list[int]]:
    """The numbers of each name's lines, in the stream's order."""
    tail = manager.stream_info("in", stream).tail
    found: dict[str, list[int]] = defaultdict(list)
    for event in manager.read_events("in", stream, end=tail):
        number, name, *_ = event.data.decode().split(" ")
        found[name].append(int(number))
    return found
