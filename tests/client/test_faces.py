"""The two faces of the client are one: what one can do the other can, by the same names and arguments, and says so."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest

import nadi.client as blocking
from nadi.client import aio

# What the asyncio face alone has: files are another interface; a plain call waits for room by itself where threads are.
OTHER_FORM = {"ByteStreamReader", "ByteStreamWriter"}
WAIT_FOR_ROOM = {"ready", "write", "write_many"}
INSIDE = {  # what the parts of the client call of each other
    "adopt",
    "block_in_hand",
    "end_event_streams",
    "end_structures",
    "is_closed",
    "lend_to",
    "look",
    "narrowed",
    "next_ready",
    "nothing_for",
    "on_sealed",
    "pending_acks",
    "schedule",
    "segment_ids",
    "settle",
    "slices",
    "spawn",
    "stop",
    "time_window_at",
    "unacknowledged",
}
PLAIN = {"name", "scope", "stream"}  # of themselves
RECORDS = {"revisioned_stream"}  # what shared state is made of
FILES = {"create_byte_writer"}  # a file's methods can't take a time-out, so it is given when one is opened


def shared_classes() -> list[str]:
    names = set(blocking.__all__) & set(aio.__all__)
    return sorted(n for n in names if getattr(blocking, n) is not getattr(aio, n) and inspect.isclass(getattr(aio, n)))


def methods(kind: type) -> Iterator[tuple[str, object]]:
    for name, member in inspect.getmembers(kind):
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
            yield name, member


@pytest.mark.parametrize("name", [n for n in shared_classes() if n not in OTHER_FORM])
def test_both_faces_can_do_the_same(name: str) -> None:
    here, there = dict(methods(getattr(blocking, name))), dict(methods(getattr(aio, name)))
    missing = there.keys() - here.keys() - WAIT_FOR_ROOM - INSIDE - RECORDS
    if name == "StreamManager":
        missing |= {"slices", "table"} - here.keys()
    assert not missing
    for method in here.keys() & there.keys() - FILES:
        one, other = here[method], there[method]
        if inspect.isfunction(one) and inspect.isfunction(other):
            assert arguments(one) == arguments(other), method


def arguments(function: object) -> list[tuple[str, object, object]]:
    parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    return [(p.name, p.kind, p.default) for p in parameters]


# These wait for more than the server's answer: readers that pass a checkpoint, what is merged or scaled, data.
WAIT_FOR_OTHERS = {
    "abort",
    "commit",
    "create_byte_reader",
    "generate_stream_cuts",
    "initiate_checkpoint",
    "scale_stream",
    "stream_cuts_on_condition",
}


@pytest.mark.parametrize("name", shared_classes())
def test_a_time_that_is_not_given_is_the_clients(name: str) -> None:
    """One rule: no call has a time of its own for a server that doesn't answer."""
    own = {
        method
        for method, function in methods(getattr(aio, name))
        if inspect.isfunction(function)
        for parameter, _, default in arguments(function)
        if parameter == "timeout" and default not in (None, inspect.Parameter.empty)
    }
    assert own - WAIT_FOR_OTHERS <= {"close"}  # a reader's, which leaves its group


@pytest.mark.parametrize("face", [blocking, aio])
def test_whatever_a_user_calls_says_what_it_does(face: object) -> None:
    silent = []
    for name in face.__all__:  # type: ignore[attr-defined]
        kind = getattr(face, name)
        if inspect.isclass(kind):
            own = [m for n, m in methods(kind) if n not in INSIDE | PLAIN]
            silent += [f"{name}: {method}" for method in own if not inspect.getdoc(method)]
            silent += [] if kind.__doc__ else [name]
    assert not silent
