"""Verifiers detect lost, duplicated and reordered events."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.cluster.foreign_clients.verifier import Transcript, check_same
from tests.cluster.processes.client import Promised
from tests.cluster.processes.history import check
from tests.crash.load import Ledger

READ = ["w1-0:0:", "w1-1:0:", "t1-0:1:0:commit:", "w1-0:1:", "t1-0:1:1:commit:", "t1-0:3:0:commit:"]


def ledger(events: Iterable[str]) -> Ledger:
    taken = Ledger()
    for event in events:
        taken.take(event.encode())
    return taken


def promised() -> Promised:
    return Promised(
        written={"w1-0": 3, "w1-1": 1},
        acknowledged={"w1-0": 2, "w1-1": 1},
        committed={1: {1: {"t1-0": 2}}},
        uncertain={1: {3: {"t1-0": 1}, 4: {"t1-0": 2}}},
    )


def test_check_accepts_consistent_history() -> None:
    check(ledger(READ), 0, [promised()])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (lambda read: [event for event in read if event != "w1-0:1:"], "w1-0: 2 acknowledged, 1 found"),
        (lambda read: [*read, "w1-0:2:", "w1-0:3:"], "2 acknowledged, 4 found of 3"),
        (
            lambda read: [event for event in read if event != "t1-0:1:1:commit:"],
            "transaction 1 of 1 was committed",
        ),
        (lambda read: [*read, "t1-0:4:0:commit:"], "transaction 4 of 1"),
        (lambda read: [*read, "t1-0:5:0:commit:"], r"transactions \[5\] of 1"),
        (lambda read: [*read, "w7-0:0:"], r"under \['w7-0'\]"),
    ],
)
def test_check_rejects_inconsistent_history(changed: Callable[[list[str]], list[str]], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check(ledger(changed(READ)), 0, [promised()])


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("w1-0:1:", "a duplicate or out of order"),
        ("w1-0:3:", "events are missing before it"),
        ("t1-0:1:1:commit:", "of its transactions after"),
        ("t1-0:4:0:abort:", "was aborted and is in the stream"),
    ],
)
def test_transcript_rejects_invalid_events(tmp_path: Path, more: str, says: str) -> None:
    file = tmp_path / "read"
    transcript = Transcript(file, "a reader")
    transcript.take()  # the file doesn't exist yet
    file.write_text("\n".join(READ) + "\nw1-1:")  # the last line is incomplete
    transcript.take()
    assert transcript.ledger.events == len(READ)
    with file.open("a") as out:
        out.write(f"1:\n{more}\n")
    with pytest.raises(AssertionError, match=f"a reader .*{says}"):
        transcript.take()


def test_transcript_detects_missing_and_different_events(tmp_path: Path) -> None:
    file = tmp_path / "read"
    file.write_text("\n".join(READ[:-1]) + "\n")
    transcript = Transcript(file, "a reader")
    transcript.take()
    with pytest.raises(AssertionError, match="has 5 of 6 events"):
        transcript.await_all(ledger(READ), 0.3)
    for other, what in (("w1-1:1:", "keys"), ("t1-0:2:0:commit:", "transactions")):
        with pytest.raises(AssertionError, match=what):
            check_same(
                ledger([*READ[:-1], other]), ledger(READ if what == "transactions" else [*READ[:-1], "w1-0:2:"]), ""
            )
    check_same(ledger(READ), ledger(READ), "a reader")
