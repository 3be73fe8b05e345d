"""Log records of simulated servers: warnings go into the log of events, and an unexpected error is a failure of the
simulation."""

from __future__ import annotations

import logging
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from nadi.errors import NadiError

from ..machine.process import current

_FORESEEN = (NadiError, OSError, TimeoutError)


class Ear(logging.Handler):
    """Handler of log records. lines: receives the messages. errors: unexpected ones. is_open: until the end of a
    simulation, when dying processes log a lot."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: deque[str] = deque()
        self.errors: list[BaseException] = []
        self.now: Callable[[], float] = lambda: 0.0
        self.is_open = True

    def emit(self, record: logging.LogRecord) -> None:
        if not self.is_open:
            return
        process = current.get()
        name = "" if process is None else process.name
        self.lines.append(f"{self.now():.6f} {name} {record.levelname}: {record.getMessage()}")
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, _FORESEEN):
            self.lines += traceback.format_exception(error)
            self.errors.append(error)

    @contextmanager
    def open(self) -> Iterator[None]:
        logger, manager = logging.getLogger("nadi"), logging.root.manager
        before = logger.handlers, logger.propagate, logger.level, manager.disable
        logger.handlers, logger.propagate = [self], False
        logger.setLevel(logging.WARNING)
        logging.disable(logging.NOTSET)
        others = logging.getLogger("asyncio")
        before_of_others, others.disabled = others.disabled, True  # of processes that die with pending futures
        try:
            yield
        finally:
            others.disabled = before_of_others
            logger.handlers, logger.propagate = before[:2]
            logger.setLevel(before[2])
            logging.disable(before[3])
