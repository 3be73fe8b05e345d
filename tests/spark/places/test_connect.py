"""A Spark Connect server, and a program that is only its client."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import nadi
from tests.spark.scaled import check_once_in_order
from tests.support.ports import free_port

from .cluster import SPARK, answers, source_path, wait_for
from .guide import command, examples

CLIENT = Path(__file__).with_name("connect_client.py")
THIN_CLIENT = Path(__file__).with_name("thin_client.py")
NEEDED = ["grpc", "grpc_status", "google.rpc", "pandas", "zstandard"]


def is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package that it would be in
        return False


pytestmark = [
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not all(map(is_there, NEEDED)), reason="Spark Connect's client needs pyspark[connect]"),
]


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[str]:
    """The address of a Connect server started by the guide's command."""
    port = free_port()
    binding = "spark.connect.grpc.binding"
    (tmp_path / "spark-defaults.conf").write_text(f"{binding}.address 127.0.0.1\n{binding}.port {port}\n")
    start = command(
        "start-connect-server.sh", {"spark://spark.example:7077": '"local[2]"', "/opt/nadi/bin/python": sys.executable}
    )
    folders = dict.fromkeys(["SPARK_CONF_DIR", "SPARK_LOG_DIR", "SPARK_PID_DIR"], str(tmp_path))
    own = {**folders, "SPARK_HOME": str(SPARK), "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": source_path()}
    log = tmp_path / "connect.log"
    with log.open("wb") as said:
        server = subprocess.Popen(
            ["bash", "-ec", start], env=os.environ | own, stdout=said, stderr=said, start_new_session=True, cwd=tmp_path
        )
    try:
        wait_for("Spark Connect", lambda: answers("127.0.0.1", port), log.read_text)
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[nadi.standalone.EmbeddedServer]:
    with nadi.embedded(tmp_path / "data") as server:
        yield server


@pytest.fixture
def manager(server: nadi.standalone.EmbeddedServer) -> Iterator[nadi.StreamManager]:
    with nadi.StreamManager(server.controller_uri) as manager:
        manager.create_scope("home")
        yield manager


def run(*words: str, path: str | None = None) -> list[str]:
    done = subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": source_path() if path is None else path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_example_of_the_guide(
    remote: str, server: nadi.standalone.EmbeddedServer, manager: nadi.StreamManager
) -> None:
    manager.create_stream("home", "meters", 2)
    with manager.create_writer("home", "meters") as writer:
        for number in range(100):
            writer.write_event(b"%d" % number, str(number))
    (example,) = examples("python", ".remote(")
    for printed, here in (("sc://spark.example:15002", remote), ("tcp://nadi.example:9090", server.controller_uri)):
        assert printed in example
        example = example.replace(printed, here)
    assert run("-c", f"{example}\nprint(rows.count())") == ["100"]


def test_spark_connect_client_program(
    remote: str, server: nadi.standalone.EmbeddedServer, manager: nadi.StreamManager, tmp_path: Path
) -> None:
    said = run(str(CLIENT), remote, server.controller_uri, str(tmp_path))
    batch, streaming, each, forms, executors = said
    assert [batch, streaming, each] == ["batch 200", "streaming 200", "foreachBatch 200"]
    assert forms == "forms 4"
    assert "Spark Connect" in executors
    for stream in ("written", "copied", "each"):
        end = manager.cuts("home", stream).tail()
        check_once_in_order((event.data for event in manager.read_events("home", stream, end=end)), 200)


def client_only(folder: Path) -> str:
    """Return a path for `python -S` with the packages of this Python, without nadi, and of pyspark only what
    `pyspark-client` has."""
    (folder / "pyspark").mkdir(parents=True)
    for package in SPARK.parent.iterdir():
        if package.suffix != ".pth" and not package.name.startswith(("pyspark", "nadi", "py4j", "__")):
            (folder / package.name).symlink_to(package)
    for part in SPARK.iterdir():
        if part.name not in ("bin", "core", "data", "examples", "jars", "licenses", "python", "sbin"):
            (folder / "pyspark" / part.name).symlink_to(part)
    return str(folder)


def test_client_without_spark_and_nadi_reads_and_writes(
    remote: str, server: nadi.standalone.EmbeddedServer, manager: nadi.StreamManager, tmp_path: Path
) -> None:
    for stream in ("written", "copied"):
        manager.create_stream("home", stream, 2)
    path = client_only(tmp_path / "client")
    said = run("-S", str(THIN_CLIENT), remote, server.controller_uri, str(tmp_path), path=path)
    assert said == ["batch 200", "streaming 200"]
    for stream in ("written", "copied"):
        end = manager.cuts("home", stream).tail()
        check_once_in_order((event.data for event in manager.read_events("home", stream, end=end)), 200)
