"""All judges of a story, what is asked of them, and what they found."""

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
_SCALED_S = 20.0, 60.0  # where the Java writer resends to segments that were replaced meanwhile, it pauses 20 s
_BEGUN_S = 240.0  # Spark takes its time to start on a busy machine


@dataclass
class Verdict:
    """What came of a story, in lines of text."""

    events: int
    happened: dict[str, int]
    lines: list[str] = field(default_factory=list)


class Scaling:
    """Splits and merges the streams' segments, now and then."""

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
                    except (ConflictError, UnavailableError):  # the controller is elsewhere now, or another scale is on
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
        """By the names of all clients."""
        all_of_them: list[Client | Judge] = [*self.loads.clients, *self.judges]
        return [(one.name, one.progress()) for one in all_of_them]

    def _progress(self) -> dict[str, float]:
        return {f"{name} {what}": did[what] for name, did in self.did() for what in _DOES if what in did}

    def check(self) -> None:
        self.scaling.check()
        for judge in self.judges:
            judge.check()

    def await_beginning(self) -> None:
        """Until each has done something, and nadi's clients have acknowledgements."""
        deadline = time.monotonic() + _BEGUN_S
        while any(not any(judge.progress().get(what) for what in _DOES) for judge in self.judges):
            self.check()
            self.loads.check()
            assert time.monotonic() < deadline, f"not all have begun: {self._progress()}"
            time.sleep(0.1)
        self.loads.await_acknowledgements()

    def finish(self) -> Ledger:
        """Have all come to their end, and compare what was written with what each has read."""
        self.scaling.end()
        self.stalls.end()
        self.check()
        self.loads.settle()
        for judge in self.judges:
            judge.settle()
        ledger, count = self.loads.read()
        self.loads.await_tails(ledger.events)
        promised = [one for judge in self.judges for one in judge.judge(ledger)]
        check(ledger, count, [*self.loads.promised(), *promised])
        return ledger

    def close(self) -> None:
        for judge in self.judges:
            judge.close()


def tell(
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
    """Have so many things happen while the judges of these names are at work beside nadi's own clients, and have them
    judge; raises AssertionError, which names the seed, and MissingError. s3: the store is the fake S3, not a folder.
    limit_s: after it nothing more happens. pause_s: between a writer's bunches of events. only: see `Story`."""
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
            say(f"all of {', '.join(['nadi', *names])} are at work")
            story = Story(cluster, loads, seed, say, jury.check, only)
            story.tell(faults, limit_s)
            say("nothing more happens")
            ledger = jury.finish()
            return _verdict(story, jury, probes, ledger)
    except BaseException as error:
        error.add_note(f"repeat it with --seed {seed} --faults {faults}; what was said is in {folder}")
        raise


def _verdict(story: Story, jury: Jury, probes: Probes, ledger: Ledger) -> Verdict:
    moved, gaps = story.faults.moved, probes.gaps()
    happened = dict(story.happened)
    kept = sum(len(one) for one in ledger.transactions.values())
    loads = jury.stalls.loads
    lines = [
        f"{sum(happened.values())} things happened: {happened}; {jury.scaling.count} scalings",
        f"{ledger.events:,} events are as they must be, {kept:,} of transactions and keys among them",
        f"takeover, from a kill to an acknowledgement: {spread(takeovers(moved, gaps))}",
        f"hand-over, without an acknowledgement: {spread(hand_overs(moved, gaps))}",
        f"longest time without an acknowledgement in any container: {longest(gaps):.2f} s",
        f"until each of nadi's clients had acknowledgements again: {spread(story.waited_s)}",
        *(f"longest stall of {name}: {longest:.1f} s" for name, longest in sorted(jury.stalls.longest.items())),
        *(f"{name}: {', '.join(f'{value:,.0f} {what}' for what, value in did.items())}" for name, did in jury.did()),
        f"the machine's load: mean {statistics.mean(loads):.1f}, most {max(loads):.1f}",
    ]
    return Verdict(ledger.events, happened, lines)
