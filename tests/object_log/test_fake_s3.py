"""The fake S3, in a separate process, keeps acknowledged objects across a kill."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from nadi.object_log.opening import open_engines
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


async def test_stored_objects_survive_a_kill(tmp_path: Path) -> None:
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
        sizes: dict[str, int] = {}
        async for page in engine.listed(""):
            sizes |= page
        assert len(sizes) == 20
        assert await engine.get("log/0/17") == memoryview(b"17")
        assert await registry.compare_and_set("servers/a", b"next", version) is not None
