"""What each judge is to the jury, and what most of them share: a transcript of what its readers have read."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol

from tests.cluster.processes.client import Promised
from tests.crash.load import Ledger

TAIL_S = 600.0  # for a reader to come to the end of the stream; others' readers take up segments again late, one by one


class MissingError(Exception):
    """What a judge needs isn't to be had here; the text says what, and why."""


class Judge(Protocol):
    name: str

    def check(self) -> None:
        """AssertionError if it has seen what may not be."""

    def progress(self) -> dict[str, float]:
        """How much it has done, by what it does: "writes", "reads"; and what befell it, by what: "given up"."""

    def settle(self) -> None:
        """Have it write no more, and wait until what it wrote is acknowledged, or given up."""

    def judge(self, ledger: Ledger) -> list[Promised]:
        """Wait until it has read what `ledger` has, which is all that is in the stream; AssertionError if it was
        something else. Return what it was promised."""

    def close(self) -> None: ...


class Transcript:
    """A file to which a reader appends what it reads: a line for each event, without the padding."""

    def __init__(self, file: Path, who: str) -> None:
        self._file, self._who, self._offset, self._rest = file, who, 0, b""
        self.ledger = Ledger()

    def take(self) -> None:
        """What is new; AssertionError at the first event that can't be."""
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
                        raise AssertionError(f"{self._who} has read what can't be: {error}") from None

    def await_all(self, wanted: Ledger, limit_s: float = TAIL_S) -> None:
        """Wait until it has as many events as `wanted`, and compare."""
        deadline = time.monotonic() + limit_s
        while self.ledger.events < wanted.events:
            assert time.monotonic() < deadline, f"{self._who} has {self.ledger.events:,} of {wanted.events:,} events"
            time.sleep(0.1)
            self.take()
        check_same(self.ledger, wanted, self._who)


def check_same(found: Ledger, wanted: Ledger, who: str) -> None:
    """Both have the same events, each key's in order; that they came once each is checked as they are taken."""
    assert found.events == wanted.events, f"{who} has {found.events:,} events of {wanted.events:,}"
    assert found.next_number == wanted.next_number, f"{who} has others under some keys"
    assert found.transactions == wanted.transactions, f"{who} has others of some transactions"
