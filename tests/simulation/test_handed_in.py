"""Nothing of a server asks the time, waits in a thread or takes a chance past its `Runtime`: else no simulation of it
would repeat itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import nadi

SOURCE = Path(nadi.__file__).parent
MODULES = {"time", "uuid", "random", "secrets", "threading", "concurrent"}
CALLS = {"to_thread", "run_in_executor", "now", "utcnow", "today", "urandom"}
MAY = {  # what stands behind a seam, or names things in a folder
    "segmentstore/tier1/files.py": "the log's own thread, its id, and how long its disk takes",
    "segmentstore/tier1/blob_files.py": "its pools, which it hands to the runtime; a buffer and a lock for their threads",
    "segmentstore/tier1/writer.py": "the thread that makes the log's files ready",
    "segmentstore/tier1/disk.py": "the time in the name of what is set aside in a folder",
    "controller/state/history.py": "its pool, which it hands to the runtime",
}


def past_the_runtime(code: str) -> Iterator[str]:
    """What the code takes from elsewhere, and in which line."""
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Import(names=names):
                found = [name.name for name in names if name.name.partition(".")[0] in MODULES]
            case ast.ImportFrom(module=str(module), names=names) if module.partition(".")[0] in MODULES:
                found = [f"{module}.{name.name}" for name in names if name.name not in ("UUID", "Executor")]
            case ast.Attribute(attr=name) if name in CALLS:
                found = [name]
            case _:
                continue
        yield from (f"line {node.lineno}: {name}" for name in found)


def test_a_server_takes_all_that_is_not_its_own_from_its_runtime() -> None:
    found: dict[str, list[str]] = {}
    for path in sorted(
        file for part in ("segmentstore", "controller", "cluster") for file in (SOURCE / part).rglob("*.py")
    ):
        if path.parent.name != "repair" and (past := list(past_the_runtime(path.read_text()))):
            found[path.relative_to(SOURCE).as_posix()] = past
    assert {name: past for name, past in found.items() if name not in MAY} == {}
    assert set(MAY) <= set(found), "these need no leave any more"


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
def test_it_is_told(code: str) -> None:
    assert list(past_the_runtime(code))


def test_types_are_nobodys() -> None:
    assert not list(past_the_runtime("from uuid import UUID\nUUID(int=1)\nruntime.now_ms()"))
