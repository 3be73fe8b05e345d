"""Trying until it succeeds, and futures of those who wait for it but may give up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from nadi.backoff import Backoff, Sleep
from nadi.controller.engine.hold import TurnLostError
from nadi.errors import NotOwnerError, StorageFullError, UnavailableError
from nadi.limits import WORKFLOW_RETRY_MAX_S

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.1
_FULL_PAUSE_S = 0.5  # longest pause while the disk is full
_MOVED_PAUSE_S = 0.5  # and while a container is between two servers: that is over in a second or a few


async def until_done(
    what: str,
    attempt: Callable[[], Awaitable[None]],
    failed: Callable[[Exception], None],
    full: Callable[[StorageFullError], None],
    *,
    sleep: Sleep,
) -> None:
    """Try until it succeeds; errors other than an outage are logged and reported. TurnLostError ends it."""
    backoff = Backoff(first_s=_FIRST_PAUSE_S, longest_s=WORKFLOW_RETRY_MAX_S, sleep=sleep)
    while True:
        try:
            return await attempt()
        except TurnLostError:
            raise
        except StorageFullError as error:
            log.warning("%s waits for room on the disk: %s", what, error)
            full(error)
            failed(error)
            backoff.at_most(_FULL_PAUSE_S)
        except NotOwnerError as error:
            log.info("%s waits for a container: %s", what, error)
            backoff.at_most(_MOVED_PAUSE_S)
        except UnavailableError as error:
            log.warning("%s waits for the segment store: %s", what, error)
        except Exception as error:
            log.exception("%s failed and is tried again", what)
            failed(error)
        await backoff.pause()


def settle(future: asyncio.Future[Any], value: Any = None, *, error: BaseException | None = None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)


def seen(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()  # a caller that gave up doesn't leave an unread error behind
