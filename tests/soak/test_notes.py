"""The judge of the soak detects violations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nadi.client import Checkpoint
from nadi.model.streamcut import StreamCut
from tests.soak.notes import Ended, Note, Notes, judge

SEGMENT = "soak/events/0.#epoch.0"
READ = [Note(10 * n, "a.0" if n < 5 else "b.1", SEGMENT, 100 * n, n % 2, n // 2) for n in range(10)]
WRITTEN = {(note.key, note.sequence): (note.segment, note.offset) for note in READ}


def notes(events: list[Note], **more: object) -> Notes:
    made = Notes(sorted(events, key=lambda note: note.time_ns))
    for name, value in more.items():
        setattr(made, name, value)
    return made


def again(note: Note) -> Note:
    return replace(note, reader="c.2", time_ns=note.time_ns + 1)


def test_a_good_run() -> None:
    judgement = judge(notes(READ), WRITTEN, {}, [])
    assert (judgement.events, judgement.read_twice, judgement.in_gaps) == (10, 0, 0)
    judgement = judge(notes(READ[:-1], gaps=[(SEGMENT, 900, -1)]), WRITTEN, {}, [])
    assert judgement.in_gaps == 1
    dead = {"a.0": Ended(45, {SEGMENT: 300})}
    assert judge(notes([*READ, again(READ[4])]), WRITTEN, dead, []).read_twice == 1


@pytest.mark.parametrize(
    ("events", "ended", "what"),
    [
        (READ[:-1], {}, "never read"),
        ([*READ, again(READ[4])], {}, "read again"),
        ([*READ, again(READ[2])], {"a.0": Ended(45, {SEGMENT: 300})}, "read again"),
        ([*READ, replace(READ[0], time_ns=1)], {"a.0": Ended(45, None)}, "twice"),
        ([*READ[:4], replace(READ[4], time_ns=75), *READ[5:]], {}, "first read after"),
        ([*READ[:2], replace(READ[2], time_ns=45), *READ[3:]], {}, "came to its reader after"),
        ([*READ, replace(READ[0], sequence=99)], {}, "never written"),
    ],
)
def test_violations_are_detected(events: list[Note], ended: dict[str, Ended], what: str) -> None:
    with pytest.raises(AssertionError, match=what):
        judge(notes(events), WRITTEN, ended, [])


@pytest.mark.parametrize(
    ("offset", "what"), [(300, "read past"), (200, "read past"), (500, "again after"), (400, None)]
)
def test_checkpoint_that_is_not_a_boundary_is_detected(offset: int, what: str | None) -> None:
    checkpoint = Checkpoint("c", {"soak/events": StreamCut("soak", "events", {0: offset})})
    passed = notes(READ, passed={"c": {"a.0": 35}})
    if what is None:
        assert judge(passed, WRITTEN, {}, [(1000, checkpoint)]).checkpoints == 1
        return
    with pytest.raises(AssertionError, match=what):
        judge(passed, WRITTEN, {}, [(1000, checkpoint)])
    judge(passed, WRITTEN, {"a.0": Ended(900, None)}, [(1000, checkpoint)])  # it ended before the checkpoint
