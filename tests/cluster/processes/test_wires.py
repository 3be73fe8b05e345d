"""What a wire does to whoever connects."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from tests.cluster.processes.wires import Address, Wire, Wires
from tests.support.ports import free_port
from tests.support.waiting import until

_HEARD_S = 60.0
_SILENT_S = 0.2


@pytest.fixture
def wires() -> Iterator[Wires]:
    with closing(Wires()) as found:
        yield found


@contextmanager
def listening(port: int, answer: bytes) -> Iterator[None]:
    """What answers so to all that it is sent."""
    with socket.create_server(("127.0.0.1", port)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:  # all is over
                    return
                with connection:
                    if connection.recv(1):
                        connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def asked(address: Address, timeout_s: float = _HEARD_S) -> bytes:
    with socket.create_connection(address, timeout=timeout_s) as connection:
        connection.sendall(b"?")
        return connection.recv(1)


def refuses(wire: Wire) -> bool:
    try:
        asked(wire.address)
    except ConnectionRefusedError:
        return True
    except ConnectionError:  # let in, and thrown out
        pass
    return False


def until_accepted(wire: Wire) -> bytes:
    for _ in range(3000):
        try:
            return asked(wire.address)
        except ConnectionRefusedError:
            threading.Event().wait(0.02)
    raise AssertionError("it refuses for ever")


def test_who_connects_is_refused_until_the_target_listens(wires: Wires) -> None:
    port = free_port()
    wire = wires.wire(("127.0.0.1", port), port=free_port())  # where nobody else listens meanwhile
    for _ in range(2):
        wire.refuse()
        wire.refuse()
        until(lambda: refuses(wire))
        threading.Event().wait(0.1)
        with pytest.raises(ConnectionRefusedError):
            asked(wire.address)
        with listening(port, b"!"):
            assert until_accepted(wire) == b"!"


def test_what_was_sent_arrives_once_it_is_whole_again(wires: Wires) -> None:
    port = free_port()
    wire = wires.wire(("127.0.0.1", port))
    with listening(port, b"!"):
        assert asked(wire.address) == b"!"
        wire.cut()
        with socket.create_connection(wire.address, timeout=_HEARD_S) as connection:
            connection.sendall(b"?")
            connection.settimeout(_SILENT_S)
            with pytest.raises(TimeoutError):
                connection.recv(1)
            wire.mend()
            connection.settimeout(_HEARD_S)
            assert connection.recv(1) == b"!"


def test_it_is_cut_for_some_only(wires: Wires) -> None:
    port = free_port()
    kinds = {"friend": "friends"}
    wire = wires.wire(("127.0.0.1", port), kind_of=lambda source: kinds["friend"])
    with listening(port, b"!"):
        wire.cut("friends")
        with pytest.raises(TimeoutError):
            asked(wire.address, _SILENT_S)
        kinds["friend"] = "strangers"
        assert asked(wire.address) == b"!"


def test_it_is_led_elsewhere(wires: Wires) -> None:
    one, other = free_port(), free_port()
    wire = wires.wire(("127.0.0.1", one))
    with listening(one, b"1"), listening(other, b"2"):
        assert asked(wire.address) == b"1"
        wire.lead_to(("127.0.0.1", other))
        assert asked(wire.address) == b"2"
