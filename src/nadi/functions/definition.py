"""The definition of a function: the stream that triggers it, its handler, and the use of results and failures."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypedDict, Unpack

import msgspec

from nadi.errors import InvalidArgumentError
from nadi.functions.handlers.address import TargetAddress
from nadi.functions.handlers.loading import HandlerFunction, load, reference_of, takes_context
from nadi.limits import FUNCTION_BATCH_EVENTS, FUNCTION_RETRIES, FUNCTION_WORKERS, PREFIXED_NAME_MAX_CHARS
from nadi.model.delivery import AT_LEAST_ONCE, EXACTLY_ONCE, Guarantee, check_delivery
from nadi.model.field_path import parse_path
from nadi.naming import check_name


class FunctionOptions(TypedDict, total=False):
    """The options of a `Function`, see there."""

    name: str
    start: Literal["head", "tail"]
    min_workers: int
    max_workers: int
    idle_s: float
    batch_events: int
    batch_ms: int
    by_batch: bool | None
    timeout_s: float
    memory_mib: int | None
    retries: int
    retry_first_s: float
    retry_longest_s: float
    dead_letters: str | None
    output: str | None
    delivery: Guarantee
    key_field: str | None
    skip_damage: bool


_OPTIONS = FunctionOptions.__annotations__


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function that the events of `scope`/`stream` trigger.

    handler: a function of a module, or `module:name`, or `path.py:name`; it gets an event, or, if its argument is
    annotated as a list (or `by_batch` is True), a batch; and a context, if it takes a second argument. target: an HTTP
    service that gets the events instead.
    name: of its reader group, which keeps the positions; by default derived from the stream's and the handler's names.
    start: where a new function starts; an existing one continues.

    min_workers, max_workers: over all instances; the number between these follows the load, and falls after `idle_s`
    seconds in which fewer would have sufficed.
    batch_events, batch_ms: a batch is complete with that many events, or when its first event has waited that long; 0
    doesn't wait for more events. All events of a batch are of one segment. Positions are recorded after a batch.
    timeout_s: limit of one call of the handler, or one request. memory_mib: limit of the handler's process.
    retries: after the first attempt, with pauses that grow from `retry_first_s` to `retry_longest_s` seconds.
    dead_letters: the stream for events that fail for good; None stops the function at the first. output: the stream for
    the handler's results; both as `stream` of the same scope, or `scope/stream`.
    delivery: "at-least-once"; "exactly-once" writes the output in transactions, so that the output of each event is
    stored once; "at-most-once" never calls the handler with an event again.
    key_field: of events that are JSON objects, the field with the routing key. skip_damage: continue after data that is
    damaged on the server's disk, instead of stopping.
    """

    scope: str
    stream: str
    handler: HandlerFunction | str | None = None
    target: TargetAddress | None = None
    name: str = ""
    start: Literal["head", "tail"] = "head"
    min_workers: int = 0
    max_workers: int = 16
    idle_s: float = 60.0
    batch_events: int = 100
    batch_ms: int = 0
    by_batch: bool | None = None
    timeout_s: float = 60.0
    memory_mib: int | None = None
    retries: int = 5
    retry_first_s: float = 0.1
    retry_longest_s: float = 30.0
    dead_letters: str | None = None
    output: str | None = None
    delivery: Guarantee = AT_LEAST_ONCE
    key_field: str | None = None
    skip_damage: bool = False

    def __post_init__(self) -> None:
        check_name("scope", self.scope)
        check_name("stream", self.stream)
        if self.start not in ("head", "tail"):
            raise InvalidArgumentError(f"start must be head or tail, not {self.start!r}")
        check_delivery(self.delivery)
        try:
            msgspec.convert({option: getattr(self, option) for option in _OPTIONS}, FunctionOptions)
        except msgspec.ValidationError as error:
            raise InvalidArgumentError(f"invalid function option: {error}") from None
        if (self.handler is None) == (self.target is None):
            raise InvalidArgumentError("a function needs either a handler or a target: pass one of them")
        if self.handler is not None:
            reference_of(self.handler)
            if not isinstance(self.handler, str):
                takes_context(self.handler)
        for option in ("by_batch", "memory_mib"):
            if self.target is not None and getattr(self, option) is not None:
                raise InvalidArgumentError(
                    f"{option} needs a handler: remove it, or pass a handler instead of a target"
                )
        for option, least, most in (
            ("min_workers", 0, FUNCTION_WORKERS),
            ("max_workers", max(self.min_workers, 1), FUNCTION_WORKERS),
            ("batch_events", 1, FUNCTION_BATCH_EVENTS),
            ("batch_ms", 0, 3_600_000),
            ("retries", 0, FUNCTION_RETRIES),
            ("idle_s", 0, 86_400),
            ("timeout_s", 0.001, 86_400),
            ("retry_first_s", 0.001, 86_400),
            ("retry_longest_s", self.retry_first_s, 86_400),
            ("memory_mib", 32, 1 << 30),
        ):
            value = getattr(self, option)
            if value is not None and not least <= value <= most:
                raise InvalidArgumentError(f"{option} must be {least:,} to {most:,}, not {value:,}")
        if self.batch_ms and self.batch_events == 1:
            raise InvalidArgumentError("batch_ms has no effect with batch_events=1: raise batch_events")
        if self.delivery == EXACTLY_ONCE and self.output is None:
            raise InvalidArgumentError("exactly-once delivery needs an output stream: set output")
        if self.key_field is not None:
            parse_path(self.key_field, "key_field")
        for kind, stream in (("output", self.output), ("dead-letter", self.dead_letters)):
            if stream is not None and self._full(stream) == f"{self.scope}/{self.stream}":
                raise InvalidArgumentError(
                    f"the {kind} stream can't be the function's input stream: name another stream"
                )
        if not self.name:
            object.__setattr__(self, "name", self._default_name())
        check_name("reader group", self.name, max_chars=PREFIXED_NAME_MAX_CHARS)

    def _default_name(self) -> str:
        if self.handler is not None:
            location, _, name = reference_of(self.handler).rpartition(":")
            suffix = f"{re.split(r'[./]', location.removesuffix('.py'))[-1]}-{name}"
        else:
            assert self.target is not None
            suffix = self.target.url.partition("://")[2]
        return f"{self.stream}-{re.sub(r'[^A-Za-z0-9.-]+', '-', suffix).strip('-')}"[:PREFIXED_NAME_MAX_CHARS]

    def _full(self, stream: str) -> str:
        scope, _, name = stream.rpartition("/")
        check_name("scope", scope or self.scope)
        check_name("stream", name)
        return f"{scope or self.scope}/{name}"

    @property
    def output_stream(self) -> str | None:
        """As `scope/stream`."""
        return None if self.output is None else self._full(self.output)

    @property
    def dead_letter_stream(self) -> str | None:
        """As `scope/stream`."""
        return None if self.dead_letters is None else self._full(self.dead_letters)

    @property
    def handled_by(self) -> str:
        if self.handler is not None:
            return reference_of(self.handler)
        assert self.target is not None
        return self.target.url

    def __call__(self, *arguments: Any) -> Any:
        """Call the handler, for tests of it."""
        handler = load(self.handler) if isinstance(self.handler, str) else self.handler
        if handler is None:
            raise InvalidArgumentError("this function can't be called: it has a target instead of a handler")
        return handler(*arguments)

    def changed(self, **options: Unpack[FunctionOptions]) -> Function:
        return replace(self, **options)


