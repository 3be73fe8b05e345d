"""Clients of older and newer versions of the wire protocol, by raw frames on a socket."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable

import pytest

from nadi.wire import commands as wire
from nadi.wire.codec import encode
from tests.compatibility.conftest import Server
from tests.segmentstore.harness import WRITER, Peer

OURS = wire.Hello(17, 5)


def talk(server: Server, conversation: Callable[[Peer], Awaitable[None]]) -> None:
    address = server("raw sockets")

    async def main() -> None:
        peer = Peer(*await asyncio.open_connection(address.store_host, address.store_port))
        await conversation(peer)
        peer.close()

    asyncio.run(main())


@pytest.mark.parametrize("hello", [(15, 5), (16, 5), (17, 5), (17, 17), (5, 5), (30, 5), (30, 17)])
def test_overlapping_versions_are_accepted(server: Server, scope: str, hello: tuple[int, int]) -> None:
    async def conversation(peer: Peer) -> None:
        # Java sends its first command right after its Hello
        peer.send(wire.Hello(*hello), wire.GetStreamSegmentInfo(1, f"{scope}/stream/0.#epoch.0", ""))
        assert await peer.receive() == OURS
        assert isinstance(await peer.receive(), wire.NoSuchSegment)

    talk(server, conversation)


@pytest.mark.parametrize("hello", [(30, 18), (4, 1)])
def test_disjoint_versions_are_rejected(server: Server, hello: tuple[int, int]) -> None:
    async def conversation(peer: Peer) -> None:
        assert await peer.ask(wire.Hello(*hello)) == OURS  # so that the client can report the reason
        assert await peer.closed()

    talk(server, conversation)


def test_frames_of_older_versions_lack_the_last_fields(server: Server, scope: str) -> None:
    segment = f"{scope}/stream/0.#epoch.0"

    async def conversation(peer: Peer) -> None:
        await peer.ask(wire.Hello(7, 5))
        assert isinstance(await peer.create(segment), wire.SegmentCreated)
        await peer.setup(segment)
        event = b"\0\0\0\0\0\0\0\3old"
        peer.send_raw(_without_end(wire.AppendBlockEnd(WRITER, len(event), event, 1, 1, 77), 8))
        appended = await peer.receive()
        assert (appended.event_number, appended.request_id) == (1, -1)
        peer.send_raw(_without_end(wire.ReadSegment(segment, 0, 100, "", 77), 8))
        read = await peer.receive()
        assert (bytes(read.data), read.request_id) == (event, -1)

    talk(server, conversation)


def test_frames_of_newer_versions_have_more_fields(server: Server, scope: str) -> None:
    async def conversation(peer: Peer) -> None:
        await peer.ask(wire.Hello(30, 5))
        frame = encode(wire.CreateSegment(7, f"{scope}/stream/0.#epoch.0", 0, 0, ""))
        kind, length = struct.unpack(">ii", frame[:8])
        peer.send_raw(struct.pack(">ii", kind, length + 12) + frame[8:] + b"later fields")
        created = await peer.receive()
        assert (type(created), created.request_id) == (wire.SegmentCreated, 7)

    talk(server, conversation)


def test_unknown_command_ends_the_connection(server: Server) -> None:
    async def conversation(peer: Peer) -> None:
        await peer.ask(OURS)
        peer.send_raw(struct.pack(">ii", 99, 0))
        assert await peer.closed()

    talk(server, conversation)


def _without_end(command: wire.Command, count: int) -> bytes:
    frame = encode(command)
    kind, length = struct.unpack(">ii", frame[:8])
    return struct.pack(">ii", kind, length - count) + frame[8:-count]
