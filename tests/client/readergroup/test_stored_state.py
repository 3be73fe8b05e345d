"""Why a group's state could not be changed in time: what really kept it from it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from nadi.client.manager.streams import stores_of
from nadi.client.readergroup import stored_state
from nadi.client.readergroup.state import GroupState, first_state
from nadi.client.readergroup.stored_state import StoredGroupState
from nadi.errors import ConditionFailedError, NadiError, RequestTimeoutError, StorageFullError, UnavailableError

from ..world import world

OTHERS = "others changed it before each of"
LIMIT_S = 0.3


class Clock:
    """Stands still but for who waits in vain: what a slow machine takes is nobody's silence."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


clock = Clock()


@pytest.fixture(autouse=True)
def own_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_state, "time", SimpleNamespace(monotonic=clock.monotonic))


def some_change(state: GroupState) -> GroupState:
    return replace(state)


async def changed(
    put: Callable[..., Awaitable[Any]] | None = None, get: Callable[..., Awaitable[Any]] | None = None
) -> None:
    """A change of a group's state, where the table does this in place of its own."""
    async with world(1) as w:
        shared = StoredGroupState(stores_of(w.manager), "sc", "group")
        await shared.create(first_state("id", [], streams=["sc/st"]))
        if put is not None:
            shared._table.put = put  # type: ignore[method-assign, assignment]
        if get is not None:
            shared._table.get = get  # type: ignore[method-assign, assignment]
        await shared.change(some_change, LIMIT_S)


async def for_ever(*_: Any) -> None:
    clock.now += LIMIT_S
    await asyncio.Event().wait()


async def beaten(*_: Any) -> None:
    raise ConditionFailedError("another version")


def test_others_that_are_faster_each_time_are_named() -> None:
    with pytest.raises(RequestTimeoutError, match=rf"{OTHERS} \d+ tries"):
        asyncio.run(changed(put=beaten))


@pytest.mark.parametrize("where", ["put", "get"])
def test_a_server_that_does_not_answer_is_named_and_no_others(where: str) -> None:
    with pytest.raises(RequestTimeoutError, match=r"did not answer for 0\.3 s") as told:
        asyncio.run(changed(**{where: for_ever}))
    assert OTHERS not in str(told.value)


def test_a_server_that_went_silent_after_others_were_faster_is_named() -> None:
    tries = iter([beaten, for_ever])

    async def once_beaten(*arguments: Any) -> None:
        await next(tries)(*arguments)

    with pytest.raises(RequestTimeoutError, match="did not answer"):
        asyncio.run(changed(put=once_beaten))


def test_trouble_that_has_passed_is_not_named() -> None:
    tries = iter([UnavailableError("was lost")])

    async def lost_once(*arguments: Any) -> None:
        if (error := next(tries, None)) is not None:
            raise error
        await beaten()

    with pytest.raises(RequestTimeoutError, match=OTHERS) as told:
        asyncio.run(changed(put=lost_once))
    assert "was lost" not in str(told.value)


@pytest.mark.parametrize(
    ("error", "kind"),
    [(StorageFullError("no room"), StorageFullError), (UnavailableError("away: no room"), RequestTimeoutError)],
)
def test_trouble_that_lasts_is_named(error: NadiError, kind: type[NadiError]) -> None:
    async def fails(*_: Any) -> None:
        raise error

    with pytest.raises(kind, match="no room") as told:
        asyncio.run(changed(put=fails))
    assert OTHERS not in str(told.value)
