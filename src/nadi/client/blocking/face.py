"""How the blocking face is made: each class names the methods of its asyncio twin and how they are called.

    class Transaction(Face[aio.Transaction]):
        commit = waits(aio.Transaction.commit)

What a class or method is for, takes and returns is written once, there: signature, defaults, types and documentation
are the asyncio one's. Methods that are overloaded, or must be fast for each event, are written by hand; tests hold
their words to those of the twin.
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
    """An object of the asyncio face, and the thread that it lives in. A class has its twin's documentation."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for base in vars(cls).get("__orig_bases__", ()):
            if issubclass(get_origin(base) or object, Face) and not cls.__doc__:
                (twin,) = get_args(base)
                cls.__doc__ = inspect.getdoc(get_origin(twin) or twin)

    def __init__(self, thread: LoopThread, core: C_co) -> None:
        self._thread, self._core = thread, core


def inside(face: Face[C]) -> tuple[LoopThread, C]:
    """The thread and the asyncio object, for parts of nadi that are given a face and run in that thread themselves."""
    return face._thread, face._core


class _Closes(Protocol):
    def close(self) -> None: ...


class Closing(Face[C_co]):
    """A face with a `close`, which ends it at the end of a `with` block too."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self: _Closes, *_: object) -> None:
        self.close()


def waits(method: Callable[Concatenate[C, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[Face[C], P], R]:
    named = _of_core(method)

    @wraps(method)
    def call(face: Face[C], /, *args: P.args, **given: P.kwargs) -> R:
        return face._thread.run(named(face._core)(*args, **given))

    return call


def opens(
    method: Callable[Concatenate[C, P], Coroutine[Any, Any, R]], face_of: Callable[[LoopThread, R], F]
) -> Callable[Concatenate[Face[C], P], F]:
    """Like `waits`; the result has a face of its own."""
    named = _of_core(method)

    @wraps(method)
    def call(face: Face[C], /, *args: P.args, **given: P.kwargs) -> F:
        return face_of(face._thread, face._thread.run(named(face._core)(*args, **given)))

    return _giving(call, method, face_of)


def gives(
    method: Callable[Concatenate[C, P], R], face_of: Callable[[LoopThread, R], F]
) -> Callable[Concatenate[Face[C], P], F]:
    """Like `opens`, with nothing to wait for."""
    named = _of_core(method)

    @wraps(method)
    def call(face: Face[C], /, *args: P.args, **given: P.kwargs) -> F:
        return face_of(face._thread, named(face._core)(*args, **given))

    return _giving(call, method, face_of)


def on_loop(method: Callable[Concatenate[C, P], R]) -> Callable[Concatenate[Face[C], P], R]:
    """A plain call, made in the client's own thread, which alone changes what it reads."""
    named = _of_core(method)

    @wraps(method)
    def call(face: Face[C], /, *args: P.args, **given: P.kwargs) -> R:
        return face._thread.result(named(face._core), *args, **given)

    return call


def each(method: Callable[Concatenate[C, P], AsyncIterator[R]]) -> Callable[Concatenate[Face[C], P], Iterator[R]]:
    """Iterate over what the method's iterator yields, waiting for each."""
    named = _of_core(method)

    @wraps(method)
    def call(face: Face[C], /, *args: P.args, **given: P.kwargs) -> Iterator[R]:
        return face._thread.each(named(face._core)(*args, **given))

    signature = inspect.signature(method)
    returned = _ASYNC.sub(r"Iterator[\1]", signature.return_annotation)
    return _signed(call, signature.replace(return_annotation=returned))


def same(method: Callable[Concatenate[C, P], R]) -> Callable[Concatenate[Face[C], P], R]:
    """The asyncio object's own method, called in the caller's thread; it costs nothing more."""
    named = _of_core(method)

    @wraps(method)
    def call(face: Face[C], /, *args: P.args, **given: P.kwargs) -> R:
        return named(face._core)(*args, **given)

    return cast("Callable[Concatenate[Face[C], P], R]", _Same(call))


def ends(close: Callable[Concatenate[Face[C], P], None]) -> Callable[Concatenate[Face[C], P], None]:
    """A `close` with nothing to do once the client was closed, which has closed this too."""

    @wraps(close)
    def call(face: Face[C], /, *args: P.args, **given: P.kwargs) -> None:
        with suppress(ClosedError):
            close(face, *args, **given)

    return call


def by_hand(
    method: Callable[Concatenate[C, P], Coroutine[Any, Any, R]],
) -> Callable[[Callable[Concatenate[F, P], R]], Callable[Concatenate[F, P], R]]:
    """A method written here for speed: it takes and returns what its twin does, and has its documentation."""
    return wraps(method)


def described(twin: Any) -> Callable[[F], F]:
    """Has the documentation of its twin; what is written at its place is for editors, which don't look further."""

    def describe(own: F) -> F:
        own.__doc__ = inspect.getdoc(twin)
        return own

    return describe


def overloaded(method: Callable[..., Any], faces: Mapping[type, Callable[[LoopThread, Any], Any]]) -> Callable[[F], F]:
    """Like `opens`, in place of a method with overloads. faces: by the classes of what it may return."""
    named = _of_core(method)

    def replace(_: F) -> F:
        @wraps(method)
        def call(face: Face[Any], /, *args: Any, **given: Any) -> Any:
            made = face._thread.run(named(face._core)(*args, **given))
            return faces[type(made)](face._thread, made)

        return cast("F", call)

    return replace


def attribute(of: Any) -> Any:
    """A property of the asyncio object."""
    return property(lambda face: of.fget(face._core), doc=of.__doc__)


class _Same:
    """A method of a face that becomes, when it is first looked up, that of the object."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __set_name__(self, kind: type, name: str) -> None:
        self._name = name

    def __get__(self, face: Face[Any] | None, kind: type) -> Any:
        if face is None:
            return self._call
        found = getattr(face._core, self._name)
        setattr(face, self._name, found)
        return found


def _of_core(method: Callable[Concatenate[C, P], R]) -> Callable[[C], Callable[P, R]]:
    """That method of an object, or what its class has in place of it."""
    return cast("Callable[[C], Callable[P, R]]", attrgetter(method.__name__))


def _giving(call: Callable[P, F], method: Callable[..., Any], face: Any) -> Callable[P, F]:
    return _signed(call, inspect.signature(method).replace(return_annotation=face.__name__))


def _signed(call: Callable[P, F], signature: inspect.Signature) -> Callable[P, F]:
    call.__signature__ = signature  # type: ignore[attr-defined]
    return call
