"""A format that wraps nadi's and kills a process at an ordered step of a micro-batch.

An order is a file `<link>.<step>` in the folder `orders` that names the victim. The first process to reach that step
takes it. A link is one query of a chain.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from nadi.spark import intents
from nadi.spark.options.table import SparkFormat
from nadi.spark.registered import RegisteredFormat
from nadi.spark.source_requests import SourceRequest

ROOT = Path(__file__).parents[3]
STEPS = (
    "before-offset-log",  # the end of the batch is planned, and not yet in Spark's offset log
    "after-offset-log",
    "reading",
    "writing",
    "written",  # a task has handed its transaction over, and the driver doesn't know
    "committing",
    "recorded",  # the decision is durable, and nothing is done of it
    "committed",  # before Spark's commit log
    "after-commit-log",
)
IN_TASKS = ("reading", "writing", "written")
VICTIMS = ("driver", "executor", "worker", "server")


def kill(victim: str, folder: Path) -> bool:
    """Kill a victim; return False if it doesn't run yet. `worker` is this process, `executor` the driver's JVM if there
    is none. The test restarts server and driver."""
    known = json.loads((folder / "processes.json").read_text())
    if victim == "worker":
        os.kill(os.getpid(), signal.SIGKILL)
    if victim == "server":
        os.kill(known["server"], signal.SIGKILL)
        return True
    driver = psutil.Process(known["driver"])
    below, jvms = driver.children(recursive=True), [one for one in driver.children() if one.name() == "java"]
    if victim == "executor":
        mine = {parent.pid for parent in psutil.Process().parents()}
        executors = [one for one in below if _is_executor(one)]
        random.shuffle(executors)
        executors.sort(key=lambda one: one.pid not in mine)  # the one whose task this is, if it is one
        for one in (executors or jvms)[:1]:
            one.kill()
        return bool(executors or jvms)
    driver.kill()
    for jvm in jvms:
        jvm.kill()
    return True


def _is_executor(process: psutil.Process) -> bool:
    try:
        return "CoarseGrainedExecutorBackend" in " ".join(process.cmdline())
    except psutil.Error:
        return False


def start_driver(module: str, folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Start it in its own session, with its output in `driver.log`."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", f"tests.spark.kills.{module}", *arguments]
    with (folder / "driver.log").open("ab") as log:
        environment = os.environ | {"PYTHONPATH": path}
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, env=environment)


def end_driver(driver: subprocess.Popen[bytes]) -> None:
    """Kill its remaining processes, so that the next driver has both cores."""
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == driver.pid:
                process.kill()
        except (OSError, psutil.Error):
            continue
    driver.wait()


def said(folder: Path) -> str:
    """Return the last output of its drivers."""
    return (folder / "driver.log").read_text(errors="replace")[-3000:]


class Steps:
    """The steps of one link."""

    def __init__(self, where: str) -> None:
        folder, _, self._link = where.rpartition(":")
        self._folder = Path(folder)

    def at(self, step: str) -> None:
        order = self._folder / "orders" / f"{self._link}.{step}"
        taken = self._folder / "taken" / f"{order.name}.{os.getpid()}"
        try:
            order.rename(taken)
        except FileNotFoundError:
            return
        kill(taken.read_text(), self._folder)


class KillingReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, inner: Any, steps: Steps) -> None:
        self._inner, self._steps = inner, steps

    def initialOffset(self) -> dict[str, Any]:
        return self._inner.initialOffset()  # type: ignore[no-any-return]

    def getDefaultReadLimit(self) -> ReadLimit:
        return self._inner.getDefaultReadLimit()  # type: ignore[no-any-return]

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        found: dict[str, Any] = self._inner.latestOffset(start, limit)
        if found != start:
            self._steps.at("before-offset-log")
        return found

    def prepareForTriggerAvailableNow(self) -> None:
        self._inner.prepareForTriggerAvailableNow()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._steps.at("after-offset-log")
        return self._inner.partitions(start, end)  # type: ignore[no-any-return]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for rows in self._inner.read(partition):
            yield rows
            self._steps.at("reading")

    def commit(self, end: dict[str, Any]) -> None:
        self._steps.at("after-commit-log")
        self._inner.commit(end)
        self._steps.at("mirrored")

    def stop(self) -> None:
        self._inner.stop()


class KillingWriter(DataSourceStreamArrowWriter):
    def __init__(self, inner: Any, steps: Steps) -> None:
        self._inner, self._steps = inner, steps

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        message: WriterCommitMessage = self._inner.write(self._passed(iterator))
        self._steps.at("written")
        return message

    def _passed(self, iterator: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in iterator:
            yield batch
            self._steps.at("writing")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._steps.at("committing")
        commit_all, steps = intents.commit_all, self._steps

        async def recorded(*given: Any) -> Any:
            steps.at("recorded")
            return await commit_all(*given)

        intents.commit_all = recorded  # type: ignore[assignment]
        try:
            self._inner.commit(messages, batchId)
        finally:
            intents.commit_all = commit_all
        self._steps.at("committed")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._inner.abort(messages, batchId)


class KillingSource(SourceRequest):
    def __init__(self, given: Mapping[str, str], steps: Steps) -> None:
        super().__init__(given, SparkFormat.NADI)
        self._steps = steps

    def stream_reader(self, schema: StructType) -> Any:
        return KillingReader(super().stream_reader(schema), self._steps)

    def stream_writer(self, schema: StructType, overwrite: bool) -> Any:
        return KillingWriter(super().stream_writer(schema, overwrite), self._steps)


class Killing(RegisteredFormat):
    """The format. Options besides nadi's: `kills`, the folder of orders and the link."""

    @classmethod
    def name(cls) -> str:
        return "killing"

    def _source(self) -> SourceRequest:
        given = {name: value for name, value in self.options.items() if name.lower() != "kills"}
        return KillingSource(given, Steps(self.options["kills"]))
