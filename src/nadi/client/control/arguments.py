"""Check the arguments of public methods against their annotations.

`@checked` decorates the classes of the asyncio client, which the blocking client calls, and the values that callers
create. It reads the annotations at the first call and checks before a method runs that

- scopes and streams are valid names: InvalidNameError;
- a StreamCut is a StreamCut: InvalidStreamCutError;
- a `float` is a time in seconds, 0 or more; None, where accepted, means the client's timeout or no limit;
- anything else is an instance of the annotated class, and True isn't a number.

The method itself checks more than a value's type. Methods called for each event have their own checks and are listed
in `without`.
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
_INTERNAL = "stores"  # passed within the client, never by callers
_INT_END = 1 << 63
_SURROGATE = re.compile("[\ud800-\udfff]")  # UTF-8 can't encode lone surrogates
_WORDS: dict[Any, str] = {str: "a string", int: "an integer", bool: "True or False", bytes: "bytes"}
_WORDS |= {Iterable: "a list of values", Sequence: "a list of values", Callable: "a function", Mapping: "a mapping"}
_WORDS |= {StreamCut: "a StreamCut", datetime: "a datetime with a time zone"}


def check_seconds(seconds: object, name: str = "a timeout") -> None:
    """Raise InvalidArgumentError unless `seconds` is a valid time to wait: not negative, not NaN, not too long."""
    if not isinstance(seconds, bool) and isinstance(seconds, int | float) and 0 <= seconds <= threading.TIMEOUT_MAX:
        return
    raise InvalidArgumentError(f"{name} must be a number of seconds, 0 or more, not {_shown(seconds)}")


def check_timeout(timeout: object) -> None:
    """Raise InvalidArgumentError unless `timeout` is None or a valid time to wait."""
    if timeout is not None:
        check_seconds(timeout)


def check_ack_timeout(seconds: object) -> None:
    """Raise InvalidArgumentError unless `seconds` is a valid time to wait above 0."""
    check_seconds(seconds, "ack_timeout")
    if not seconds:
        raise InvalidArgumentError("ack_timeout must be more than 0 s")


def check_strings(values: Iterable[str], name: str) -> tuple[str, ...]:
    """Return the strings; raise InvalidArgumentError for a single string, which would be split into its letters."""
    is_list = isinstance(values, Iterable) and not isinstance(values, str)
    texts = tuple(values) if is_list else ()
    if not is_list or not all(isinstance(text, str) for text in texts):
        raise InvalidArgumentError(f"{name} must be a list of strings, not {values!r}")
    return texts


def check_is_cut(cut: object) -> None:
    """Raise InvalidStreamCutError unless `cut` is a StreamCut, of any stream."""
    if not isinstance(cut, StreamCut):
        raise InvalidStreamCutError(f"{str(cut)[:60]!r} is not a StreamCut: make one with the stream's `cuts`")


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
    """Return the function with its arguments checked; the first call reads its annotations."""
    code = function.__code__
    names = {*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]} - {"self", "cls"}
    takes_any = names or code.co_flags & inspect.CO_VARKEYWORDS
    return cast("_Function", _checking(function)) if takes_any else function


def _checking(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.cache
    def read() -> tuple[list[_Check | None], dict[str, _Check]]:
        checks = _checks(function)
        return [checks.get(name) for name in inspect.signature(function).parameters], checks

    def check(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        positional, checks = read()
        for check, value in zip(positional, args, strict=False):  # Python itself rejects extra arguments
            if check is not None:
                check(value)
        for name, value in kwargs.items():
            if name in checks:
                checks[name](value)

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def async_call(*args: Any, **kwargs: Any) -> Any:
            check(args, kwargs)
            return await function(*args, **kwargs)

        return async_call

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        check(args, kwargs)
        return function(*args, **kwargs)

    return call


def _checks(function: Callable[..., Any]) -> dict[str, _Check]:
    parameters = inspect.signature(function).parameters
    by_name: dict[str, _Check | None] = {}
    for name, parameter in parameters.items():
        annotation = parameter.annotation
        if parameter.kind is parameter.VAR_KEYWORD and str(annotation).startswith("Unpack["):
            options = get_type_hints(function.__globals__[annotation[len("Unpack[") : -1]])
            by_name |= {option: _check_of(option, None, kind, function) for option, kind in options.items()}
        elif isinstance(annotation, str) and name != _INTERNAL:
            try:
                kind = eval(annotation, function.__globals__)
            except NameError:  # imported for type checkers only
                continue
            named = _NAMES.get(name) if "scope" in parameters else None  # without a scope it may be `scope/stream`
            by_name[name] = _check_of(name, named, kind, function)
    return {name: check for name, check in by_name.items() if check is not None}


def _check_of(name: str, named: str | None, annotated: Any, function: Callable[..., Any]) -> _Check | None:
    """Return the check of an argument; None if one of its types isn't a class but, for example, a type variable."""
    kinds = _kinds(annotated)
    if any(kind is None for kind in kinds):
        return None
    if bytes in kinds and len(kinds) > 1 and type(None) not in kinds:
        return None  # a table's keys, which `table_bytes` checks
    takes_none = type(None) in kinds
    kinds = [kind for kind in kinds if kind is not type(None)]
    label = f"{function.__name__}: {name}" if function.__name__ != "__init__" else name

    def check(value: Any) -> None:
        if value is None and takes_none:
            return
        if named is not None and kinds == [str]:
            check_name(named, value, internal=True)
        elif kinds == [float]:
            check_seconds(value, label)
        elif kinds == [StreamCut]:
            check_is_cut(value)
        elif not any(_is_a(value, kind) for kind in kinds):
            words = " or ".join(_WORDS.get(kind, kind.__name__) for kind in kinds if kind is not None)
            raise InvalidArgumentError(f"{label} must be {words}, not {_shown(value)}")
        if isinstance(value, int) and not -_INT_END <= value < _INT_END:
            raise InvalidArgumentError(f"{label} must be a 64-bit integer, not {_shown(value)}")
        if isinstance(value, str) and _SURROGATE.search(value):
            raise InvalidArgumentError(f"{label} must be a string without lone surrogates, not {_shown(value)}")

    return check


def _kinds(annotated: Any) -> list[type | None]:
    """Return the classes of an annotation, with None for a member that isinstance can't check."""
    origin = get_origin(annotated) or annotated
    if origin in (Union, UnionType):
        return [kind for member in get_args(annotated) for kind in _kinds(member)]
    if origin is None:
        return [type(None)]
    is_static = getattr(origin, "_is_protocol", False) and not getattr(origin, "_is_runtime_protocol", False)
    return [None if origin is Any or not isinstance(origin, type) or is_static else origin]


def _is_a(value: object, kind: type | None) -> bool:
    if kind is int:
        return isinstance(value, Integral) and not isinstance(value, bool)
    if kind is bytes:
        return isinstance(value, bytes | bytearray | memoryview)
    if kind is Sequence:  # also accepts a set or an array
        return isinstance(value, Iterable)
    return kind is not None and isinstance(value, kind)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
