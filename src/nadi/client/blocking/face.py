"""Building blocks of the blocking classes: each declares the methods of its asyncio counterpart, and how to call them.

    class Transaction(Face[aio.Transaction]):
        commit = waits(aio.Transaction.commit)

Signature, defaults, types and documentation come from the asyncio method. Methods that are overloaded, or must be fast
for each event, are written by hand; tests compare their signatures and docstrings with the counterpart's.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from functools import wraps
from operator import attrgetter
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, cast, get_args, get_origin

from nadi.client.control.loop_thread import LoopThread
from nadi.errors import ClosedError

C = TypeVar("C")
C_co = TypeVar("C_co", covariant=True)
P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F")
_ASYNC = re.compile(r"^Async(?:Iterator|Generator)\[(.*?)(?:, None)?\]$")


class Face(Generic[C_co]):
    """An asyncio object and its thread. Subclasses inherit the documentation of the asyncio class."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for base in vars(cls).get("__orig_bases__", ()):
            if issubclass(get_origin(base) or object, Face) and not cls.__doc__:
                (twin,) = get_args(base)
                cls.__doc__ = inspect.getdoc(get_origin(twin) or twin)

    def __init__(self, thread: LoopThread, core: C_co) -> None:
        self._thread, self._core = thread, core


def inside(face: Face[C]) -> tuple[LoopThread, C]:
    """Return the thread and the asyncio object, for other parts of nadi that run in that thread."""
    return face._thread, face._core


class _Closes(Protocol):
    def close(self) -> None: ...


class Closing(Face[C_co]):
    """A face with `close`, which also runs at the end of a `with` block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self: _Closes, *_: object) -> None:
        self.close()


def waits(method: Callable[Concatenate[C, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[Face[C], P], R]:
    """Run a coroutine method in the client's thread, and wait for its result."""
    named = _of_core(method)

    @wraps(method)
    def call(face: Face[C], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return face._thread.run(named(face._core)(*args, **kwargs))

    return call


def opens(
    method: Callable[Concatenate[C, P], Coroutine[Any, Any, R]], face_of: Callable[[LoopThread, R], F]
) -> Callable[Concatenate[Face[C], P], F]:
    """Call like `waits`, and wrap the result in a face."""
    named = _of_core(method)

    @wraps(method)
    def call(face: Face[C], /, *args: P.args, **kwargs: P.kwargs) -> F:
        return face_of(face._thread, face._thread.run(named(face._core)(*args, **kwargs)))

    return _returning(call, method, face_of)


def gives(
    method: Callable[Concatenate[C, P], R], face_of: Callable[[LoopThread, R], F]
) -> Callable[Concatenate[Face[C], P], F]:
    """Call a plain method, and wrap the result in a face."""
    named = _of_core(method)

    @wraps(method)
    def call(face: Face[C], /, *args: P.args, **kwargs: P.kwargs) -> F:
        return face_of(face._thread, named(face._core)(*args, **kwargs))

    return _returning(call, method, face_of)


def on_loop(method: Callable[Concatenate[C, P], R]) -> Callable[Concatenate[Face[C], P], R]:
    """Call a plain method in the client's thread, which owns the state it reads."""
    named = _of_core(method)

    @wraps(method)
    def call(face: Face[C], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return face._thread.result(named(face._core), *args, **kwargs)

    return call


def each(method: Callable[Concatenate[C, P], AsyncIterator[R]]) -> Callable[Concatenate[Face[C], P], Iterator[R]]:
    """Iterate over a method's asynchronous iterator, waiting for each item."""
    named = _of_core(method)

    @wraps(method)
    def call(face: Face[C], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        return face._thread.each(named(face._core)(*args, **kwargs))

    signature = inspect.signature(method)
    returned = _ASYNC.sub(r"Iterator[\1]", signature.return_annotation)
    return _signed(call, signature.replace(return_annotation=returned))


def same(method: Callable[Concatenate[C, P], R]) -> Callable[Concatenate[Face[C], P], R]:
    """Call the asyncio object's method in the caller's thread, without overhead."""
    named = _of_core(method)

    @wraps(method)
    def call(face: Face[C], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return named(face._core)(*args, **kwargs)

    return cast("Callable[Concatenate[Face[C], P], R]", _Same(call))


def ends(close: Callable[Concatenate[Face[C], P], None]) -> Callable[Concatenate[Face[C], P], None]:
    """Make `close` do nothing after the client was closed, which has closed the object, too."""

    @wraps(close)
    def call(face: Face[C], /, *args: P.args, **kwargs: P.kwargs) -> None:
        with suppress(ClosedError):
            close(face, *args, **kwargs)

    return call


def by_hand(
    method: Callable[Concatenate[C, P], Coroutine[Any, Any, R]],
) -> Callable[[Callable[Concatenate[F, P], R]], Callable[Concatenate[F, P], R]]:
    """Mark a method rewritten for speed, with the signature and documentation of its counterpart."""
    return wraps(method)


def described(twin: Any) -> Callable[[F], F]:
    """Copy the counterpart's documentation; the docstring in the source is only for editors."""

    def describe(own: F) -> F:
        own.__doc__ = inspect.getdoc(twin)
        return own

    return describe


def overloaded(method: Callable[..., Any], faces: Mapping[type, Callable[[LoopThread, Any], Any]]) -> Callable[[F], F]:
    """Call like `opens`, replacing a method with overloads. faces: by the class of the result."""
    named = _of_core(method)

    def replace(_: F) -> F:
        @wraps(method)
        def call(face: Face[Any], /, *args: Any, **kwargs: Any) -> Any:
            result = face._thread.run(named(face._core)(*args, **kwargs))
            return faces[type(result)](face._thread, result)

        return cast("F", call)

    return replace


def attribute(of: Any) -> Any:
    """Forward a property to the asyncio object."""
    return property(lambda face: of.fget(face._core), doc=of.__doc__)


class _Same:
    """A descriptor that replaces itself by the object's bound method on first access."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __set_name__(self, kind: type, name: str) -> None:
        self._name = name

    def __get__(self, face: Face[Any] | None, kind: type) -> Any:
        if face is None:
            return self._call
        bound = getattr(face._core, self._name)
        setattr(face, self._name, bound)
        return bound


def _of_core(method: Callable[Concatenate[C, P], R]) -> Callable[[C], Callable[P, R]]:
    """Return a function that gets the method, or its override, from an object."""
    return cast("Callable[[C], Callable[P, R]]", attrgetter(method.__name__))


def _returning(call: Callable[P, F], method: Callable[..., Any], face: Any) -> Callable[P, F]:
    return _signed(call, inspect.signature(method).replace(return_annotation=face.__name__))


def _signed(call: Callable[P, F], signature: inspect.Signature) -> Callable[P, F]:
    call.__signature__ = signature  # type: ignore[attr-defined]
    return call
