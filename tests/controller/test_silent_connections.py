"""Connections that ask nothing keep nobody from the controller for long: gRPC ends them, and those with calls stay."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

import nadi
from nadi.client import StreamManager
from nadi.standalone import EmbeddedServer
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(300)
MOST = 40
LIMITS = {"NADI_LIMITS": f"rpc_connections_max={MOST},rpc_idle_s=1,tls_handshake_s=1,rpc_keepalive_s=900"}
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


def call() -> bytes:
    """The head of a call, which then waits for its message."""
    fields = {
        ":path": "/io.pravega.controller.stream.api.grpc.v1.ControllerService/pingTransaction",
        ":authority": "localhost:9090",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    block = b"\x83\x86" + b"".join(  # POST, http; then literals
        b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in fields.items()
    )
    return len(block).to_bytes(3, "big") + bytes([1, 4, 0, 0, 0, 1]) + block


def connected(server: EmbeddedServer, stack: ExitStack, count: int, said: bytes) -> list[socket.socket]:
    port = int(server.controller_uri.rpartition(":")[2])
    made = []
    for _ in range(count):
        made.append(stack.enter_context(socket.create_connection(("127.0.0.1", port), 60)))
        made[-1].sendall(said)
        made[-1].setblocking(False)
    return made


def has_ended(one: socket.socket) -> bool:
    try:
        while one.recv(1000):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    return True


@pytest.mark.parametrize("said", [b"", HELLO], ids=["nothing", "a hello"])
def test_silent_ones_make_room(said: bytes, tmp_path: Path) -> None:
    with nadi.embedded(tmp_path, environment=LIMITS) as server, ExitStack() as stack:
        silent = connected(server, stack, 3 * MOST, said)
        with StreamManager(server.controller_uri) as manager:
            assert manager.create_scope("home")
        until(lambda: all(map(has_ended, silent)))


def test_those_with_a_call_under_way_stay(tmp_path: Path) -> None:
    with nadi.embedded(tmp_path, environment=LIMITS) as server, ExitStack() as stack:
        asking = connected(server, stack, 5, HELLO + call())
        silent = connected(server, stack, 5, HELLO)
        until(lambda: all(map(has_ended, silent)))
        assert not any(map(has_ended, asking))
