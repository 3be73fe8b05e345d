"""Connections that say nothing keep nobody from the controller: they make room, and those that have asked stay."""

from __future__ import annotations

import fcntl
import os
import socket
import ssl
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

import nadi
from nadi.client import StreamManager
from nadi.config import ServerSecurity
from nadi.controller.grpc import crowd
from nadi.limits import RPC_CROWDED_TIMES
from nadi.standalone import EmbeddedServer
from tests.access.support import certificate
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(300)
MOST = 40
CROWDED = round(RPC_CROWDED_TIMES * MOST)
# without room made, silent ones would have their places for longer than a test lasts
LIMITS = {"NADI_LIMITS": f"rpc_connections_max={MOST},tls_handshake_s=900,rpc_keepalive_s=900,rpc_silent_s=0.5"}
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
PING = bytes([0, 0, 8, 6, 0, 0, 0, 0, 0]) + b"12345678"


def small_call() -> bytes:
    """A client's first one, as short as those of clients in Go or Rust, which compress the names."""
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


def connected(server: EmbeddedServer, count: int, said: bytes) -> list[socket.socket]:
    port = int(server.controller_uri.rpartition(":")[2])
    made = []
    for _ in range(count):
        made.append(socket.create_connection(("127.0.0.1", port), 60))
        made[-1].sendall(said)
        made[-1].setblocking(False)
    return made


def has_ended(one: socket.socket) -> bool:
    try:
        while one.recv(1000):
            pass
    except (BlockingIOError, ssl.SSLWantReadError):
        return False
    except (ConnectionError, ssl.SSLError):
        pass
    return True


def left(silent: list[socket.socket]) -> int:
    return sum(not has_ended(one) for one in silent)


def is_served(one: socket.socket) -> bool:
    """Whether the server's settings have come."""
    try:
        return bool(one.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False


@pytest.mark.parametrize("said", [b"", HELLO], ids=["nothing", "a hello"])
def test_silent_ones_make_room(said: bytes, tmp_path: Path) -> None:
    with nadi.embedded(tmp_path, environment=LIMITS) as server, ExitStack() as stack:
        silent = [stack.enter_context(one) for one in connected(server, 3 * MOST, said)]
        with StreamManager(server.controller_uri) as manager:
            assert manager.create_scope("home")
        until(lambda: left(silent) < CROWDED)


def test_those_that_have_asked_something_stay(tmp_path: Path) -> None:
    with nadi.embedded(tmp_path, environment=LIMITS) as server, ExitStack() as stack:
        asking = [stack.enter_context(one) for one in connected(server, 5, HELLO + 30 * PING)]
        until(lambda: all(map(is_served, asking)))  # they have places, whoever comes
        silent = [stack.enter_context(one) for one in connected(server, MOST - 10, HELLO)]
        until(lambda: left(silent) + len(asking) < CROWDED)
        assert not any(map(has_ended, asking))


def test_those_whose_first_call_takes_long_stay(tmp_path: Path) -> None:
    said = HELLO + small_call()  # without its message, it waits
    assert 180 < len(said) < 220
    with nadi.embedded(tmp_path, environment=LIMITS) as server, ExitStack() as stack:
        asking = [stack.enter_context(one) for one in connected(server, 5, said)]
        until(lambda: all(map(is_served, asking)))
        silent = [stack.enter_context(one) for one in connected(server, MOST - 10, HELLO)]
        until(lambda: left(silent) + len(asking) < CROWDED)
        assert not any(map(has_ended, asking))


def test_where_there_is_room_silent_ones_stay(tmp_path: Path) -> None:
    with nadi.embedded(tmp_path, environment=LIMITS) as server, ExitStack() as stack:
        few = [stack.enter_context(one) for one in connected(server, MOST // 2, HELLO)]
        many = [stack.enter_context(one) for one in connected(server, MOST // 5, b"")]
        with pytest.raises(AssertionError, match="never came to hold"):
            until(lambda: any(map(has_ended, [*few, *many])), 3.0)


def test_files_of_this_process_keep_their_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state's file has such locks, by which a program that copies it knows that it is in use."""
    monkeypatch.setattr(crowd, "RPC_CONNECTIONS_MAX", 1)
    with (tmp_path / "lock").open("wb") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        number = os.fstat(file.fileno()).st_ino
        assert is_locked(number)
        assert crowd.Crowd(1, has_tls=False).make_room() == []
        assert is_locked(number)


def is_locked(inode: int) -> bool:
    return any(f":{inode} " in line for line in Path("/proc/locks").read_text().splitlines())


def test_with_tls_one_that_has_only_shaken_hands_makes_room(tmp_path: Path) -> None:
    made = certificate(tmp_path / "tls")
    security = ServerSecurity(tls_certificate=str(made.certificate), tls_key=str(made.key))
    context = ssl.create_default_context(cafile=made.authority)
    context.set_alpn_protocols(["h2"])
    context.check_hostname = False
    with nadi.embedded(tmp_path / "data", environment=LIMITS, security=security) as server, ExitStack() as stack:
        port = int(server.controller_uri.rpartition(":")[2])
        silent: list[socket.socket] = []
        while len(silent) < MOST - 2:
            with suppress(ConnectionError, ssl.SSLError):  # one that was so slow that it had to go already
                one = context.wrap_socket(socket.create_connection(("127.0.0.1", port), 60))
                one.sendall(HELLO)
                one.setblocking(False)
                silent.append(stack.enter_context(one))
        until(lambda: left(silent) < CROWDED)
        with StreamManager(server.controller_uri, trust_store=made.authority) as manager:
            assert manager.create_scope("home")
