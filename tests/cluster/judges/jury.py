"""Runs all judges of a trial, and compares their findings."""

from __future__ import annotations

import math
import random
import statistics
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from nadi.client import StreamManager
from nadi.errors import ConflictError, UnavailableError
from tests.cluster.judges.figures import Stalls, hand_overs, longest, spread, takeovers
from tests.cluster.judges.judge import Judge
from tests.cluster.judges.official_java import OfficialJava
from tests.cluster.judges.official_python import OfficialPython
from tests.cluster.judges.probes import Probes
from tests.cluster.judges.spark import COPIES, Spark
from tests.cluster.processes.client import Client
from tests.cluster.processes.cluster import Cluster, running
from tests.cluster.processes.history import Loads, check
from tests.cluster.processes.story import SERVERS, Story
from tests.crash.load import SCOPE, STREAM, Ledger
from tests.spark.scaled import scale_somehow

KINDS: dict[str, Callable[[Cluster, float], Judge]] = {"java": OfficialJava, "python": OfficialPython, "spark": Spark}
_DOES = ("writes", "commits", "reads", "counts", "batches")
_SCALED_S = 20.0, 60.0  # the Java writer pauses for 20 s when it resends to replaced segments
_STARTED_S = 240.0  # Spark starts slowly on a busy machine


@dataclass
class Verdict:
    """Result of a trial, in lines of text."""

    events: int
    happened: dict[str, int]
    lines: list[str] = field(default_factory=list)


class Scaling:
    """Splits and merges the streams' segments from time to time."""

    def __init__(self, uri: str, streams: Sequence[str], seed: int) -> None:
        self._uri, self._streams, self._random = uri, streams, random.Random(seed)
        self.count = 0
        self._error: BaseException | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scaling", daemon=True)
        self._thread.start()

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        self._over.set()
        self._thread.join(240.0)
        assert not self._thread.is_alive(), "a scaling hangs"

    def _run(self) -> None:
        try:
            with StreamManager(self._uri) as manager:
                while not self._over.wait(self._random.uniform(*_SCALED_S)):
                    try:
                        scale_somehow(manager, self._random.choice(self._streams), self._random, SCOPE)
                        self.count += 1
                    except (ConflictError, UnavailableError):  # the controller has moved, or another scale is running
                        continue
        except BaseException as error:  # raised again in the test's thread
            self._error = error


class Jury:
    def __init__(self, cluster: Cluster, loads: Loads, judges: Sequence[Judge], seed: int) -> None:
        self.loads, self.judges = loads, judges
        self.stalls = Stalls(self._progress)
        streams = [STREAM, *(COPIES for judge in judges if judge.name == "spark")]
        self.scaling = Scaling(cluster.uri, streams, seed)

    def did(self) -> list[tuple[str, dict[str, float]]]:
        """Return the progress of all clients, by name."""
        clients: list[Client | Judge] = [*self.loads.clients, *self.judges]
        return [(client.name, client.progress()) for client in clients]

    def _progress(self) -> dict[str, float]:
        return {f"{name} {what}": did[what] for name, did in self.did() for what in _DOES if what in did}

    def check(self) -> None:
        self.scaling.check()
        for judge in self.judges:
            judge.check()

    def await_beginning(self) -> None:
        """Wait until each judge has made progress, and nadi's clients have acknowledgements."""
        deadline = time.monotonic() + _STARTED_S
        while any(not any(judge.progress().get(what) for what in _DOES) for judge in self.judges):
            self.check()
            self.loads.check()
            assert time.monotonic() < deadline, f"not all have started: {self._progress()}"
            time.sleep(0.1)
        self.loads.await_acknowledgements()

    def finish(self) -> Ledger:
        """Wait for all clients to end, and compare the writes with what each has read."""
        self.scaling.end()
        self.stalls.end()
        self.check()
        self.loads.settle()
        for judge in self.judges:
            judge.settle()
        ledger, count = self.loads.read()
        self.loads.await_tails(ledger.events)
        promised = [promise for judge in self.judges for promise in judge.judge(ledger)]
        check(ledger, count, [*self.loads.promised(), *promised])
        return ledger

    def close(self) -> None:
        for judge in self.judges:
            judge.close()


def run_trial(
    folder: Path,
    seed: int,
    faults: int,
    names: Sequence[str],
    *,
    s3: bool = True,
    containers: int = 8,
    limit_s: float = math.inf,
    pause_s: float = 0.2,
    say: Callable[[str], None] = print,
    only: Collection[str] = (),
) -> Verdict:
    """Cause faults while these judges work alongside nadi's own clients, and let them judge.

    s3: use the fake S3 instead of a folder. limit_s: time limit for starting new faults. pause_s: between a writer's
    batches. only: see `Story`. AssertionError: a check failed; names the seed. MissingError: a judge's dependency is
    missing.
    """
    try:
        with running(folder, SERVERS, s3=s3, containers=containers, doors=True) as cluster, ExitStack() as stack:
            loads = Loads(cluster, pause_s=pause_s)
            stack.callback(loads.close)
            judges: list[Judge] = []
            for name in names:
                judges.append(KINDS[name](cluster, pause_s))
                stack.callback(judges[-1].close)
            probes = Probes(cluster)
            stack.callback(probes.close)
            jury = Jury(cluster, loads, judges, seed)
            jury.await_beginning()
            say(f"{', '.join(['nadi', *names])} have started")
            story = Story(cluster, loads, seed, say, jury.check, only)
            story.run(faults, limit_s)
            say("end of faults")
            ledger = jury.finish()
            return _verdict(story, jury, probes, ledger)
    except BaseException as error:
        error.add_note(f"repeat it with --seed {seed} --faults {faults}; the logs are in {folder}")
        raise


def _verdict(story: Story, jury: Jury, probes: Probes, ledger: Ledger) -> Verdict:
    moved, gaps = story.faults.moved, probes.gaps()
    happened = dict(story.happened)
    kept = sum(len(keys) for keys in ledger.transactions.values())
    loads = jury.stalls.loads
    lines = [
        f"{sum(happened.values())} faults: {happened}; {jury.scaling.count} scalings",
        f"{ledger.events:,} events are correct, with {kept:,} pairs of transaction and key",
        f"takeovers, from a kill to an acknowledgement: {spread(takeovers(moved, gaps))}",
        f"handovers, without an acknowledgement: {spread(hand_overs(moved, gaps))}",
        f"longest time without an acknowledgement in any container: {longest(gaps):.2f} s",
        f"time until all nadi clients had acknowledgements again: {spread(story.waited_s)}",
        *(f"longest stall of {name}: {longest:.1f} s" for name, longest in sorted(jury.stalls.longest.items())),
        *(f"{name}: {', '.join(f'{value:,.0f} {what}' for what, value in did.items())}" for name, did in jury.did()),
        f"the machine's load: mean {statistics.mean(loads):.1f}, most {max(loads):.1f}",
    ]
    return Verdict(ledger.events, happened, lines)
