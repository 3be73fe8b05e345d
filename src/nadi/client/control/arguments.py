"""Arguments, checked in one place: a method refuses whatever its signature does not accept.

`@checked` decorates the classes of the asyncio client, which the blocking one calls, and the values that callers
create. It reads the annotations once, at the first call, and checks before a method runs that

- scopes and streams are valid names: InvalidNameError;
- a StreamCut is a StreamCut: InvalidStreamCutError;
- a `float` is a time in seconds, 0 or more; None, where accepted, means the client's timeout or forever;
- anything else is an instance of the annotated class, and True isn't a number.

Anything beyond a value's type is checked by the method itself. Methods called for each event have their own checks,
and so are named in `without`.
"""

from __future__ import annotations

import functools
import inspect
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from numbers import Integral
from types import UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from nadi.errors import InvalidArgumentError, InvalidStreamCutError
from nadi.model.streamcut import StreamCut
from nadi.naming import check_name

_Class = TypeVar("_Class")
_Function = TypeVar("_Function", bound=Callable[..., Any])
_Check = Callable[[Any], None]
_NAMES = {"scope": "scope", "stream": "stream", "table": "key-value table"}
_OWN = "stores"  # passed within the client, never by callers
_INT_END = 1 << 63
_HALF = re.compile("[\ud800-\udfff]")  # of a surrogate pair: UTF-8 has none
_WORDS: dict[Any, str] = {str: "a text", int: "a whole number", bool: "True or False", bytes: "bytes"}
_WORDS |= {Iterable: "several values", Sequence: "several values", Callable: "a function", Mapping: "a mapping"}
_WORDS |= {StreamCut: "a cut", datetime: "a time with a zone"}


def check_seconds(seconds: object, what: str = "a timeout") -> None:
    """Raise InvalidArgumentError unless threads can wait that long: not negative, not NaN, not too long."""
    if not isinstance(seconds, bool) and isinstance(seconds, int | float) and 0 <= seconds <= threading.TIMEOUT_MAX:
        return
    raise InvalidArgumentError(f"{what} is a number of seconds, 0 or more, not {_shown(seconds)}")


def check_timeout(timeout: object) -> None:
    """Like `check_seconds`, but None is allowed."""
    if timeout is not None:
        check_seconds(timeout)


def check_ack_timeout(seconds: object) -> None:
    """Like `check_seconds`, but 0 isn't allowed."""
    check_seconds(seconds, "an ack_timeout")
    if not seconds:
        raise InvalidArgumentError("what is written gets more than 0 s to be stored, not 0")


def several_texts(given: Iterable[str], what: str) -> tuple[str, ...]:
    """The texts; InvalidArgumentError for a single one, whose letters would be taken for several."""
    is_several = isinstance(given, Iterable) and not isinstance(given, str)
    texts = tuple(given) if is_several else ()
    if not is_several or not all(isinstance(text, str) for text in texts):
        raise InvalidArgumentError(f"{what} are a list of texts, not {given!r}")
    return texts


def check_is_cut(cut: object) -> None:
    """Raise InvalidStreamCutError unless it is a StreamCut, of any stream."""
    if not isinstance(cut, StreamCut):
        raise InvalidStreamCutError(f"{str(cut)[:60]!r} is no StreamCut: make one with the stream's `cuts`")


def checked(*, without: Iterable[str] = ()) -> Callable[[type[_Class]], type[_Class]]:
    """Check the arguments of a class's public methods and of its constructor, except for the methods `without`."""

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
    """Return the function with its arguments checked; its annotations are read at its first call."""
    code = function.__code__
    names = {*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]} - {"self", "cls"}
    takes_any = names or code.co_flags & inspect.CO_VARKEYWORDS
    return cast("_Function", _checking(function)) if takes_any else function


def _checking(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.cache
    def read() -> tuple[list[_Check | None], dict[str, _Check]]:
        checks = _checks(function)
        return [checks.get(name) for name in inspect.signature(function).parameters], checks

    def check(args: tuple[Any, ...], given: dict[str, Any]) -> None:
        by_place, checks = read()
        for check, value in zip(by_place, args, strict=False):  # Python itself complains if there are too many
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
    parameters = inspect.signature(function).parameters
    found: dict[str, _Check | None] = {}
    for name, parameter in parameters.items():
        annotation = parameter.annotation
        if parameter.kind is parameter.VAR_KEYWORD and str(annotation).startswith("Unpack["):
            options = get_type_hints(function.__globals__[annotation[len("Unpack[") : -1]])
            found |= {option: _check_of(option, None, kind, function) for option, kind in options.items()}
        elif isinstance(annotation, str) and name != _OWN:
            try:
                kind = eval(annotation, function.__globals__)
            except NameError:  # it is imported for checkers alone
                continue
            named = _NAMES.get(name) if "scope" in parameters else None  # else it may be given as `scope/stream`
            found[name] = _check_of(name, named, kind, function)
    return {name: check for name, check in found.items() if check is not None}


def _check_of(name: str, named: str | None, annotated: Any, function: Callable[..., Any]) -> _Check | None:
    """The check of an argument; None if any of its types isn't a class but, say, a type variable: nothing to check."""
    kinds = _kinds(annotated)
    if any(kind is None for kind in kinds):
        return None
    if bytes in kinds and len(kinds) > 1 and type(None) not in kinds:
        return None  # a table's keys, which `table_bytes` checks
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
        if isinstance(value, int) and not -_INT_END <= value < _INT_END:
            raise InvalidArgumentError(f"{what} is a whole number of 64 bits, not {_shown(value)}")
        if isinstance(value, str) and _HALF.search(value):
            raise InvalidArgumentError(f"{what} is a text of whole characters, not {_shown(value)}")

    return check


def _kinds(annotated: Any) -> list[type | None]:
    """The classes of an annotation; None for what is none, or a Protocol that Python doesn't look for in an object."""
    origin = get_origin(annotated) or annotated
    if origin in (Union, UnionType):
        return [kind for member in get_args(annotated) for kind in _kinds(member)]
    if origin is None:
        return [type(None)]
    is_no_test = getattr(origin, "_is_protocol", False) and not getattr(origin, "_is_runtime_protocol", False)
    return [None if origin is Any or not isinstance(origin, type) or is_no_test else origin]


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
