"""Whether the judge of a key's calls lets pass what a real table does, and nothing that it never may."""

from __future__ import annotations

import itertools
import random

import pytest

from .linear import ABSENT, Call, NotLinearError, Register


def history(seed: int, calls: int = 60) -> Register:
    """What clients of a real key may see: each call takes effect at a moment within it, and some get no answer."""
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
def test_what_a_real_table_does_passes(first: int) -> None:
    states = [history(seed).check() for seed in range(first, first + 500)]
    assert max(states) > 10


def test_a_wrong_read_among_many_is_told() -> None:
    told = tried = 0
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
            told += 1
    assert tried > 100
    assert told > 0.8 * tried, "most: an absent key may be absent again"


def put(register: Register, began: float, ended: float, expected: int, version: int | None, value: bytes) -> Call:
    call = register.begin("put", began, expected, value)
    if version is not None:
        call.end(ended, version)
    return call


def get(register: Register, began: float, ended: float, version: int, value: bytes = b"") -> None:
    register.begin("get", began).end(ended, version, value)


def refused(register: Register, began: float, ended: float, expected: int) -> None:
    register.begin("put", began, expected, b"refused").refuse(ended)


def test_a_lost_update_is_told() -> None:
    register = Register("key")
    put(register, 0, 1, ABSENT, 1, b"a")
    put(register, 2, 5, 1, 2, b"b")
    put(register, 2, 5, 1, 3, b"c")
    with pytest.raises(NotLinearError, match="that is lost"):
        register.check()


def test_a_stale_read_is_told() -> None:
    for began, is_right in ((2.5, True), (3.5, False)):
        register = Register("key")
        put(register, 0, 1, ABSENT, 1, b"a")
        put(register, 2, 3, 1, 2, b"b")
        get(register, began, 4, 1, b"a")
        if is_right:
            register.check()
        else:
            with pytest.raises(NotLinearError, match="before what others had seen"):
                register.check()


def test_a_value_read_before_it_was_put_is_told() -> None:
    register = Register("key")
    get(register, 0, 1, 1, b"a")
    put(register, 2, 3, ABSENT, 1, b"a")
    with pytest.raises(NotLinearError, match="before what others had seen"):
        register.check()


def test_what_nobody_put_is_told() -> None:
    register = Register("key")
    get(register, 0, 1, 1, b"a")
    with pytest.raises(NotLinearError, match="nobody put"):
        register.check()


def test_a_key_that_is_gone_though_nobody_removed_it_is_told() -> None:
    register = Register("key")
    put(register, 0, 1, ABSENT, 1, b"a")
    get(register, 2, 3, ABSENT)
    with pytest.raises(NotLinearError, match="what was not there"):
        register.check()
    register.begin("remove", 1.5, 1)  # which got no answer
    register.check()


def test_a_refusal_without_a_reason_is_told() -> None:
    register = Register("key")
    put(register, 0, 1, ABSENT, 1, b"a")
    refused(register, 2, 3, 1)
    with pytest.raises(NotLinearError, match="what was not there"):
        register.check()
    put(register, 2, 3, 1, None, b"b")  # that got no answer
    register.check()


def test_two_that_made_the_same_version_or_removed_it_are_told() -> None:
    register = Register("key")
    put(register, 0, 1, ABSENT, 1, b"a")
    put(register, 0, 1, ABSENT, 1, b"b")
    with pytest.raises(NotLinearError, match="have the same version"):
        register.check()
    register = Register("key")
    put(register, 0, 1, ABSENT, 1, b"a")
    for _ in range(2):
        register.begin("remove", 2, 1).end(3)
    with pytest.raises(NotLinearError, match="removed the same"):
        register.check()


def test_a_value_that_came_twice_is_told() -> None:
    register = Register("key")
    put(register, 0, 1, ABSENT, 1, b"a")
    get(register, 2, 3, 2, b"a")
    with pytest.raises(NotLinearError, match="saw the version"):
        register.check()


def test_a_put_over_what_was_removed_is_told() -> None:
    register = Register("key")
    put(register, 0, 1, ABSENT, 1, b"a")
    register.begin("remove", 2, 1).end(3)
    put(register, 4, 5, 1, 2, b"b")
    with pytest.raises(NotLinearError, match="had removed"):
        register.check()


def test_a_put_as_if_nothing_were_there_is_told() -> None:
    register = Register("key")
    put(register, 0, 1, ABSENT, 1, b"a")
    put(register, 4, 5, ABSENT, 2, b"b")
    with pytest.raises(NotLinearError, match="as if nothing were there"):
        register.check()


def test_a_put_without_an_answer_that_is_seen_has_happened() -> None:
    register = Register("key")
    put(register, 0, 1, ABSENT, 1, b"a")
    put(register, 2, 3, 1, None, b"b")
    get(register, 6, 7, 2, b"b")
    register.check()
    get(register, 8, 9, 1, b"a")
    with pytest.raises(NotLinearError, match="before what others had seen"):
        register.check()
