"""Detect that a client is used in a process forked from its own."""

from __future__ import annotations

import os

from nadi.errors import ClosedError


class OwnProcess:
    """The process that created this object; a client doesn't work in a process forked from it."""

    def __init__(self) -> None:
        self._id = os.getpid()

    @property
    def is_this(self) -> bool:
        return os.getpid() == self._id

    def check(self) -> None:
        """Raise ClosedError in any other process."""
        if os.getpid() != self._id:
            raise ClosedError(
                "this client can't be used in a forked process: start processes with multiprocessing's spawn or "
                "forkserver method, and create a client in each"
            )


class GrpcUse:
    """Number of this process's open gRPC channels. A fork doesn't copy gRPC's threads, and a channel opened without
    them waits forever: if a channel was open at the fork, the new process can't open any."""

    def __init__(self) -> None:
        self._process, self._channels = os.getpid(), 0

    def begin(self) -> None:
        if os.getpid() != self._process:
            if self._channels:
                raise ClosedError(
                    "a client can't be created in a process forked from one with an open client: start processes with "
                    "multiprocessing's spawn or forkserver method"
                )
            self._process = os.getpid()
        self._channels += 1

    def end(self) -> None:
        self._channels -= 1


grpc_use = GrpcUse()
