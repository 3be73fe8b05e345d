"""Damage of all kinds to a folder's files: chunks, log, separate files, snapshots, the store's identity."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

BLOCK = 4096
KINDS = ("log", "run", "chunk", "snapshot", "store", "epoch", "rest")
_WEIGHTS = (6, 4, 5, 8, 1, 1, 1)


@dataclass(frozen=True, slots=True)
class Damage:
    """One damage: its kind, file, and position."""

    kind: str
    how: str
    file: str
    at: int

    def __str__(self) -> str:
        return f"{self.how} {self.file} at {self.at:,}"


def kind_of(file: str) -> str:
    """Return the part of a folder that a file belongs to.

    >>> kind_of("container-0/log/log-0000000000000001.nadi"), kind_of("tier2/container-0/0000001/0-a"), kind_of("lock")
    ('log', 'chunk', 'rest')
    """
    if "/log/log-" in file:
        return "log"
    if "/log/runs/" in file:
        return "run"
    if file.startswith("tier2/"):
        if file.startswith("tier2/.nadi/"):
            return "rest"
        if file == "tier2/cluster.json":
            return "store"
        return "snapshot" if file.startswith(("tier2/snapshots/", "tier2/containers/")) else "chunk"
    if file == "store.json":
        return "store"
    return "epoch" if file.endswith("epoch") else "rest"


def inflict(folder: Path, chance: random.Random, only: str = "") -> Damage:
    """Damage one file of the folder (two, if they are swapped)."""
    files: dict[str, list[Path]] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        files.setdefault(kind_of(str(path.relative_to(folder))), []).append(path)
    while True:
        kind = only or chance.choices(KINDS, _WEIGHTS)[0]
        if files.get(kind):
            break
    path = chance.choice(files[kind])
    how = chance.choices(list(_WAYS), [6, 2, 3, 2, 2, 2, 1, 1])[0]
    at = chance.randrange(max(1, _used_bytes(path)))
    _WAYS[how](path, at, chance, files[kind])
    return Damage(kind, how, str(path.relative_to(folder)), at)


def _used_bytes(path: Path) -> int:
    """Return the size without the zeros at the end: log files are full of them before use."""
    data = path.read_bytes()
    return len(data.rstrip(b"\0")) or len(data)


def _patch(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as stream:
        stream.seek(at)
        stream.write(data)


def _flip(path: Path, at: int, chance: random.Random, _: list[Path]) -> None:
    data = path.read_bytes()[at : at + 1]
    if data:
        _patch(path, at, bytes([data[0] ^ (1 << chance.randrange(8))]))


def _flip_many(path: Path, at: int, chance: random.Random, others: list[Path]) -> None:
    used = max(1, _used_bytes(path))
    for _ in range(20):
        _flip(path, chance.randrange(used), chance, others)


def _zero(path: Path, at: int, chance: random.Random, _: list[Path]) -> None:
    at -= at % BLOCK
    _patch(path, at, bytes(min(BLOCK, path.stat().st_size - at)))


def _garbage(path: Path, at: int, chance: random.Random, _: list[Path]) -> None:
    at -= at % BLOCK
    _patch(path, at, chance.randbytes(min(BLOCK, path.stat().st_size - at)))


def _truncate(path: Path, at: int, chance: random.Random, _: list[Path]) -> None:
    with path.open("r+b") as stream:
        stream.truncate(at)


def _remove(path: Path, at: int, chance: random.Random, _: list[Path]) -> None:
    path.unlink()


def _misplace(path: Path, at: int, chance: random.Random, _: list[Path]) -> None:
    """Write a block of the file over another one."""
    data = path.read_bytes()
    at -= at % BLOCK
    source = chance.randrange(max(1, _used_bytes(path))) // BLOCK * BLOCK
    _patch(path, at, data[source : source + BLOCK][: max(0, len(data) - at)])


def _swap(path: Path, at: int, chance: random.Random, others: list[Path]) -> None:
    """Swap two files of a kind."""
    other = chance.choice(others)
    if other != path:
        aside = path.with_name(path.name + ".swap")
        path.rename(aside)
        other.rename(path)
        aside.rename(other)


_WAYS: dict[str, Callable[[Path, int, random.Random, list[Path]], None]] = {
    "flip": _flip,
    "flip many": _flip_many,
    "zero": _zero,
    "garbage": _garbage,
    "truncate": _truncate,
    "remove": _remove,
    "misplace": _misplace,
    "swap": _swap,
}
