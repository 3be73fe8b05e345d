"""Runs all verifiers of a trial, and compares their findings."""

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
from tests.cluster.foreign_clients.figures import Stalls, hand_overs, longest, spread, takeovers
from tests.cluster.foreign_clients.official_java import OfficialJava
from tests.cluster.foreign_clients.official_python import OfficialPython
from tests.cluster.foreign_clients.probes import Probes
from tests.cluster.foreign_clients.spark import COPIES, Spark
from tests.cluster.foreign_clients.verifier import Verifier
from tests.cluster.processes.client import Client
from tests.cluster.processes.cluster import Cluster, running
from tests.cluster.processes.history import Loads, check
from tests.cluster.processes.random_faults import SERVERS, FaultRun
from tests.crash.load import SCOPE, STREAM, Ledger
from tests.spark.scaled import scale_somehow

KINDS: dict[str, Callable[[Cluster, float], Verifier]] = {
    "java": OfficialJava,
    "python": OfficialPython,
    "spark": Spark,
}
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


class Trial:
    def __init__(self, cluster: Cluster, loads: Loads, verifiers: Sequence[Verifier], seed: int) -> None:
        self.loads, self.verifiers = loads, verifiers
        self.stalls = Stalls(self._progress)
        streams = [STREAM, *(COPIES for verifier in verifiers if verifier.name == "spark")]
        self.scaling = Scaling(cluster.uri, streams, seed)

    def did(self) -> list[tuple[str, dict[str, float]]]:
        """Return the progress of all clients, by name."""
        clients: list[Client | Verifier] = [*self.loads.clients, *self.verifiers]
        return [(client.name, client.progress()) for client in clients]

    def _progress(self) -> dict[str, float]:
        return {f"{name} {what}": did[what] for name, did in self.did() for what in _DOES if what in did}

    def check(self) -> None:
        self.scaling.check()
        for verifier in self.verifiers:
            verifier.check()

    def await_beginning(self) -> None:
        """Wait until each verifier has made progress, and nadi's clients have acknowledgements."""
        deadline = time.monotonic() + _STARTED_S
        while any(not any(verifier.progress().get(what) for what in _DOES) for verifier in self.verifiers):
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
        for verifier in self.verifiers:
            verifier.settle()
        ledger, count = self.loads.read()
        self.loads.await_tails(ledger.events)
        promised = [promise for verifier in self.verifiers for promise in verifier.verify(ledger)]
        check(ledger, count, [*self.loads.promised(), *promised])
        return ledger

    def close(self) -> None:
        for verifier in self.verifiers:
            verifier.close()


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
    """Cause faults while these verifiers work alongside nadi's own clients, and let them verify the stream.

    s3: use the fake S3 instead of a folder. limit_s: time limit for starting new faults. pause_s: between a writer's
    batches. only: see `FaultRun`. AssertionError: a check failed; names the seed. MissingError: a verifier's dependency
    is missing."""
    try:
        with running(folder, SERVERS, s3=s3, containers=containers, wired=True) as cluster, ExitStack() as stack:
            loads = Loads(cluster, pause_s=pause_s)
            stack.callback(loads.close)
            verifiers: list[Verifier] = []
            for name in names:
                verifiers.append(KINDS[name](cluster, pause_s))
                stack.callback(verifiers[-1].close)
            probes = Probes(cluster)
            stack.callback(probes.close)
            trial = Trial(cluster, loads, verifiers, seed)
            trial.await_beginning()
            say(f"{', '.join(['nadi', *names])} have started")
            run = FaultRun(cluster, loads, seed, say, trial.check, only)
            run.run(faults, limit_s)
            say("end of faults")
            ledger = trial.finish()
            return _verdict(run, trial, probes, ledger)
    except BaseException as error:
        error.add_note(f"repeat it with --seed {seed} --faults {faults}; the logs are in {folder}")
        raise


def _verdict(run: FaultRun, trial: Trial, probes: Probes, ledger: Ledger) -> Verdict:
    moved, gaps = run.faults.moved, probes.gaps()
    happened = dict(run.happened)
    kept = sum(len(keys) for keys in ledger.transactions.values())
    loads = trial.stalls.loads
    lines = [
        f"{sum(happened.values())} faults: {happened}; {trial.scaling.count} scalings",
        f"{ledger.events:,} events are correct, with {kept:,} pairs of transaction and key",
        f"takeovers, from a kill to an acknowledgement: {spread(takeovers(moved, gaps))}",
        f"handovers, without an acknowledgement: {spread(hand_overs(moved, gaps))}",
        f"longest time without an acknowledgement in any container: {longest(gaps):.2f} s",
        f"time until all nadi clients had acknowledgements again: {spread(run.waited_s)}",
        *(f"longest stall of {name}: {longest:.1f} s" for name, longest in sorted(trial.stalls.longest.items())),
        *(f"{name}: {', '.join(f'{value:,.0f} {what}' for what, value in did.items())}" for name, did in trial.did()),
        f"the machine's load: mean {statistics.mean(loads):.1f}, most {max(loads):.1f}",
    ]
    return Verdict(ledger.events, happened, lines)