def function(scope: str, stream: str, **options: Unpack[FunctionOptions]) -> Callable[[HandlerFunction], Function]:
    """Return a decorator that makes a function of a handler.

    >>> from nadi.functions import HandlerEvent, function
    >>> @function("home", "meters", output="bills", name="billing")
    ... def bill(event: HandlerEvent) -> str:
    ...     return f"{int(event.data) * 2} cents"
    >>> bill.name, bill(HandlerEvent(b"12", "home/meters/0.#epoch.0", 0))
    ('billing', '24 cents')
    """

    def decorate(handler: HandlerFunction) -> Function:
        return Function(scope=scope, stream=stream, handler=handler, **options)

    return decorate


def function_of(reference: str, scope: str | None, stream: str | None, options: FunctionOptions) -> Function:
    """Return the function that a reference names; these options override a decorated handler's.

    InvalidArgumentError if a plain handler lacks a scope or a stream. Errors of the handler's module pass unchanged.
    """
    loaded = load(reference)
    if not isinstance(loaded, Function):
        if scope is None or stream is None:
            raise InvalidArgumentError(f"{reference} is a plain function: pass --scope and --stream")
        takes_context(loaded)
        return Function(scope=scope, stream=stream, handler=reference, **options)
    arguments = {name.name: getattr(loaded, name.name) for name in fields(Function)} | dict(options)
    arguments |= {"scope": scope or loaded.scope, "stream": stream or loaded.stream, "handler": reference}
    return Function(**arguments)
