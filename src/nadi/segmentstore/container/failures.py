"""What a container's requests are told when it fails, and what its operator is."""

from __future__ import annotations

import logging

import lmdb

from nadi.errors import DamagedStateError, FencedError, NadiError, StorageFullError, UnavailableError
from nadi.segmentstore.container.request_queue import Answers
from nadi.segmentstore.container.requests import again

log = logging.getLogger(__name__)


def told(error: Exception, number: int, *, is_lost: bool) -> UnavailableError:
    """Log why the container of that number fails, or ends if it is lost to another server; return what requests are
    told that were under way, and may be stored."""
    if is_lost and isinstance(error, FencedError):
        log.warning("container %d ends here: %s", number, str(error))  # a record would keep its frames,
        error.with_traceback(None)  # and sessions keep what they are told, with the error before it
        return UnavailableError(f"{error}: connect again")
    if is_lost:
        return UnavailableError("another server has the data folder, or gets the container: connect again")
    if isinstance(error, DamagedStateError):
        log.warning("container %d: %s", number, error)
        return UnavailableError(f"the container's state was found damaged ({error.what}): try again")
    if isinstance(error, StorageFullError):
        log.warning("container %d: %s", number, error)
    else:
        log.error("container %d failed and will recover from its log", number, exc_info=error)
    if isinstance(error, UnavailableError):
        return error
    return UnavailableError(f"the container could not write its log ({error}): try again")


def still_closed(error: Exception, number: int, before: UnavailableError | None) -> UnavailableError:
    """Log why the container can't be opened again, unless that is what it was before; return what requests are told."""
    said = f"container {number} can't be opened again yet: {error}"
    if str(before) != said:
        is_known = isinstance(error, OSError | lmdb.Error | NadiError)
        log.log(logging.WARNING if is_known else logging.ERROR, "%s", said, exc_info=None if is_known else error)
    return StorageFullError(said) if isinstance(error, StorageFullError) else UnavailableError(said)


def tell_of_room(number: int, *, full: bool) -> None:
    if full:
        log.warning("container %d: no room for its log: writers wait until there is room on its disk", number)
    else:
        log.info("container %d: there is room for its log again", number)


def unsure(answers: Answers) -> Answers:
    """The same, of requests that changed nothing: what they were told of the state may not be true any more, if another
    server has the container. That something is there already, or isn't, is told of the state too."""
    refused = UnavailableError("another server may have this container by now: try again")
    return [
        (request, None, error if isinstance(error, UnavailableError) else again(refused))
        for request, _, error in answers
    ]
