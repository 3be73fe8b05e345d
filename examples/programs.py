"""An example's jobs: separate programs that the example starts, kills and restarts, or that are run by hand.

`Program` starts one and can kill it with all its processes, like a power failure. A job ends when its standard input
closes, after processing all available events; in a terminal, Ctrl-C ends it.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from examples.running import INTERRUPTED, ExampleError, Place, bars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROOT = Path(__file__).parents[1]
_LAST_LINES = 20  # of a failed program's output
END_TIMEOUT_S = 180.0  # for a job to process available events, and end
_BRIEF = "-XX:TieredStopAtLevel=1"  # less compilation: Java takes 12 s of CPU for a job of a minute instead of 20
_QUIET = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"


class Program:
    """A program of an example in a separate process, as started by `python -m MODULE ARGUMENTS`.

    Its output goes to a file in `folder`; if it fails, the error contains the last lines.
    """

    def __init__(self, folder: Path, module: str, *arguments: str) -> None:
        self.module, self._log = module, folder / f"{module.rpartition('.')[2]}.log"
        command = [sys.executable, "-m", module, *arguments, "--until-input-closes"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=log, stderr=log, env=_environment(), process_group=0
            )

    def check(self) -> None:
        """Raise ExampleError if it has ended."""
        if self._process.poll() is not None:
            raise self._failed()

    def kill(self) -> None:
        """Kill it and all its processes, including Spark's, at once."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._close()

    def finish(self) -> None:
        """Let it process all available events, and wait for its end."""
        self._close()
        try:
            code = self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise ExampleError(f"{self.module} did not end within {END_TIMEOUT_S:.0f} s") from None
        if code != 0:
            raise self._failed()

    def _failed(self) -> ExampleError:
        lines = self._log.read_text(errors="replace").splitlines()[-_LAST_LINES:]
        return ExampleError("\n".join([f"{self.module} ended with code {self._process.returncode}:", *lines]))

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
    """Return a parser with the options of every job."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {program}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--controller", required=True, metavar="URI", help="the server")
    parser.add_argument("--scope", required=True, help="the scope with the example's streams")
    parser.add_argument("--until-input-closes", action="store_true", help="end when stdin closes, after catching up")
    return parser


def checkpoint_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="DIR", help="folder of its progress")


def follow(
    name: str, options: argparse.Namespace, start: Callable[[SparkSession, str, str, Path], StreamingQuery]
) -> int:
    """Run a query, which `start` creates from session, controller, scope and checkpoint, until its end.

    Return the program's exit code; raise a failure of the query.
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
def spark_session(
    name: str, folder: Path, *, is_brief: bool = True, settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A local Spark with settings for fast small batches; it ends with the block. is_brief: for about a minute.
    settings: more of them."""
    from pyspark.sql import SparkSession

    from nadi.spark import tuned

    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    java_options = f"{_QUIET} {_BRIEF}" if is_brief else _QUIET
    builder = tuned(SparkSession.builder.master("local[2]").appName(name), java_options=java_options)
    builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.local.dir", str(folder))
    builder = builder.config("spark.sql.session.timeZone", "UTC")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    for setting, value in (settings or {}).items():
        builder = builder.config(setting, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def wait_for(failure: str, is_done: Callable[[], bool], programs: Sequence[Program], limit_s: float = 120) -> None:
    """Wait for a condition while the programs run; ExampleError after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while not is_done():
        for program in programs:
            program.check()
        if time.monotonic() > deadline:
            raise ExampleError(f"{failure}: it timed out after {limit_s:.0f} s")
        time.sleep(0.2)


OnWritten = Callable[[int], object]  # called with the number of events just written
Job = tuple[str, Sequence[str]]  # a module, and arguments besides the server and the scope


def through_a_kill(
    here: Place, console: Console, jobs: Sequence[Job], produce: Callable[[OnWritten], object], total: int, results: str
) -> None:
    """Run jobs while `produce` writes `total` events; once the stream `results` has events, kill all jobs and restart
    them. Then let each process all available events.

    The second half of the events isn't written before the kill, however late that is. ExampleError if a job fails, or
    produces no results.
    """
    failures: list[Exception] = []
    killed = threading.Event()
    with bars(console) as progress:
        written = progress.add_task("events written", total=total)
        results_task = progress.add_task("Spark starts", total=None)

        def on_written(count: int) -> None:
            progress.advance(written, count)
            if progress.tasks[written].completed >= total / 2:
                killed.wait(END_TIMEOUT_S)

        def write() -> None:
            try:
                produce(on_written)
            except Exception as failure:
                failures.append(failure)

        def has_more(than: int) -> bool:
            if failures:
                raise failures[0]
            count = len(here.events(results))
            progress.update(results_task, completed=count)
            return count > than

        writing = threading.Thread(target=write, name="producer", daemon=True)
        with _started(here, jobs) as programs:
            writing.start()
            wait_for(f"no events in the stream {results}", lambda: has_more(0), programs)
            for program in programs:
                program.kill()
        killed.set()
        before = len(here.events(results))
        progress.update(results_task, description="killed; Spark restarts")
        with _started(here, jobs) as programs:
            while writing.is_alive():
                writing.join(0.2)
                has_more(before)
            wait_for(f"no further events in the stream {results}", lambda: has_more(before), programs)
            progress.update(results_task, description=f"events of the stream {results}")
            for program in programs:
                program.finish()
        has_more(0)


@contextmanager
def _started(here: Place, jobs: Sequence[Job]) -> Iterator[list[Program]]:
    with ExitStack() as stack:
        home = ("--controller", here.controller, "--scope", here.scope)
        yield [stack.enter_context(Program(here.folder, module, *home, *extra)) for module, extra in jobs]
