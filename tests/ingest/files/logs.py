"""A program that logs, rotates its files, and says what it has written; and what came of it in the stream."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import nadi


class Logging:
    """Writes numbered lines to `name`.log in a folder, and rotates by renaming or by copying and truncating."""

    def __init__(self, folder: Path, name: str, chance: random.Random, *, copies: bool) -> None:
        self.path, self.name, self.chance, self._copies = folder / f"{name}.log", name, chance, copies
        self.written = 0
        self.rotations = 0
        self._file = self.path.open("ab", buffering=0)

    def write(self, count: int = 1) -> None:
        for _ in range(count):
            line = f"{self.written:07d} {self.name} {self.rotations} {'x' * self.chance.randrange(60)}\n".encode()
            self.written += 1
            at = self.chance.randrange(len(line))
            for part in (line[:at], line[at:]) if self.chance.random() < 0.1 else (line,):
                self._file.write(part)

    def rotate(self) -> None:
        """As logrotate does: the older ones get higher numbers, and there are compressed ones."""
        self.rotations += 1
        older = [self.path.with_suffix(f".log.{number}") for number in range(1, 500)]
        (self.path.parent / f"{self.name}.log.{self.rotations}.gz").write_bytes(b"not lines")
        for newer, one in reversed(list(pairwise(older))):
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
    found: dict[str, list[int]] = defaultdict(list)
    for number, name, _ in _lines(manager, stream):
        found[name].append(number)
    return found


def check_once_and_in_order(
    manager: nadi.StreamManager, stream: str, written: dict[str, int], key: Callable[[int], object] = lambda number: 0
) -> None:
    """Each line that each name has written, once, and those of one file and one key in order."""
    by_name, by_file = defaultdict(list), defaultdict(list)
    for number, name, rotation in _lines(manager, stream):
        by_name[name].append(number)
        by_file[name, rotation, key(number)].append(number)
    for name, count in written.items():
        times = Counter(by_name[name])
        assert [n for n in range(count) if not times[n]] == [], f"lost of {name}"
        assert [n for n, many in times.items() if many > 1] == [], f"doubled of {name}"
    for numbers in by_file.values():
        assert numbers == sorted(numbers)


def _lines(manager: nadi.StreamManager, stream: str) -> Iterator[tuple[int, str, str]]:
    for event in manager.read_events("in", stream, end=manager.stream_info("in", stream).tail):
        number, name, rotation, *_ = event.data.decode().split(" ")
        yield int(number), name, rotation
