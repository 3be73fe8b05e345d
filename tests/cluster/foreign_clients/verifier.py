"""Interface of a verifier, and the transcript of its readers that most verifiers share."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol

from tests.cluster.processes.client import Promised
from tests.crash.load import Ledger

TAIL_S = 600.0  # for a reader to reach the end of the stream; foreign readers reacquire segments late, one by one


class MissingError(Exception):
    """Error for a verifier's missing dependency; the message names it and the reason."""


class Verifier(Protocol):
    name: str

    def check(self) -> None:
        """Raise AssertionError if the verifier has detected an error."""

    def progress(self) -> dict[str, float]:
        """Return counts of operations, such as "writes" and "reads", and of failures, such as "given up"."""

    def settle(self) -> None:
        """Stop writing, and wait until all writes are acknowledged or have failed."""

    def verify(self, ledger: Ledger) -> list[Promised]:
        """Wait until the verifier has read all events of `ledger`, the contents of the stream, and return its
        acknowledgements. AssertionError: it has read other events."""

    def close(self) -> None: ...


class Transcript:
    """File to which a reader appends each event as a line, without the padding."""

    def __init__(self, file: Path, reader: str) -> None:
        self._file, self._reader, self._offset, self._rest = file, reader, 0, b""
        self.ledger = Ledger()

    def take(self) -> None:
        """Read new lines; AssertionError at the first invalid event."""
        if not self._file.exists():
            return
        with self._file.open("rb") as file:
            file.seek(self._offset)
            while piece := file.read(1 << 20):
                self._offset += len(piece)
                *lines, self._rest = (self._rest + piece).split(b"\n")
                for line in lines:
                    try:
                        self.ledger.take(line)
                    except AssertionError as error:
                        raise AssertionError(f"{self._reader} has read an invalid event: {error}") from None

    def await_all(self, expected: Ledger, limit_s: float = TAIL_S) -> None:
        """Wait until it has as many events as `expected`, and compare."""
        deadline = time.monotonic() + limit_s
        while self.ledger.events < expected.events:
            assert time.monotonic() < deadline, (
                f"{self._reader} has {self.ledger.events:,} of {expected.events:,} events"
            )
            time.sleep(0.1)
            self.take()
        check_same(self.ledger, expected, self._reader)


def check_same(actual: Ledger, expected: Ledger, reader: str) -> None:
    """Check that both have the same events, each key's in order; duplicates are detected when events are taken."""
    assert actual.events == expected.events, f"{reader} has {actual.events:,} events of {expected.events:,}"
    assert actual.next_number == expected.next_number, f"{reader} differs under some keys"
    assert actual.transactions == expected.transactions, f"{reader} differs in some transactions"
