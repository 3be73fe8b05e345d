"""The official `pravega` package against nadi: it writes, and it, nadi's client and Spark read the same."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import nadi

SCRIPT = Path(__file__).with_name("official_python.py")
EXPECTED = sorted([f"event {n}" for n in range(200)] + [f"kept {n}" for n in range(50)])


@pytest.mark.compatibility
def test_official_client(tmp_path: Path) -> None:
    if importlib.util.find_spec("pravega_client") is None:
        pytest.skip("the official package `pravega` has no wheel for this Python")
    with nadi.embedded(tmp_path) as server:
        run = subprocess.run(
            [sys.executable, str(SCRIPT), server.controller_uri],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        assert sorted(run.stdout.splitlines()) == EXPECTED
        with nadi.StreamManager(server.controller_uri) as manager:
            tail = manager.stream_info("compatibility", "official").tail
            events = [e.data.decode() for e in manager.read_events("compatibility", "official", end=tail)]
    assert sorted(events) == EXPECTED
    by_key: dict[int, list[int]] = defaultdict(list)
    for event in events:
        kind, number = event.split()
        if kind == "event":
            by_key[int(number) % 7].append(int(number))
    assert all(numbers == sorted(numbers) for numbers in by_key.values()), "order per routing key"
