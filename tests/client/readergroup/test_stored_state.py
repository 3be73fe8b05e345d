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


async def silent(*_: Any) -> None:
    clock.now += LIMIT_S
    await asyncio.Event().wait()


async def beaten(*_: Any) -> None:
    raise ConditionFailedError("another version")


def first(*tries: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Each of these once, the last one from then on."""
    left = list(tries)

    async def call(*arguments: Any) -> None:
        await (left.pop(0) if len(left) > 1 else left[0])(*arguments)

    return call


def failing(error: NadiError) -> Callable[..., Awaitable[None]]:
    async def call(*_: Any) -> None:
        raise error

    return call


@pytest.mark.parametrize(
    ("does", "kind", "says", "is_others"),
    [
        ({"put": beaten}, RequestTimeoutError, rf"{OTHERS} \d+ tries", True),
        ({"put": silent}, RequestTimeoutError, r"did not answer for 0\.3 s", False),
        ({"get": silent}, RequestTimeoutError, r"did not answer for 0\.3 s", False),
        ({"put": first(beaten, silent)}, RequestTimeoutError, "did not answer", False),
        ({"put": first(failing(UnavailableError("was lost")), beaten)}, RequestTimeoutError, OTHERS, True),
        ({"put": failing(StorageFullError("no room"))}, StorageFullError, "no room", False),
        ({"put": failing(UnavailableError("no room"))}, RequestTimeoutError, "no room", False),
    ],
)
def test_what_kept_it_from_being_changed_is_named(
    does: dict[str, Any], kind: type[NadiError], says: str, is_others: bool
) -> None:
    with pytest.raises(kind, match=says) as told:
        asyncio.run(changed(**does))
    assert (OTHERS in str(told.value)) == is_others
    assert "was lost" not in str(told.value), "trouble that has passed"
