"""What a command says before it waits for a server."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
from contextlib import suppress
from threading import Thread

import pytest

from tests.cli.test_streams import Shell
from tests.support.ports import free_port


@pytest.mark.parametrize(
    "command",
    ["scope list", "read home meters", "scrub --status", "sql 'table home.m'"],
)
def test_command_nobody_listens_one_line_says_so_and_one_ends_it(command: str) -> None:
    port = free_port()
    done = subprocess.run(
        [sys.executable, "-m", "nadi", *shlex.split(command)],
        env={**os.environ, "NADI_CONTROLLER": f"tcp://127.0.0.1:{port}", "NADI_PATIENCE": "1.5"},
        capture_output=True,
        text=True,
        timeout=90,
    )
    says = f"no server listens at 127.0.0.1:{port}: start one there (`nadi up`), or check the address"
    notice, error = done.stderr.splitlines()
    assert notice == f"{says}; calls are retried for up to 1.5 s"
    assert error.startswith("error: ")
    assert error.endswith(says)
    assert (done.returncode, done.stdout) == (1, "")


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("tcp://127.0.0.1:9090,127.0.0.1:9190", "names several servers"),
        ("tcp://127.0.0.1:9090,tcp://127.0.0.1:9190", "names several servers"),
        ("tcp://127.0.0.1:99999", "is not a controller address"),
        ("tcp://127.0.0.1:0", "is not a controller address"),
        ("http://127.0.0.1:9090", "is not a controller address"),
    ],
)
def test_what_is_no_address_is_told_at_once(address: str, says: str) -> None:
    assert says in Shell(address).run("scope", "list", code=1).stderr


def test_what_others_log_is_not_printed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def answer() -> None:
            with suppress(OSError):
                while True:
                    with server.accept()[0] as connection:
                        connection.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")

        Thread(target=answer, daemon=True).start()
        command = [sys.executable, "-m", "nadi", "scope", "list", "--patience", "2"]
        done = subprocess.run(
            [*command, "--controller", f"tls://127.0.0.1:{port}"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    assert done.returncode == 1
    notice, error = done.stderr.splitlines()
    assert notice.startswith(f"the controller at 127.0.0.1:{port} can't be reached: ")
    assert error.startswith("error: listScopes ")
