"""What judges would say of servers that lose, double and reorder, and the figures of a story."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.cluster.judges.judge import Transcript, check_same
from tests.cluster.processes.client import Promised
from tests.cluster.processes.history import check
from tests.crash.load import Ledger

READ = ["w1-0:0:", "w1-1:0:", "t1-0:1:0:commit:", "w1-0:1:", "t1-0:1:1:commit:", "t1-0:3:0:commit:"]


def ledger(events: Iterable[str]) -> Ledger:
    found = Ledger()
    for event in events:
        found.take(event.encode())
    return found


def promised() -> Promised:
    return Promised(
        written={"w1-0": 3, "w1-1": 1},
        acknowledged={"w1-0": 2, "w1-1": 1},
        committed={1: {1: {"t1-0": 2}}},
        uncertain={1: {3: {"t1-0": 1}, 4: {"t1-0": 2}}},
    )


def test_what_is_as_it_was_promised() -> None:
    check(ledger(READ), 0, [promised()])


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (lambda read: [one for one in read if one != "w1-0:1:"], "w1-0: 2 acknowledged, 1 found"),
        (lambda read: [*read, "w1-0:2:", "w1-0:3:"], "2 acknowledged, 4 found of 3"),
        (
            lambda read: [one for one in read if one != "t1-0:1:1:commit:"],
            "transaction 1 of 1 was committed and is not",
        ),
        (lambda read: [*read, "t1-0:4:0:commit:"], "transaction 4 of 1 is there in part"),
        (lambda read: [*read, "t1-0:5:0:commit:"], r"transactions \[5\] of 1 were never committed"),
        (lambda read: [*read, "w7-0:0:"], r"under \['w7-0'\], and nobody wrote them"),
    ],
)
def test_what_is_not(changed: Callable[[list[str]], list[str]], says: str) -> None:
    with pytest.raises(AssertionError, match=says):
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
def test_a_transcript_that_can_not_be(tmp_path: Path, more: str, says: str) -> None:
    file = tmp_path / "read"
    transcript = Transcript(file, "a reader")
    transcript.take()  # nothing is there yet
    file.write_text("\n".join(READ) + "\nw1-1:")  # the last line isn't whole
    transcript.take()
    assert transcript.ledger.events == len(READ)
    with file.open("a") as out:
        out.write(f"1:\n{more}\n")
    with pytest.raises(AssertionError, match=f"a reader has read what can't be: .*{says}"):
        transcript.take()


def test_a_reader_that_misses_something_or_has_something_else(tmp_path: Path) -> None:
    file = tmp_path / "read"
    file.write_text("\n".join(READ[:-1]) + "\n")
    transcript = Transcript(file, "a reader")
    transcript.take()
    with pytest.raises(AssertionError, match="has 5 of 6 events"):
        transcript.await_all(ledger(READ), 0.3)
    for other, what in (("w1-1:1:", "under some keys"), ("t1-0:2:0:commit:", "of some transactions")):
        with pytest.raises(AssertionError, match=what):
            check_same(
                ledger([*READ[:-1], other]), ledger(READ if what.startswith("of") else [*READ[:-1], "w1-0:2:"]), ""
            )
    check_same(ledger(READ), ledger(READ), "a reader")
