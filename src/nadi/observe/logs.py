"""The server's messages: as text for people, or as JSON, one object a line, for what collects them.

An object has `time` (RFC 3339, UTC), `level`, `logger` and `message`; where the code knows them `server`, `container`,
`segment`; and of an exception `exception`, its traceback, and `exception_type`. Code says what it is about once, by
`about`, for all that it and the tasks it starts will log; or in `extra`, for one message.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from logging.handlers import QueueHandler
from queue import Full, Queue
from types import MappingProxyType, TracebackType
from typing import Any

from nadi.defaults import LOG_FORMATS, LOG_LEVELS
from nadi.errors import InvalidArgumentError

FIELDS = ("server", "container", "segment")
ENVIRONMENT_LEVEL, ENVIRONMENT_FORMAT = "NADI_LOG", "NADI_LOG_FORMAT"

WAITING_MOST = 10_000  # messages that are not written yet
END_S = 5.0  # for the last of them

log = logging.getLogger("nadi")
_about: ContextVar[Mapping[str, object]] = ContextVar("about", default=MappingProxyType({}))
_of_process: dict[str, object] = {}


@contextmanager
def about(**fields: object) -> Iterator[None]:
    """All that is logged meanwhile, and by tasks that begin meanwhile, is about these.

    >>> with about(container=3):
    ...     line = JsonLines().format(logging.LogRecord("nadi", logging.INFO, "", 0, "it is %s", ("open",), None))
    >>> line[line.index('"container"') :]
    '"container": 3}'
    """
    token = _about.set({**_about.get(), **fields})
    try:
        yield
    finally:
        _about.reset(token)


def of_process(**fields: object) -> None:
    """All that this process logs from now on is about these."""
    _of_process.update(fields)


class JsonLines(logging.Formatter):
    """One object a line; ASCII, so that nothing a name may have in it breaks a line, or the encoding."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, object] = {
            "time": moment.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": _message(record),
            **_of_process,
            **_about.get(),
        }
        line |= {name: record.__dict__[name] for name in FIELDS if name in record.__dict__}
        if record.exc_info is not None and record.exc_info[0] is not None:
            line["exception_type"] = record.exc_info[0].__qualname__
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class Outlet(QueueHandler):
    """Has messages written to standard error by a thread: whoever reads them may stop to, and that must stop no server.
    What finds no room meanwhile is dropped, and counted."""

    def __init__(self) -> None:
        self._waiting: Queue[logging.LogRecord | None] = Queue(WAITING_MOST)
        super().__init__(self._waiting)
        self._stream = logging.StreamHandler()  # what comes to it is formatted
        self._dropped = self._told = 0
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self._waiting.put_nowait(record)
        except Full:
            self._dropped += 1

    def _write(self) -> None:
        while (record := self._waiting.get()) is not None:
            self._stream.emit(record)
            if self._dropped > self._told and self._waiting.qsize() < WAITING_MOST // 2:
                dropped, self._told = self._dropped - self._told, self._dropped
                text = "%d messages were dropped, for nobody took them"
                # not by `log`, which would wait for `close`
                record = log.makeRecord(log.name, logging.WARNING, __file__, 0, text, (dropped,), None)
                self._stream.emit(self.prepare(record))

    def close(self) -> None:
        """Once the last messages are written; `logging` calls it as the process ends."""
        with contextlib.suppress(Full):
            self._waiting.put_nowait(None)
            self._thread.join(END_S)
        super().close()


def _message(record: logging.LogRecord) -> str:
    """Also of one whose arguments don't fit, as some library's may not: what logging prints then isn't JSON."""
    try:
        return record.getMessage()
    except Exception as error:
        return f"{record.msg!r} with {record.args!r} ({type(error).__name__}: {error})"


def set_up(level: str, form: str, text: str = "%(levelname)s %(message)s") -> None:
    """Have this process log from that level on, in that form; text: how a message looks as text."""
    # gRPC's C library writes lines of its own, of any form: one for each peer that fails at TLS, as fast as they come
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    handler = Outlet()
    handler.setFormatter(JsonLines() if form == "json" else logging.Formatter(text))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    if form == "json":  # also what would be printed as it is
        logging.captureWarnings(capture=True)
        sys.excepthook = _uncaught
        sys.unraisablehook = _unraisable
        threading.excepthook = lambda hook: _uncaught(hook.exc_type, hook.exc_value, hook.exc_traceback)


def set_up_from(environment: Mapping[str, str], text: str) -> None:
    """`set_up` by the variables NADI_LOG, the level, and NADI_LOG_FORMAT; InvalidArgumentError if one is wrong."""
    level, form = environment.get(ENVIRONMENT_LEVEL, "WARNING"), environment.get(ENVIRONMENT_FORMAT, "text")
    for variable, value, choices in (
        (ENVIRONMENT_LEVEL, level.upper(), LOG_LEVELS),
        (ENVIRONMENT_FORMAT, form, LOG_FORMATS),
    ):
        if value not in choices:
            raise InvalidArgumentError(f"{variable} can't be {value!r}: it is one of {', '.join(choices)}")
    set_up(level, form, text)


def _unraisable(hook: sys.UnraisableHookArgs) -> None:
    """Of a finalizer, say."""
    found: Any = (hook.exc_type, hook.exc_value, hook.exc_traceback)
    named = getattr(hook.object, "__qualname__", type(hook.object).__qualname__)
    log.error("an exception that nothing can catch, in %s", named, exc_info=found)


def _uncaught(kind: type[BaseException], error: BaseException | None, traceback: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt | SystemExit):
        return
    found: Any = (kind, error, traceback)
    log.critical("an exception that nothing has caught", exc_info=found)
