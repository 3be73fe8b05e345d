"""Ports of `nadi up`: defaults that follow --port, and the error for an occupied port."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from nadi.client import StreamManager
from tests.support.ports import free_port


@contextmanager
def up(*options: object) -> Iterator[dict[str, str]]:
    """Run a server process; yield its printed addresses by name."""
    command = [sys.executable, "-m", "nadi", "up", *map(str, options)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        lines = list(iter(process.stdout.readline, "Press Ctrl-C to stop.\n"))
        yield dict(re.findall(r"^  (controller|REST|segment store|workers) +(.*)$", "".join(lines), re.M))
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def taken_port(stack: ExitStack, port: int = 0) -> int:
    return int(stack.enter_context(socket.create_server(("127.0.0.1", port))).getsockname()[1])


def test_up_with_port_uses_the_next_free_ports(tmp_path: Path) -> None:
    port = free_port(count=8)
    with ExitStack() as stack:
        taken_port(stack, port + 1)
        first = stack.enter_context(up("--data", tmp_path / "one", "--port", port))
        assert first == {
            "controller": f"tcp://127.0.0.1:{port}",
            "REST": f"http://127.0.0.1:{port + 2}",
            "segment store": f"127.0.0.1:{port + 3}",
        }
        other = stack.enter_context(up("--data", tmp_path / "other", "--port", port + 4, "--rest-port", port + 5))
        assert other["REST"] == f"http://127.0.0.1:{port + 5}"
        assert other["segment store"] == f"127.0.0.1:{port + 6}"
        for addresses in (first, other):
            with StreamManager(addresses["controller"]) as manager:
                manager.create_scope("sc")
                manager.create_stream("sc", "st")
                with manager.create_writer("sc", "st") as writer:
                    writer.write_event(b"12 Wh")


def test_up_with_workers_and_port_uses_consecutive_ports(tmp_path: Path) -> None:
    port = free_port(count=5)
    with up("--data", tmp_path, "--port", port, "--workers", 1) as addresses:
        assert addresses["REST"] == f"http://127.0.0.1:{port + 1}"
        assert addresses["workers"].startswith(f"REST ports {port + 2} to {port + 2}")


@pytest.mark.parametrize("option", ["--port", "--rest-port", "--store-port"])
def test_up_with_an_occupied_port_names_the_option(option: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        port = taken_port(stack)
        others = [] if option == "--port" else ["--port", "0"]
        done = subprocess.run(
            [sys.executable, "-m", "nadi", "up", "--data", str(tmp_path), *others, option, str(port)],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert f"127.0.0.1:{port}" in done.stderr
    assert option in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.returncode == 1
