"""Random faults of a cluster, chosen by a seed, while clients write and read: see `__main__`.

Between two faults each load has an event acknowledged, so that each fault hits a working cluster.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path

from tests.cluster.processes.cluster import Cluster, running
from tests.cluster.processes.faults import Faults
from tests.cluster.processes.history import Loads

SERVERS = 3


class FaultRun:
    """Sequence of faults. check: raises AssertionError if a client besides the loads has detected an error. only: names
    of allowed faults; empty for all that are possible."""

    def __init__(
        self,
        cluster: Cluster,
        loads: Loads,
        seed: int,
        say: Callable[[str], None],
        check: Callable[[], None] = lambda: None,
        only: Collection[str] = (),
    ) -> None:
        self.loads, self.say = loads, say
        self.happened: Counter[str] = Counter()
        self.waited_s: list[float] = []  # time until acknowledgements after each fault
        self._random, self._check = random.Random(seed), check
        self.faults = Faults(cluster, self._random, self._wait, say)
        self._ways = [way for way in self.faults.ways() if not only or way.__name__ in only]
        assert self._ways, f"none of {', '.join(only)} is possible in this cluster"

    def _wait(self, seconds: float) -> None:
        self._check()
        self.loads.run_for(seconds)

    def run(self, number: int, limit_s: float = math.inf) -> None:
        """Cause a number of faults, or as many as fit into the time limit."""
        began = time.monotonic()
        for index in range(number):
            if time.monotonic() > began + limit_s:
                break
            way = self._random.choice(self._ways)
            self.say(f"{index}: {way.__name__}")
            self.happened[way.__name__] += 1
            way()
            took_s = self.loads.await_acknowledgements()
            self.waited_s.append(took_s)
            self.say(f"   acknowledged again after {took_s:.2f} s")
            self._wait(self._random.uniform(0.0, 3.0))


def run_faults(folder: Path, seed: int, number: int, *, s3: bool, say: Callable[[str], None] = print) -> FaultRun:
    """Cause a number of faults, and check all acknowledgements. AssertionError: a check failed; names the seed."""
    try:
        with running(folder, SERVERS, s3=s3) as cluster:
            loads = Loads(cluster)
            try:
                loads.await_acknowledgements()
                run = FaultRun(cluster, loads, seed, say)
                run.run(number)
                ledger = loads.finish()
                say(f"{sum(run.happened.values())} faults, {ledger.events:,} events are correct")
                return run
            finally:
                loads.close()
    except BaseException as error:
        error.add_note(f"repeat it with --seed {seed} --kills {number}; the logs are in {folder}")
        raise
