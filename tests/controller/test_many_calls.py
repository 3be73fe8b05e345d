"""Calls by the hundred over one connection, as from a program that creates thousands of streams."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from nadi.limits import RPC_STREAMS_MAX
from nadi.wire.rpc import controller_pb2 as pb

from .fake_store import FakeStore
from .rpc import Call, over_grpc

_CALLS = 600


def test_none_is_refused() -> None:
    """A connection's calls are held back by the client, at the number that the server has told. One that has ended
    doesn't count any more, though the server may still have to let go of it."""

    async def test(call: Call, store: FakeStore) -> None:
        numbers = iter(range(_CALLS))

        async def some(numbers: Iterator[int]) -> int:
            asked = 0
            for _ in numbers:
                reply = await call("checkScopeExists", pb.ScopeInfo(scope="home"))  # raises if it is refused
                assert not reply.exists
                asked += 1
            return asked

        asked = await asyncio.gather(*(some(numbers) for _ in range(3 * RPC_STREAMS_MAX)))
        assert sum(asked) == _CALLS

    over_grpc(test)
