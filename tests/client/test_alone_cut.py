"""The connection of a thread that sends by itself ends at any byte of what it sends, or of the answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import nadi
from nadi.client import StreamManager

from .gate import Gate, gated
from .test_alone import lent, made, stored


class Scissors:
    """Lets so many bytes of the next piece pass, then cuts the connection. is_done: there were no more."""

    def __init__(self, gate: Gate, count: int) -> None:
        self._gate, self._count = gate, count
        self.is_done = self._has_cut = False

    def __call__(self, data: bytes) -> Iterator[bytes]:
        if self._has_cut:
            yield data
            return
        self._has_cut = True
        self.is_done = self._count > len(data)
        yield data[: self._count]
        self._gate.cut()


@pytest.mark.parametrize("what", ["request", "answer"])
def test_at_each_byte(uri: str, server: nadi.standalone.EmbeddedServer, what: str) -> None:
    wrote, count = list[bytes](), 0
    with gated(uri, server.store_address) as (manager, gate), made(manager, f"cut-{what}") as writer:
        is_done = False
        while not is_done:
            lent(writer)
            scissors = Scissors(gate, count)
            if what == "request":
                gate.changed_request = scissors
            else:
                gate.changed = scissors
            for number in range(2):
                wrote.append(b"x %d %d" % (count, number))
                writer.write_event(wrote[-1]).result(60)
            is_done = scissors.is_done
            count += 1
    assert count > 40
    with StreamManager(uri) as direct:
        assert stored(direct, f"cut-{what}", b"x") == wrote
