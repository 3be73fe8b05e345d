"""Closing a client at any moment: pending calls raise ClosedError, and the loop's exception handler isn't called."""

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
    """Return the calls of the loop's exception handler, and the outcomes of a flush, an append and a request."""
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
            one.cancel()  # still waiting
        ends = await asyncio.gather(*waits, return_exceptions=True)
    return unhandled, ends


class Server(asyncio.Protocol):
    """A server that answers only the greeting. ended: the error that ended its connection."""

    def __init__(self, ended: asyncio.Future[Exception | None]) -> None:
        self.ended = ended

    def connection_made(self, transport: Any) -> None:
        transport.write(encode(wire.Hello(17, 5)))

    def connection_lost(self, error: Exception | None) -> None:
        self.ended.set_result(error)


async def end_of(*, asks: bool) -> Exception | None:
    """Return the error that ended a server's connection when a client closed it, with or without a pending answer."""
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
def test_closed_connection_sends_nothing_more(loop: Any) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        assert isinstance(runner.run(end_of(asks=True)), ConnectionResetError)
        assert runner.run(end_of(asks=False)) is None


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_closing_a_busy_client_leaves_no_unhandled_error(loop: Any) -> None:
    for turns in range(TURNS):
        with asyncio.Runner(loop_factory=loop) as runner:
            unhandled, ends = runner.run(close_after(turns))
        assert unhandled == [], turns
        flushed, appended, created = ends
        assert isinstance(flushed, ClosedError), (turns, flushed)
        assert isinstance(appended, ClosedError), (turns, appended)
        assert created is True or isinstance(created, ClosedError), (turns, created)


async def give_up_after(turns: int) -> list[Any]:
    """Return the calls of the loop's exception handler after cancelling a connection that is being opened."""
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
def test_connection_cancelled_while_opening_sends_nothing(loop: Any) -> None:
    """uvloop closes a new connection's socket without notifying the task that has queued a greeting."""
    for turns in range(TURNS // 2):
        with asyncio.Runner(loop_factory=loop) as runner:
            assert runner.run(give_up_after(turns)) == [], turns


async def test_waiting_for_a_token_raises_closed_error_unless_cancelled() -> None:
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
