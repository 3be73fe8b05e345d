"""The fake S3 as a process of its own: it keeps what it has answered, and fails as it is told."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from nadi.engines.opening import open_engines
from nadi.errors import UnavailableError
from nadi.runtime import REAL

ROOT = Path(__file__).resolve().parents[2]
KEYS = {"access_key_id": "a", "secret_access_key": "b", "region": "us-east-1"}


@contextlib.contextmanager
def running(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "tests.support.fake_s3", "--port", "0", "--folder", str(folder)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def set_faults(endpoint: str, **faults: object) -> None:
    request = urllib.request.Request(f"{endpoint}/-/faults", json.dumps(faults).encode(), method="PUT")
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 204


async def test_what_it_has_stored_survives_a_kill(tmp_path: Path) -> None:
    with running(tmp_path) as (process, endpoint):
        engine, registry = await open_engines("s3://bucket/p", REAL, endpoint=endpoint, **KEYS)
        for number in range(20):
            assert await engine.create(f"log/0/{number}", [b"%d" % number])
        version = await registry.put("servers/a", b"value")
        await engine.delete(["log/0/3"])
        process.send_signal(signal.SIGKILL)
        process.wait()
        (tmp_path / "half.tmp").write_bytes(b"x")
    with running(tmp_path) as (_, endpoint):
        engine, registry = await open_engines("s3://bucket/p", REAL, endpoint=endpoint, **KEYS)
        found: dict[str, int] = {}
        async for page in engine.listed(""):
            found |= page
        assert len(found) == 20
        assert await engine.get("log/0/17") == memoryview(b"17")
        assert await registry.compare_and_set("servers/a", b"next", version) is not None


async def test_it_is_told_to_fail(tmp_path: Path) -> None:
    with running(tmp_path) as (_, endpoint):
        engine, _ = await open_engines("s3://bucket/p", REAL, endpoint=endpoint, **KEYS)
        set_faults(endpoint, slow_down=1.0)
        with pytest.raises(UnavailableError, match="SlowDown"):
            await engine.create("a", [b"x"])
        set_faults(endpoint, slow_down=0.0, latency_ms={"put": [200, 201]})
        begun = REAL.monotonic()
        assert await engine.create("a", [b"x"])
        assert REAL.monotonic() - begun > 0.15
