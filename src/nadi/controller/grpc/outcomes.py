"""What services share: the controller, and replies whose status says how a call ended."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from nadi.controller.controller import Controller

S = TypeVar("S", bound="Rpcs")
Fields = dict[str, Any]  # of a reply, by name
Errors = type[Exception] | tuple[type[Exception], ...]


class Rpcs:
    """The methods of some RPCs, each named as in the protocol but in snake case."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller


def outcomes(
    kind: Any, *, field: str = "status", **errors: Errors
) -> Callable[[Callable[[S, Any], Awaitable[Any]]], Callable[[S, Any], Awaitable[Any]]]:
    """Let a method's reply be a `kind` whose status is SUCCESS, or the name in `errors` of what the method raised.

    The method returns the reply's other fields, or None; also the status where it isn't SUCCESS. `field` is its name.
    """
    statuses = [(one, getattr(kind, name)) for name, one in errors.items()]

    def with_status(method: Callable[[S, Any], Awaitable[Any]]) -> Callable[[S, Any], Awaitable[Any]]:
        @functools.wraps(method)
        async def answer(service: S, request: Any) -> Any:
            try:
                more = await method(service, request) or {}
            except Exception as error:
                found = [status for one, status in statuses if isinstance(error, one)]
                if not found:
                    raise
                return kind(**{field: found[0]})
            if field not in more:
                more[field] = kind.SUCCESS
            return kind(**more)

        return answer

    return with_status
