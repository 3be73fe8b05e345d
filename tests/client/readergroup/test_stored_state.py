"""Causes of a failed change of a group's state."""

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

CONFLICT = "lost to another change"
LIMIT_S = 0.3


class Clock:
    """A clock that advances only in `silent`, so that a slow machine doesn't count as a silent server."""

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
    """Change a group's state, with replaced methods of its table."""
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


async def conflicting(*_: Any) -> None:
    raise ConditionFailedError("another version")


def first(*attempts: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Return a function that calls each of these once, then always the last."""
    remaining = list(attempts)

    async def call(*arguments: Any) -> None:
        await (remaining.pop(0) if len(remaining) > 1 else remaining[0])(*arguments)

    return call


def failing(error: NadiError) -> Callable[..., Awaitable[None]]:
    async def call(*_: Any) -> None:
        raise error

    return call


@pytest.mark.parametrize(
    ("methods", "kind", "cause"),
    [
        ({"put": conflicting}, RequestTimeoutError, rf"\d+ attempts {CONFLICT}"),
        ({"put": silent}, RequestTimeoutError, r"0\.3 s$"),
        ({"get": silent}, RequestTimeoutError, r"0\.3 s$"),
        ({"put": first(conflicting, silent)}, RequestTimeoutError, r"0\.3 s$"),
        ({"put": first(failing(UnavailableError("connection lost")), conflicting)}, RequestTimeoutError, CONFLICT),
        ({"put": failing(StorageFullError("no room"))}, StorageFullError, "no room"),
        ({"put": failing(UnavailableError("no room"))}, RequestTimeoutError, "no room"),
    ],
)
def test_failed_state_change_reports_its_cause(methods: dict[str, Any], kind: type[NadiError], cause: str) -> None:
    with pytest.raises(kind, match=cause) as raised:
        asyncio.run(changed(**methods))
    assert (CONFLICT in str(raised.value)) == (CONFLICT in cause)
    assert "connection lost" not in str(raised.value), "an error before the last attempt"
