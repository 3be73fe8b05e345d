"""The judge of a key's calls accepts whatever a real table does, and nothing that is impossible."""

from __future__ import annotations

import itertools
import random

import pytest

from .linear import ABSENT, Call, NotLinearError, Register


def history(seed: int, calls: int = 60) -> Register:
    """Generate calls on a real key: each takes effect at a moment within it, and some get no reply."""
    chance, register = random.Random(seed), Register("key")
    versions, values = itertools.count(1), itertools.count(1)
    now, state, value, known = 0.0, ABSENT, b"", [ABSENT]
    for _ in range(calls):
        now += chance.random()
        kind = chance.choice(["get", "put", "put", "remove"])
        expected = chance.choice(known[-3:])
        if kind == "remove" and expected == ABSENT:
            kind = "get"
        call = Call(kind, expected, f"{next(values)}".encode() if kind == "put" else b"", now - 2 * chance.random())
        register.calls.append(call)
        ends, is_lost = now + 2 * chance.random(), chance.random() < 0.2
        if is_lost and chance.random() < 0.5:
            continue  # it never took effect
        if kind == "get":
            if not is_lost:
                call.end(ends, state, value)
                known.append(state)
        elif state != expected:
            if not is_lost:
                call.refuse(ends)
        else:
            state, value = (next(versions), call.value) if kind == "put" else (ABSENT, b"")
            if not is_lost:
                call.end(ends, state if kind == "put" else None)
                known.append(state)
    return register


@pytest.mark.parametrize("first", range(0, 2_000, 500))
def test_real_table_calls_pass(first: int) -> None:
    states = [history(seed).check() for seed in range(first, first + 500)]
    assert max(states) > 10


def test_wrong_read_among_many_is_detected() -> None:
    detected = tried = 0
    for seed in range(300):
        register, chance = history(seed), random.Random(seed)
        reads = [call for call in register.calls if call.kind == "get" and call.is_known]
        last = reads[-1]
        stale = [call for call in reads if call.version != last.version and call.ended < last.began - 5.0]
        if not stale:
            continue
        tried += 1
        old = chance.choice(stale)
        last.version, last.value = old.version, old.value
        try:
            register.check()
        except NotLinearError:
            detected += 1
    assert tried > 100
    assert detected > 0.8 * tried, "most are detected: an absent key may be absent again"


Step = tuple[str, float, float, int, int | None, bytes]  # kind, start, end, expected, version, value

REFUSED = -2
FIRST: Step = ("put", 0, 1, ABSENT, 1, b"a")


def made(*steps: Step) -> Register:
    """Make a register. A put or remove with version None gets no reply; with version -2 it fails."""
    register = Register("key")
    for kind, began, ended, expected, version, value in steps:
        if kind == "get":
            register.begin(kind, began).end(ended, version, value)
            continue
        call = register.begin(kind, began, expected, value)
        if version == REFUSED:
            call.refuse(ended)
        elif kind == "remove" and version is not None:
            call.end(ended)
        elif version is not None:
            call.end(ended, version)
    return register


@pytest.mark.parametrize(
    "steps",
    [
        [FIRST, ("put", 2, 3, 1, 2, b"b"), ("get", 2.5, 4, 0, 1, b"a")],
        [FIRST, ("get", 2, 3, 0, ABSENT, b""), ("remove", 1.5, 9, 1, None, b"")],
        [FIRST, ("put", 2, 3, 1, REFUSED, b"r"), ("put", 2, 3, 1, None, b"b")],
        [FIRST, ("put", 2, 3, 1, None, b"b"), ("get", 6, 7, 0, 2, b"b")],
    ],
    ids=[
        "a read during a put",
        "a remove without an answer",
        "a refusal for an unanswered put",
        "seen though unanswered",
    ],
)
def test_possible_calls_pass(steps: list[Step]) -> None:
    made(*steps).check()


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([FIRST, ("put", 2, 5, 1, 2, b"b"), ("put", 2, 5, 1, 3, b"c")], "is lost"),
        ([FIRST, ("put", 2, 3, 1, 2, b"b"), ("get", 3.5, 4, 0, 1, b"a")], "took effect before"),
        ([("get", 0, 1, 0, 1, b"a"), ("put", 2, 3, ABSENT, 1, b"a")], "took effect before"),
        ([("get", 0, 1, 0, 1, b"a")], "never put"),
        ([FIRST, ("get", 2, 3, 0, ABSENT, b"")], "did not exist"),
        ([FIRST, ("put", 2, 3, 1, REFUSED, b"r")], "did not exist"),
        ([FIRST, ("put", 0, 1, ABSENT, 1, b"b")], "have the same version"),
        ([FIRST, ("remove", 2, 3, 1, 0, b""), ("remove", 2, 3, 1, 0, b"")], "removed the same"),
        ([FIRST, ("get", 2, 3, 0, 2, b"a")], "saw the version"),
        ([FIRST, ("remove", 2, 3, 1, 0, b""), ("put", 4, 5, 1, 2, b"b")], "had removed"),
        ([FIRST, ("put", 4, 5, ABSENT, 2, b"b")], "expecting no entry"),
        (
            [FIRST, ("put", 2, 3, 1, None, b"b"), ("get", 6, 7, 0, 2, b"b"), ("get", 8, 9, 0, 1, b"a")],
            "took effect before",
        ),
    ],
)
def test_impossible_calls_are_detected(steps: list[Step], message: str) -> None:
    with pytest.raises(NotLinearError, match=message):
        made(*steps).check()
