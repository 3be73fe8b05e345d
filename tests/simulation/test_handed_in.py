"""Server code gets time, threads and randomness only through its `Runtime`: otherwise simulations wouldn't be
repeatable."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import nadi

SOURCE = Path(nadi.__file__).parent
MODULES = {"time", "uuid", "random", "secrets", "threading", "concurrent"}
CALLS = {"to_thread", "run_in_executor", "now", "utcnow", "today", "urandom"}
MAY = {  # exceptions: code behind an interface, or names in a folder
    "segmentstore/tier1/files.py": "the log's own thread, its id, and the disk's timing",
    "segmentstore/tier1/blob_files.py": "its pools, passed to the runtime; a buffer and a lock for their threads",
    "segmentstore/tier1/writer.py": "the thread that prepares the log's files",
    "segmentstore/tier1/disk.py": "the time in the names of quarantined files",
    "controller/state/history.py": "its pool, which it passes to the runtime",
}


def past_the_runtime(code: str) -> Iterator[str]:
    """Yield the code's uses of other sources, with their lines."""
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Import(names=names):
                uses = [name.name for name in names if name.name.partition(".")[0] in MODULES]
            case ast.ImportFrom(module=str(module), names=names) if module.partition(".")[0] in MODULES:
                uses = [f"{module}.{name.name}" for name in names if name.name not in ("UUID", "Executor")]
            case ast.Attribute(attr=name) if name in CALLS:
                uses = [name]
            case _:
                continue
        yield from (f"line {node.lineno}: {name}" for name in uses)


def test_server_code_uses_only_its_runtime() -> None:
    uses: dict[str, list[str]] = {}
    for path in sorted(
        file for part in ("segmentstore", "controller", "cluster") for file in (SOURCE / part).rglob("*.py")
    ):
        if path.parent.name != "repair" and (past := list(past_the_runtime(path.read_text()))):
            uses[path.relative_to(SOURCE).as_posix()] = past
    assert {name: past for name, past in uses.items() if name not in MAY} == {}
    assert set(MAY) <= set(uses), "these exceptions are obsolete"


@pytest.mark.parametrize(
    "code",
    [
        "import time",
        "import os, random",
        "from time import monotonic",
        "from uuid import uuid4",
        "import concurrent.futures",
        "await asyncio.to_thread(work)",
        "await loop.run_in_executor(None, work)",
        "datetime.now(UTC)",
    ],
)
def test_bypass_is_detected(code: str) -> None:
    assert list(past_the_runtime(code))


def test_types_are_allowed() -> None:
    assert not list(past_the_runtime("from uuid import UUID\nUUID(int=1)\nruntime.now_ms()"))
