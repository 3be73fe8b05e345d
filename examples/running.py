"""What the examples share: a server to use, a local Spark, programs that are killed and started again, how they end.

An example starts a server of its own, in a temporary folder, unless `--controller` names one; there it takes a scope
whose name nobody has yet, and leaves it for you to look at. Its jobs are programs of their own: `Program` starts one
and, if asked to, kills it with all its processes, as a machine that loses power would. A job ends when its standard
input closes, having taken in what there is; at a terminal, Ctrl-C ends it.
"""

from __future__ import annotations

import argparse
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import nadi

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROOT = Path(__file__).parents[1]
INTERRUPTED = 130  # what a shell says of a program that Ctrl-C ended
_LAST_LINES = 20  # of what a failed program said
END_TIMEOUT_S = 180.0  # for a job to take in what there is, and end
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_QUIET = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"


class ExampleError(Exception):
    """The example can't go on; its message says why."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an example works: a server, a scope of its own there, and a folder for checkpoints."""

    manager: nadi.StreamManager
    controller: str
    scope: str
    folder: Path

    def tail(self, stream: str) -> nadi.StreamCut:
        return self.manager.stream_info(self.scope, stream).tail

    def events(self, stream: str) -> list[bytes]:
        """All events of a stream so far."""
        return [event.data for event in self.manager.read_events(self.scope, stream, end=self.tail(stream))]


# --- How an example begins and ends ------------------------------------------------------------------------


def parser(program: str, description: str | None) -> argparse.ArgumentParser:
    """The options that every example has."""
    made = argparse.ArgumentParser(
        prog=f"python -m {program}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--controller", metavar="URI", help="use this server (default: one of the example's own)")
    made.add_argument("--data", type=Path, help="a new folder for its data (default: a temporary one, removed)")
    return made


def ended(body: Callable[[], bool], console: Console) -> int:
    """Run an example: the program's exit code. 0: it found what it should; 1: it did not, or failed; 130: Ctrl-C."""
    try:
        return 0 if body() else 1
    except KeyboardInterrupt:
        console.print("[yellow]interrupted[/yellow]")
        return INTERRUPTED
    except (ExampleError, nadi.NadiError) as error:
        console.print("[red]error:[/red] ", end="")
        console.print(str(error), markup=False)
        return 1


@contextmanager
def place(options: argparse.Namespace, name: str, console: Console) -> Iterator[Place]:
    """The server, and in it a scope of the example's own: `name`, or with a number if that is taken."""
    if options.data is not None and options.data.exists() and any(options.data.iterdir()):
        raise ExampleError(f"{options.data} is not empty: give --data a new folder")
    folder = options.data or Path(tempfile.mkdtemp(prefix=f"nadi-{name}-"))
    try:
        if options.controller is not None:
            with _scope(options.controller, name, folder, console) as made:
                yield made
        else:
            with (
                nadi.embedded(folder / "server") as server,
                _scope(server.controller_uri, name, folder, console) as made,
            ):
                yield made
    finally:
        if options.data is None:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _scope(controller: str, name: str, folder: Path, console: Console) -> Iterator[Place]:
    with nadi.StreamManager(controller) as manager:
        scope, number = name, 1
        while not manager.create_scope(scope):
            number += 1
            scope = f"{name}-{number}"
        console.print(f"nadi serves {controller}; scope [bold]{scope}[/bold]")
        yield Place(manager, controller, scope, folder)


def bars(console: Console) -> Progress:
    columns = (TextColumn("{task.description:36}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console)


# --- Jobs, and who starts them ---------------------------------------------------------------------------------


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


def follow(query: StreamingQuery, options: argparse.Namespace) -> int:
    """Let a query run until it is to end: the program's exit code. Its failure is raised."""
    try:
        while query.isActive:
            if options.until_input_closes and input_closes_within(0.2):
                query.processAllAvailable()
                return 0
            time.sleep(0.2)
        query.awaitTermination()
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        query.stop()
    return 0


def input_closes_within(seconds: float) -> bool:
    readable, _, _ = select.select([sys.stdin], [], [], seconds)
    return bool(readable) and not os.read(sys.stdin.fileno(), 1024)


@contextmanager
def spark_session(name: str, folder: Path) -> Iterator[SparkSession]:
    """A local Spark with the settings that make small batches quick; it ends with the block."""
    from pyspark.sql import SparkSession

    from nadi.spark import TUNED, tuned

    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    builder = tuned(SparkSession.builder.master("local[2]").appName(name))
    builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.local.dir", str(folder))
    builder = builder.config(_JAVA_OPTIONS, f"{TUNED[_JAVA_OPTIONS]} {_QUIET}")
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
