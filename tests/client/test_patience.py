"""A limited time to try in, and what is said when it is over."""

from __future__ import annotations

import asyncio

import pytest

from nadi.client.control.patience import TimeLimit
from nadi.errors import RequestTimeoutError, UnavailableError


async def wait_in_vain(limit: TimeLimit) -> None:
    async with limit:
        await asyncio.Event().wait()


def test_the_trouble_met_is_named() -> None:
    trouble = UnavailableError("the store is away")
    with pytest.raises(RequestTimeoutError, match=r"^nothing came: the store is away$") as late:
        asyncio.run(wait_in_vain(TimeLimit(0.01, lambda: "nothing came", lambda: trouble)))
    assert late.value.__cause__ is None  # one traceback is enough: the message has both
    with pytest.raises(RequestTimeoutError, match=r"^nothing came$"):
        asyncio.run(wait_in_vain(TimeLimit(0.01, lambda: "nothing came")))


async def test_only_its_own_end_is_its_error() -> None:
    for error in (RequestTimeoutError("one further in"), TimeoutError("of a socket"), asyncio.CancelledError()):
        with pytest.raises(type(error)) as raised:
            async with TimeLimit(30, lambda: "nothing came"):
                raise error
        assert raised.value is error
    async with TimeLimit(None, lambda: "nothing came"):
        await asyncio.sleep(0)
