"""A store that doesn't answer holds up nobody who asks another."""

from __future__ import annotations

import asyncio

from nadi.controller.controller import Controller
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import Config
from nadi.errors import UnavailableError
from nadi.limits import SEGMENT_CALL_ATTEMPTS, SEGMENT_CALLS_AT_ONCE, WATERMARK_PERIOD_S
from nadi.naming import MARK_PREFIX
from nadi.wire.commands import Command
from tests.support.waiting import until_async

from .fake_store import FakeStore
from .support import FakeClock

FAR = "far"  # how streams' names begin that are to be in another store, which says nothing


def place_of(command: Command) -> str:
    its = getattr(command, "segment", "").removeprefix("home/").removeprefix(MARK_PREFIX)
    return FAR if its.startswith(FAR) else "here"


async def test_a_store_that_doesnt_answer_holds_up_nobody_who_asks_another() -> None:
    store, answers, waiting, most = FakeStore(), asyncio.Event(), 0, 0

    async def exchange(command: Command) -> Command:
        nonlocal waiting, most
        if place_of(command) == FAR and not answers.is_set():
            waiting += 1
            most = max(most, waiting)
            try:
                await answers.wait()
                raise UnavailableError("it said nothing")
            finally:
                waiting -= 1
        return await store.exchange(command)

    controller = Controller(
        exchange, endpoint_of=lambda _: ("127.0.0.1", 1), rpc_endpoint=("127.0.0.1", 2), place_of=place_of
    )
    await controller.start()
    await controller.create_scope("home")
    names = [StreamName("home", f"{FAR}-{number}") for number in range(2 * SEGMENT_CALLS_AT_ONCE)]
    far = asyncio.gather(*(controller.create_stream(name, Config()) for name in names))
    await until_async(lambda: waiting == SEGMENT_CALLS_AT_ONCE)
    async with asyncio.timeout(60):
        for number in range(3):
            await controller.create_stream(StreamName("home", f"near-{number}"), Config())
        await controller.list_streams("home", "")
    assert not far.done()
    answers.set()
    await far
    assert all([await controller.stream_exists(name) for name in names])
    assert most == SEGMENT_CALLS_AT_ONCE, "there is a limit for each store"
    await controller.stop()


async def test_it_keeps_no_others_from_their_watermarks_and_is_asked_once_a_round() -> None:
    store, clock, is_away, asked = FakeStore(), FakeClock(), False, 0

    async def exchange(command: Command) -> Command:
        nonlocal asked
        if place_of(command) == FAR and is_away:
            asked += 1
            raise UnavailableError("it can't be reached")
        return await store.exchange(command)

    controller = Controller(
        exchange, clock=clock, endpoint_of=lambda _: ("127.0.0.1", 1), rpc_endpoint=("127.0.0.1", 2), place_of=place_of
    )
    await controller.start()
    await controller.create_scope("home")
    names = [StreamName("home", f"{kind}-{number}") for number in range(4) for kind in (FAR, "near")]
    for name in names:
        await controller.create_stream(name, Config())
        await controller.note_time(name, "writer", 10, {0: 70})

    def are_made(kind: str) -> list[bool]:
        return [store.data(name.mark.segment(0)) != b"" for name in names if name.stream.startswith(kind)]

    is_away = True
    for _ in range(3):  # what takes longer than a period leaves the next round to begin late
        await clock.advance(int(WATERMARK_PERIOD_S * 1000))
    assert all(are_made("near"))
    assert asked <= 3 * SEGMENT_CALL_ATTEMPTS
    is_away = False
    for _ in range(3):
        await clock.advance(int(WATERMARK_PERIOD_S * 1000))
    assert all(are_made(FAR))
    await controller.stop()
