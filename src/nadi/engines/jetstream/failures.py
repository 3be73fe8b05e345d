"""What JetStream's errors mean, said once. Its codes are in nats-server's `server/errors.json`."""

from __future__ import annotations

import msgspec

from nadi.engines.failures import RefusedError
from nadi.errors import StorageFullError, UnavailableError

EXISTS = 10071  # the subject has a message already
NOT_THERE = 10037  # no message has that subject
NO_STREAM = 10059
NOT_CLUSTERED = 10074  # a single server has no replicas
TAKEN = 10058  # a stream has that name, and is another
CONSUMER_GONE = 10014
_UNDECIDED = 10164  # as 10071, but the message that is in the way isn't stored yet and may never be
_FULL = {10023, 10028, 10047, 10077, 10110, 10111}
_OFF = {10035, 10039, 10076}
_NO_PEERS = {10005, 10004}
_TOO_LARGE = 10054
_NO_STREAM_HERE = "the log's stream isn't there any more; its cluster can't run without what it held: restore it"


class Problem(msgspec.Struct):
    """As JetStream answers."""

    err_code: int = 0
    code: int = 0
    description: str = ""


def told(what: str, problem: Problem) -> UnavailableError:
    """The error to raise. what: as in "NATS can't store log/0/1"."""
    code = problem.err_code
    answer = f" ({code}: {problem.description})"
    if code == _UNDECIDED:
        return UnavailableError(f"NATS can't {what}: somebody is storing it right now{answer}; it is tried again")
    if code in _FULL:
        return StorageFullError(f"NATS can't {what}: its storage or a limit is full; give JetStream more{answer}")
    if code == NO_STREAM:
        return RefusedError(f"NATS can't {what}: {_NO_STREAM_HERE}{answer}")
    if code in _OFF:
        return RefusedError(f"NATS can't {what}: turn JetStream on, for this account, too{answer}")
    if code in _NO_PEERS:
        return RefusedError(
            f"NATS can't {what}: there are too few servers with JetStream and room for its replicas; start more, or "
            f"choose a number of replicas{answer}"
        )
    if code == _TOO_LARGE:
        return RefusedError(f"NATS can't {what}: the stream has a maximum message size; take it away{answer}")
    if problem.code == 403:
        return RefusedError(f"NATS can't {what}: it forbids that{answer}")
    return UnavailableError(f"NATS can't {what}: it is tried again{answer}")
