"""An example's jobs: programs of their own, started, killed and started again by the example, or run by hand.

`Program` starts one and, if asked to, kills it with all its processes, as a machine that loses power would. A job ends
when its standard input closes, having taken in what there is; at a terminal, Ctrl-C ends it.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from examples.running import INTERRUPTED, ExampleError, Place, bars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROOT = Path(__file__).parents[1]
_LAST_LINES = 20  # of what a failed program said
END_TIMEOUT_S = 180.0  # for a job to take in what there is, and end
_BRIEF = "-XX:TieredStopAtLevel=1"  # compiles less: Java takes 12 s of CPU for a job of a minute, otherwise 20
_QUIET = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"


class Program:
    """A program of an example, in a process of its own. `python -m MODULE ARGUMENTS` would start it by hand.

    What it prints goes to a file in `folder`; if it fails, the end of that is in the error.
    """

    def __init__(self, folder: Path, module: str, *arguments: str) -> None:
        self.module, self._said = module, folder / f"{module.rpartition('.')[2]}.log"
        command = [sys.executable, "-m", module, *arguments, "--until-input-closes"]
        with self._said.open("ab") as said:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=said, stderr=said, env=_environment(), process_group=0
            )

    def check(self) -> None:
        """ExampleError if it has ended."""
        if self._process.poll() is not None:
            raise self._failed()

    def kill(self) -> None:
        """Kill it and all its processes, Spark's too, at once."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._close()

    def finish(self) -> None:
        """Let it take in what there is, and wait for its end."""
        self._close()
        try:
            code = self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise ExampleError(f"{self.module} did not end within {END_TIMEOUT_S:.0f} s") from None
        if code != 0:
            raise self._failed()

    def _failed(self) -> ExampleError:
        said = self._said.read_text(errors="replace").splitlines()[-_LAST_LINES:]
        return ExampleError("\n".join([f"{self.module} ended with code {self._process.returncode}:", *said]))

    def _close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.kill()


def _environment() -> dict[str, str]:
    path = [str(ROOT), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


def job_parser(program: str, description: str | None) -> argparse.ArgumentParser:
    """The options that every job has."""
    made = argparse.ArgumentParser(
        prog=f"python -m {program}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--controller", required=True, metavar="URI", help="the server")
    made.add_argument("--scope", required=True, help="the scope with the example's streams")
    made.add_argument("--until-input-closes", action="store_true", help="end, having caught up, when stdin closes")
    return made


def checkpoint_argument(made: argparse.ArgumentParser) -> None:
    made.add_argument("--checkpoint", type=Path, required=True, metavar="DIR", help="where it keeps its progress")


def follow(
    name: str, options: argparse.Namespace, start: Callable[[SparkSession, str, str, Path], StreamingQuery]
) -> int:
    """Run a query that `start` makes of session, controller, scope and checkpoint, until it is to end.

    Gives the program's exit code; a failure of the query is raised.
    """
    try:
        with spark_session(name, options.checkpoint / "local") as spark:
            query = start(spark, options.controller, options.scope, options.checkpoint)
            try:
                _until_the_end(query, options.until_input_closes)
            finally:
                query.stop()
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _until_the_end(query: StreamingQuery, until_input_closes: bool) -> None:
    while query.isActive:
        if until_input_closes and input_closes_within(0.2):
            query.processAllAvailable()
            return
        time.sleep(0.2)
    query.awaitTermination()


def input_closes_within(seconds: float) -> bool:
    readable, _, _ = select.select([sys.stdin], [], [], seconds)
    return bool(readable) and not os.read(sys.stdin.fileno(), 1024)


@contextmanager
def spark_session(name: str, folder: Path, *, is_brief: bool = True) -> Iterator[SparkSession]:
    """A local Spark with the settings that make small batches quick; it ends with the block. is_brief: for a minute."""
    from pyspark.sql import SparkSession

    from nadi.spark import tuned

    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    java_options = f"{_QUIET} {_BRIEF}" if is_brief else _QUIET
    builder = tuned(SparkSession.builder.master("local[2]").appName(name), java_options=java_options)
    builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.local.dir", str(folder))
    builder = builder.config("spark.sql.session.timeZone", "UTC")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def wait_for(what: str, is_so: Callable[[], bool], programs: Sequence[Program], limit_s: float = 120) -> None:
    """Wait until something is so, as long as the programs run. ExampleError after `limit_s`."""
    give_up = time.monotonic() + limit_s
    while not is_so():
        for program in programs:
            program.check()
        if time.monotonic() > give_up:
            raise ExampleError(f"{what}: not within {limit_s:.0f} s")
        time.sleep(0.2)


Told = Callable[[int], object]  # called with how many events were just written
Job = tuple[str, Sequence[str]]  # a module, and arguments beside those for the server and the scope


def through_a_kill(
    here: Place, console: Console, jobs: Sequence[Job], produce: Callable[[Told], object], total: int, results: str
) -> None:
    """Run jobs while `produce` writes `total` events; once there is something in the stream `results`, kill all jobs
    and start them again. Then let one after the other take in what there is.

    The second half of the events isn't written before the kill, however late it comes.
    ExampleError if a job fails, or nothing comes out of them.
    """
    failures: list[Exception] = []
    killed = threading.Event()
    with bars(console) as progress:
        written = progress.add_task("events written", total=total)
        found = progress.add_task("Spark starts", total=None)

        def told(count: int) -> None:
            progress.advance(written, count)
            if progress.tasks[written].completed >= total / 2:
                killed.wait(END_TIMEOUT_S)

        def write() -> None:
            try:
                produce(told)
            except Exception as failure:
                failures.append(failure)

        def has_more(than: int) -> bool:
            if failures:
                raise failures[0]
            count = len(here.events(results))
            progress.update(found, completed=count)
            return count > than

        writing = threading.Thread(target=write, name="producer", daemon=True)
        with _started(here, jobs) as programs:
            writing.start()
            wait_for(f"nothing comes into the stream {results}", lambda: has_more(0), programs)
            for program in programs:
                program.kill()
        killed.set()
        before = len(here.events(results))
        progress.update(found, description="killed; Spark starts again")
        with _started(here, jobs) as programs:
            while writing.is_alive():
                writing.join(0.2)
                has_more(before)
            wait_for(f"no more comes into the stream {results}", lambda: has_more(before), programs)
            progress.update(found, description=f"events of the stream {results}")
            for program in programs:
                program.finish()
        has_more(0)


@contextmanager
def _started(here: Place, jobs: Sequence[Job]) -> Iterator[list[Program]]:
    with ExitStack() as stack:
        home = ("--controller", here.controller, "--scope", here.scope)
        yield [stack.enter_context(Program(here.folder, module, *home, *more)) for module, more in jobs]
