"""The server's log messages: as text, or as JSON lines for log collectors.

An object has `time` (RFC 3339, UTC), `level`, `logger` and `message`; where known `server`, `container` and `segment`;
and for exceptions `exception`, the traceback, and `exception_type`. Code sets its context with `about`, for all
messages that it and its tasks log, or with `extra` for a single message."""

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

WAITING_MOST = 10_000  # messages queued for writing
END_S = 5.0  # time to write the last messages

log = logging.getLogger("nadi")
_about: ContextVar[Mapping[str, object]] = ContextVar("about", default=MappingProxyType({}))
_of_process: dict[str, object] = {}


@contextmanager
def about(**fields: object) -> Iterator[None]:
    """Add fields to all messages logged within this context, also by tasks started within it.

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


def add_process_fields(**fields: object) -> None:
    """Add fields to all messages that this process logs from now on."""
    _of_process.update(fields)


class JsonLines(logging.Formatter):
    """Formats messages as JSON objects, one per line, in ASCII, so that no name can break a line or the encoding."""

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
    """Writes messages to standard error in a thread, so that a stalled log reader can't stall the server. Messages that
    don't fit in the queue are dropped and counted."""

    def __init__(self) -> None:
        self._waiting: Queue[logging.LogRecord | None] = Queue(WAITING_MOST)
        super().__init__(self._waiting)
        self._stream = logging.StreamHandler()  # its input is already formatted
        self._dropped = self._reported = 0
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
            if self._dropped > self._reported and self._waiting.qsize() < WAITING_MOST // 2:
                dropped, self._reported = self._dropped - self._reported, self._dropped
                text = "%d messages were dropped because the log reader was too slow"
                # not by `log`, which would wait for `close`
                record = log.makeRecord(log.name, logging.WARNING, __file__, 0, text, (dropped,), None)
                self._stream.emit(self.prepare(record))

    def close(self) -> None:
        """Write the last messages; `logging` calls this at exit."""
        with contextlib.suppress(Full):
            self._waiting.put_nowait(None)
            self._thread.join(END_S)
        super().close()


def _message(record: logging.LogRecord) -> str:
    """Return the message, even if its arguments don't fit, since logging would print a plain traceback then."""
    try:
        return record.getMessage()
    except Exception as error:
        return f"{record.msg!r} with {record.args!r} ({type(error).__name__}: {error})"


def configure(level: str, form: str, text: str = "%(levelname)s %(message)s") -> None:
    """Configure this process's logging. text: the format of messages as text."""
    # gRPC's C library writes its own lines, one for each failed TLS handshake, at an unlimited rate
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    handler = Outlet()
    handler.setFormatter(JsonLines() if form == "json" else logging.Formatter(text))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    if form == "json":  # convert other output, too
        logging.captureWarnings(capture=True)
        sys.excepthook = _uncaught
        sys.unraisablehook = _unraisable
        threading.excepthook = lambda hook: _uncaught(hook.exc_type, hook.exc_value, hook.exc_traceback)


def configure_from(environment: Mapping[str, str], text: str) -> None:
    """Configure logging from the variables NADI_LOG (level) and NADI_LOG_FORMAT; InvalidArgumentError if invalid."""
    level, form = environment.get(ENVIRONMENT_LEVEL, "WARNING"), environment.get(ENVIRONMENT_FORMAT, "text")
    for variable, value, choices in (
        (ENVIRONMENT_LEVEL, level.upper(), LOG_LEVELS),
        (ENVIRONMENT_FORMAT, form, LOG_FORMATS),
    ):
        if value not in choices:
            raise InvalidArgumentError(f"{variable} must be one of {', '.join(choices)}, not {value!r}")
    configure(level, form, text)


def _unraisable(hook: sys.UnraisableHookArgs) -> None:
    """Log an exception that can't be raised, such as one in a finalizer."""
    exception_info: Any = (hook.exc_type, hook.exc_value, hook.exc_traceback)
    named = getattr(hook.object, "__qualname__", type(hook.object).__qualname__)
    log.error("unraisable exception in %s", named, exc_info=exception_info)


def _uncaught(kind: type[BaseException], error: BaseException | None, traceback: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt | SystemExit):
        return
    exception_info: Any = (kind, error, traceback)
    log.critical("uncaught exception", exc_info=exception_info)
