"""Large requests: parsed in portions with the same result, and rejected before many parts are built."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.message import Message

from nadi.controller.grpc import server
from nadi.controller.grpc.messages import with_all
from nadi.controller.grpc.server import parsed
from nadi.controller.state.history import EpochHistory, ask, first_epoch
from nadi.errors import InvalidArgumentError
from nadi.limits import RPC_MESSAGE_MAX_BYTES, RPC_MESSAGES_A_TURN, RPC_PARTS_MAX, RPC_PORTION_BYTES, RPC_PORTION_PARTS
from nadi.runtime import REAL
from nadi.wire.rpc import controller_pb2 as pb


def cut(count: int, epoch: int = 3) -> dict[int, int]:
    return {(epoch << 32) | number: number << 30 for number in range(count)}


NAME = pb.StreamInfo(scope="scope", stream="stream")
LARGE: list[Any] = [
    pb.StreamCut(streamInfo=NAME, cut=cut(RPC_PARTS_MAX)),
    pb.StreamCutRange(streamInfo=NAME, **{"from": cut(15_000), "to": cut(15_000, 4)}),
    pb.SubscriberStreamCut(
        subscriber="s" * 1000, generation=7, streamCut=pb.StreamCut(streamInfo=NAME, cut=cut(19_000))
    ),
    pb.ReaderGroupConfiguration(
        scope="scope",
        readerGroupName="group",
        generation=-1,
        startingStreamCuts=[pb.StreamCut(streamInfo=NAME, cut=cut(count)) for count in (1, 10_000, 0, 300, 12_000)],
    ),
    pb.ScaleRequest(
        streamInfo=NAME,
        sealedSegments=[1, 1 << 40, 3],
        newKeyRanges=[pb.ScaleRequest.KeyRangeEntry(start=n / 10_000, end=(n + 1) / 10_000) for n in range(10_000)],
        scaleTimestamp=17,
    ),
    pb.ScopeInfo(scope="x" * 1_000_000),
]


async def portions(kind: type[Message], raw: bytes) -> tuple[Message, int]:
    turns = 0

    async def turn() -> None:
        nonlocal turns
        turns += 1

    return await parsed(kind, raw, turn), turns


@pytest.mark.parametrize("message", LARGE, ids=lambda message: type(message).__name__)
def test_a_large_request_is_parsed_in_turns_to_the_same_message(message: Any) -> None:
    raw = message.SerializeToString()
    assert len(raw) > RPC_PORTION_BYTES
    found, turns = asyncio.run(portions(type(message), raw))
    assert found == message
    assert turns >= 1 if isinstance(message, pb.ScopeInfo) else turns >= 4


def test_fields_may_come_in_any_order_and_again() -> None:
    """The last value counts, and parts of one message are combined, as in a single parse."""
    dice = random.Random(1)
    for _ in range(20):
        pieces = [
            pb.SubscriberStreamCut(
                streamCut=pb.StreamCut(cut={dice.randrange(1 << 62): -1 for _ in range(dice.randrange(200))}),
                subscriber=str(number),
            ).SerializeToString()
            for number in range(60)
        ]
        dice.shuffle(pieces)
        raw = b"".join([*pieces, b"\xf8\x07\x01", b"\xfd\x07" + bytes(4), b"\xf9\x07" + bytes(8)])
        found, turns = asyncio.run(portions(pb.SubscriberStreamCut, raw))
        assert found == pb.SubscriberStreamCut.FromString(raw)
        assert turns


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        (pb.StreamCut, pb.StreamCut(cut=cut(RPC_PARTS_MAX + 1)).SerializeToString()),
        (pb.StreamCut, b"\x12\x00" * (RPC_MESSAGE_MAX_BYTES // 2)),
        (pb.ScaleRequest, b"\x1a\x00" * (RPC_MESSAGE_MAX_BYTES // 2)),
        (pb.ScaleRequest, pb.ScaleRequest(sealedSegments=[1] * (RPC_PARTS_MAX + 1)).SerializeToString()),
        (pb.ReaderGroupConfiguration, b"\x4a\x00" * (RPC_MESSAGE_MAX_BYTES // 2)),
        (
            pb.ReaderGroupConfiguration,
            pb.ReaderGroupConfiguration(
                startingStreamCuts=[pb.StreamCut(cut=cut(RPC_PARTS_MAX + 1))]
            ).SerializeToString(),
        ),
        (pb.ScaleRequest, b"\x1a\x00" * (RPC_PORTION_BYTES // 2)),
    ],
    ids=["a cut", "empty entries", "ranges", "numbers", "cuts", "a cut of a group", "within a portion"],
)
def test_too_many_parts_are_refused(kind: type[Message], raw: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match="20,000"):
        asyncio.run(portions(kind, raw))


def test_each_turn_parses_few_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at, most = 0, 0
    field = server._field

    def counted(raw: bytes, at: int, end: int) -> tuple[int, int, int]:
        nonlocal looked_at
        looked_at += 1
        return field(raw, at, end)

    async def turn() -> None:
        nonlocal looked_at, most
        most, looked_at = max(most, looked_at), 0

    monkeypatch.setattr(server, "_field", counted)
    for message in LARGE:
        asyncio.run(parsed(type(message), message.SerializeToString(), turn))
    assert RPC_PORTION_PARTS // 2 < most <= RPC_PORTION_PARTS + 10


@pytest.mark.parametrize(
    "end",
    [
        b"\x0a",
        b"\x0a\x05abc",
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x0b",
        b"\x80",
        b"\x0d\x00",
        b"\x00\x00",
    ],
)
def test_malformed_message_is_rejected(end: bytes) -> None:
    raw = pb.ScopeInfo(scope="x" * 2 * RPC_PORTION_BYTES).SerializeToString()
    with pytest.raises(InvalidArgumentError):
        asyncio.run(portions(pb.ScopeInfo, raw + end))
    assert asyncio.run(portions(pb.ScopeInfo, raw))


async def test_large_cuts_are_compared_in_a_thread() -> None:
    """Other tasks continue meanwhile, and a concurrently added epoch has no effect."""
    history = EpochHistory([first_epoch(1_000, 0)])
    whole = {segment.id: 0 for segment in history.epoch(0)}

    def compare(known: EpochHistory) -> bool:
        began.set()
        change = history.plan_scale(0, [0], [(0.0, 0.001)], min_segments=1, time_ms=1)
        history.add(change)
        return known.is_valid_cut(whole) and known.newest == 0

    began = asyncio.Event()

    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    assert await ask(REAL, history, compare)
    counting.cancel()
    assert turns > 1
    assert history.newest == 1
    small = EpochHistory([first_epoch(2, 0)])
    assert await ask(REAL, small, lambda known: known is small)


def test_reply_of_many_parts_is_built_over_several_turns() -> None:
    made, most = 0, 0

    def parts() -> Iterator[Any]:
        nonlocal made
        for number in range(4 * RPC_MESSAGES_A_TURN + 1):
            made += 1
            yield pb.SegmentId(streamInfo=NAME, segmentId=number)

    async def watch() -> None:
        nonlocal made, most
        while True:
            most, made = max(most, made), 0
            await asyncio.sleep(0)

    async def main() -> None:
        watching = asyncio.create_task(watch())
        reply = await with_all(pb.StreamCutRangeResponse(), "segments", parts())
        watching.cancel()
        assert [part.segmentId for part in reply.segments] == list(range(4 * RPC_MESSAGES_A_TURN + 1))

    asyncio.run(main())
    assert most == RPC_MESSAGES_A_TURN
