"""The process that a client belongs to."""

from __future__ import annotations

import os

from nadi.errors import ClosedError


class OwnProcess:
    """The process that created this object. In a process forked from it, no part of the client works."""

    def __init__(self) -> None:
        self._id = os.getpid()

    @property
    def is_this(self) -> bool:
        return os.getpid() == self._id

    def check(self) -> None:
        """Raise ClosedError in any other process."""
        if os.getpid() != self._id:
            raise ClosedError(
                "this client was made before the process forked, and its thread stayed behind: "
                "start processes by multiprocessing's spawn or forkserver, and make a client in each"
            )


class GrpcUse:
    """How many channels this process has open. gRPC's threads stay behind at a fork, and a channel that is opened
    without them waits forever: while one was open when its process forked, none can be opened there."""

    def __init__(self) -> None:
        self._process, self._channels = os.getpid(), 0

    def begin(self) -> None:
        if os.getpid() != self._process:
            if self._channels:
                raise ClosedError(
                    "this process was forked from one with a client, and gRPC's threads stayed behind: "
                    "start processes by multiprocessing's spawn or forkserver"
                )
            self._process = os.getpid()
        self._channels += 1

    def end(self) -> None:
        self._channels -= 1


grpc_use = GrpcUse()
