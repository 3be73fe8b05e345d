"""A client that is closed at any moment of its work: who waits gets a ClosedError, and the loop hears nothing else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvloop

from nadi.client.control.controller import ControllerClient
from nadi.client.control.security import Basic, Security
from nadi.client.segments.connection import Endpoint, SegmentStoreConnection
from nadi.client.segments.tokens import DelegationTokens
from nadi.errors import ClosedError
from nadi.wire import commands as wire
from nadi.wire.codec import encode

from .fake_server import FakeStore
from .world import world

TURNS = 40  # of the loop, in which a connection is made, greeted, and used
SILENCE_S = 0.05  # in which a connection's timer has gone off some times


async def close_after(turns: int) -> tuple[list[Any], list[Any]]:
    """What the loop's handler was told, and what became of a flush, of an append, and of a request."""
    unhandled: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unhandled.append(context))
    async with world(1) as w:
        writer = await w.manager.create_writer("sc", "st")
        stream = await w.manager.revisioned_stream("sc", "st")
        w.store.silent = True
        writer.write_event(b"event", "k")
        waits = [
            asyncio.create_task(writer.flush()),
            asyncio.create_task(stream.append(b"record", 0)),
            asyncio.create_task(w.manager.table("sc", "t").create()),
        ]
        for _ in range(turns):
            await asyncio.sleep(0)
        await w.manager.close()
        await asyncio.wait(waits, timeout=60)
        for one in waits:
            one.cancel()  # who still waits
        ends = await asyncio.gather(*waits, return_exceptions=True)
    return unhandled, ends


class Server(asyncio.Protocol):
    """Answers nothing but the greeting. ended: with how its connection ended."""

    def __init__(self, ended: asyncio.Future[Exception | None]) -> None:
        self.ended = ended

    def connection_made(self, transport: Any) -> None:
        transport.write(encode(wire.Hello(17, 5)))

    def connection_lost(self, error: Exception | None) -> None:
        self.ended.set_result(error)


async def end_of(*, asks: bool) -> Exception | None:
    """What a server's connection ended with that a client closed, when it had an answer to come or none."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Exception | None] = loop.create_future()
    server = await loop.create_server(lambda: Server(ended), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        connection = await SegmentStoreConnection.open(Endpoint("127.0.0.1", port), 60)
        if asks:
            asked = connection.submit(wire.DeleteTableSegment(0, "sc/table", False, ""), wire.SegmentDeleted)
            asked.add_done_callback(asyncio.Future.exception)
        await asyncio.sleep(0)
        connection.close()
        return await asyncio.wait_for(ended, 60)


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_the_system_does_not_go_on_sending_what_got_no_answer(loop: Any) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        assert isinstance(runner.run(end_of(asks=True)), ConnectionResetError)
        assert runner.run(end_of(asks=False)) is None


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_client_that_is_closed_while_it_works_leaves_nothing_unhandled(loop: Any) -> None:
    for turns in range(TURNS):
        with asyncio.Runner(loop_factory=loop) as runner:
            unhandled, ends = runner.run(close_after(turns))
        assert unhandled == [], turns
        flushed, appended, created = ends
        assert isinstance(flushed, ClosedError), (turns, flushed)
        assert isinstance(appended, ClosedError), (turns, appended)
        assert created is True or isinstance(created, ClosedError), (turns, created)


async def give_up_after(turns: int) -> list[Any]:
    """What the loop's handler was told when the opening of a connection was cancelled, then and a while later."""
    unhandled: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unhandled.append(context))
    store = FakeStore()
    await store.start()
    opening = asyncio.create_task(SegmentStoreConnection.open(Endpoint("127.0.0.1", store.port), 60, None, SILENCE_S))
    for _ in range(turns):
        await asyncio.sleep(0)
    opening.cancel()
    (end,) = await asyncio.gather(opening, return_exceptions=True)
    if isinstance(end, SegmentStoreConnection):
        end.close()
    else:
        assert isinstance(end, asyncio.CancelledError)
    await asyncio.sleep(SILENCE_S)
    await store.stop()
    return unhandled


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_connection_that_is_given_up_while_it_opens_sends_nothing_more(loop: Any) -> None:
    """uvloop closes the socket of one that is just made without a word to whoever has queued a greeting."""
    for turns in range(TURNS // 2):
        with asyncio.Runner(loop_factory=loop) as runner:
            assert runner.run(give_up_after(turns)) == [], turns


async def test_who_waits_for_a_token_gets_a_closed_error_unless_cancelled() -> None:
    class Standing(ControllerClient):
        async def delegation_token(self, *_: Any, **__: Any) -> str:
            await asyncio.Event().wait()
            raise AssertionError

    tokens = DelegationTokens(Standing("127.0.0.1:1", Security(credentials=Basic("user", "password"))))
    kept, cancelled = (asyncio.create_task(tokens.token("sc/st/0", wire.ReadSegment)) for _ in range(2))
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    tokens.close()
    with pytest.raises(ClosedError):
        await asyncio.wait_for(kept, 60)
