"""One seed of a simulation, run in any process."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from . import work
from .cluster import work as of_cluster
from .days import Outcome


@dataclass(frozen=True, slots=True)
class Days:
    """The length of a simulation, and the factor by which its pauses are prolonged."""

    seconds: float
    pace: float


DENSE = Days(30.0, 0.3)  # a third of a second of work each; one in a hundred seeds finds most broken rules

DENSE_CLUSTER = Days(25.0, 0.2)  # a second of work each, long enough for one of `plots`


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the log: servers log a lot about kills and failing disks."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


@dataclass(frozen=True, slots=True)
class Ask:
    seed: int
    minutes: float
    pace: float
    log: Path | None
    cluster: bool = False

    @property
    def again(self) -> str:
        """The command that repeats the seed with a log.

        >>> Ask(7, 10.0, 1.0, None).again
        'script/simulate 7 --minutes 10 --log 7.log'
        """
        pace = "" if self.pace == 1.0 else f" --pace {self.pace:g}"
        which = f"--cluster {self.seed}" if self.cluster else f"{self.seed}"
        return f"script/simulate {which} --minutes {self.minutes:g}{pace} --log {self.seed}.log"


def outcome_of(ask: Ask) -> tuple[Ask, Outcome | None, str]:
    """Return the outcome of a seed, or None and why it failed."""
    with quiet():
        try:
            simulate = of_cluster.simulate if ask.cluster else work.simulate
            return ask, simulate(ask.seed, ask.minutes * 60, pace=ask.pace, log_file=ask.log), ""
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            return ask, None, f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
