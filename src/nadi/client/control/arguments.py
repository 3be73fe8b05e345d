"""What callers give, checked in one place: a method refuses what its signature does not take.

`@checked` stands on the classes of the asyncio face, which the blocking one calls, and on the values that callers
make. It reads the annotations once, when the class is made, and checks before the method runs:

- scopes and streams are names: InvalidNameError;
- StreamCuts are that: InvalidStreamCutError;
- a `float` is a time in seconds, from 0 on; None, where it is taken, is the client's time or for ever;
- anything else is of a class that is named, and True is no number.

What a value must be beyond its type the method says itself. Methods that are called for each event have checks of
their own, and so are named in `without`.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral
from types import UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin

from nadi.errors import InvalidArgumentError, InvalidStreamCutError
from nadi.model.streamcut import StreamCut
from nadi.naming import check_name

_Class = TypeVar("_Class")
_Function = TypeVar("_Function", bound=Callable[..., Any])
_Check = Callable[[Any], None]
_NAMES = {"scope": "scope", "stream": "stream", "table": "key-value table"}
_OWN = "stores"  # handed on within the client, never by callers
_BAR = re.compile(r" \| (?![^\[]*\])")  # between types, not within the brackets of one
_WORDS: dict[Any, str] = {str: "a text", int: "a whole number", bool: "True or False", bytes: "bytes"}
_WORDS |= {Iterable: "several values", Sequence: "several values", Callable: "a function", Mapping: "a mapping"}


def check_seconds(seconds: object, what: str = "a timeout") -> None:
    """InvalidArgumentError unless that is a time to wait: neither negative nor NaN, nor longer than threads can."""
    if not isinstance(seconds, bool) and isinstance(seconds, int | float) and 0 <= seconds <= threading.TIMEOUT_MAX:
        return
    raise InvalidArgumentError(f"{what} is a number of seconds, 0 or more, not {_shown(seconds)}")


def check_timeout(timeout: object) -> None:
    """As `check_seconds`; None is allowed."""
    if timeout is not None:
        check_seconds(timeout)


def check_ack_timeout(seconds: object) -> None:
    """As `check_seconds`, and more than 0."""
    check_seconds(seconds, "an ack_timeout")
    if not seconds:
        raise InvalidArgumentError("what is written gets more than 0 s to be stored, not 0")


def check_is_cut(cut: object) -> None:
    """InvalidStreamCutError unless it is a StreamCut, of whatever stream."""
    if not isinstance(cut, StreamCut):
        raise InvalidStreamCutError(f"{str(cut)[:60]!r} is no StreamCut: make one with the stream's `cuts`")


def checked(*, without: Iterable[str] = ()) -> Callable[[type[_Class]], type[_Class]]:
    """Check what the public methods of a class are given, and what it is made of, but for the methods `without`."""

    def decorate(kind: type[_Class]) -> type[_Class]:
        for name, member in list(vars(kind).items()):
            if (name.startswith("_") and name != "__init__") or name in without:
                continue
            wrap: Any = type(member) if isinstance(member, classmethod | staticmethod) else lambda function: function
            function = getattr(member, "__func__", member)
            if inspect.isfunction(function):
                setattr(kind, name, wrap(checking(function)))
        return kind

    return decorate


def checking(function: _Function) -> _Function:
    """One function that checks what it is given."""
    checks = _checks(function)
    if not checks:
        return function
    return cast("_Function", _checking(function, checks))


def _checking(function: Callable[..., Any], checks: dict[str, _Check]) -> Callable[..., Any]:
    by_place = [checks.get(name) for name in inspect.signature(function).parameters]

    def check(args: tuple[Any, ...], given: dict[str, Any]) -> None:
        for check, value in zip(by_place, args, strict=False):  # too many are Python's own complaint
            if check is not None:
                check(value)
        for name, value in given.items():
            if name in checks:
                checks[name](value)

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def answer(*args: Any, **given: Any) -> Any:
            check(args, given)
            return await function(*args, **given)

        return answer

    @functools.wraps(function)
    def call(*args: Any, **given: Any) -> Any:
        check(args, given)
        return function(*args, **given)

    return call


def _checks(function: Callable[..., Any]) -> dict[str, _Check]:
    found = {}
    parameters = inspect.signature(function).parameters
    for name, parameter in parameters.items():
        if isinstance(parameter.annotation, str) and name != _OWN:
            named = _NAMES.get(name) if "scope" in parameters else None  # else it may be said as `scope/stream`
            check = _check_of(name, named, _BAR.split(parameter.annotation), function)
            if check is not None:
                found[name] = check
    return found


def _check_of(name: str, named: str | None, types: Sequence[str], function: Callable[..., Any]) -> _Check | None:
    """None if any of the types is no class, as a type variable: then anything may be right."""
    kinds = [kind for text in types for kind in _kinds(text, function)]
    if any(kind is None for kind in kinds):
        return None
    if bytes in kinds and len(kinds) > 1 and type(None) not in kinds:
        return None  # a table's keys, which `table_bytes` looks at
    takes_none = type(None) in kinds
    kinds = [kind for kind in kinds if kind is not type(None)]
    what = f"{function.__name__}: {name}" if function.__name__ != "__init__" else name

    def check(value: Any) -> None:
        if value is None and takes_none:
            return
        if named is not None and kinds == [str]:
            check_name(named, value, internal=True)
        elif kinds == [float]:
            check_seconds(value, what)
        elif kinds == [StreamCut]:
            check_is_cut(value)
        elif not any(_is_a(value, kind) for kind in kinds):
            words = " or ".join(_WORDS.get(kind, kind.__name__) for kind in kinds if kind is not None)
            raise InvalidArgumentError(f"{what} is {words}, not {_shown(value)}")

    return check


def _kinds(text: str, function: Callable[..., Any]) -> list[type | None]:
    """The class that an annotation names, or the classes of a union's name; None for something else."""
    if text == "None":
        return [type(None)]
    first, *rest = text.partition("[")[0].split(".")
    found: Any = function.__globals__.get(first, getattr(builtins, first, None))
    for part in rest:
        found = getattr(found, part, None)
    members = get_args(found) if get_origin(found) in (Union, UnionType) else [found]
    return [_class_of(member) for member in members]


def _class_of(found: Any) -> type | None:
    found = get_origin(found) or found
    if found is Any or not isinstance(found, type) or _is_no_test(found):
        return None
    return found


def _is_no_test(kind: type) -> bool:
    """Whether it is a Protocol that Python does not look for in an object."""
    return getattr(kind, "_is_protocol", False) and not getattr(kind, "_is_runtime_protocol", False)


def _is_a(value: object, kind: type | None) -> bool:
    if kind is int:
        return isinstance(value, Integral) and not isinstance(value, bool)
    if kind is bytes:
        return isinstance(value, bytes | bytearray | memoryview)
    if kind is Sequence:  # a set or an array will do
        return isinstance(value, Iterable)
    return kind is not None and isinstance(value, kind)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
