"""A run: a server, a stream, and the processes that write, read and watch it; and its results.

All files of a run are in one folder. Once the plan is written the stream is sealed, which ends the readers; then the
query is stopped, and the events read are judged.
"""

from __future__ import annotations

import json
import random
import threading
import time
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import nadi
from bench.elastic import plan, spark_query
from bench.elastic.parts import GROUP, SCOPE, STREAM, ms_now
from bench.elastic.reader import NOTES
from bench.elastic.scalings import Sample, Scaling, samples_of, scalings_of
from bench.elastic.verdict import Array, Verdict, judge
from bench.java import client
from bench.part import Part
from nadi.client import ScalingPolicy
from nadi.model.reports import ScalingReport, SegmentReport

READERS = 2
BY_HAND = "by-hand"
END_S = 600.0  # for readers and the query to come to the end, once all is written
_MOST_BY_HAND = 12  # segments


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a run.

    target: events per second for a segment. scaling: "fast", "classic" or "by-hand", random splits and merges. writer:
    "python" or "java". spark: whether a query follows, too. naps: whether the second reader pauses at times.
    """

    target: int = 1000
    factor: int = 16
    scaling: str = "fast"
    writer: str = "python"
    spark: bool = True
    seed: int = 1
    naps: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results. waits_s: from an event's writing to its reading, p50, p99 and maximum. progress: the writer's
    notes."""

    settings: Settings
    began_ms: int
    rates: list[int]
    progress: list[dict[str, Any]]
    samples: list[Sample]
    history: list[SegmentReport]
    scalings: list[Scaling]
    log: list[ScalingReport]
    group: Verdict
    shares: list[int]
    waits_s: tuple[float, float, float]
    query: Verdict | None
    batches: int
    memory_bytes: int

    @property
    def is_good(self) -> bool:
        return self.group.is_good and (self.query is None or self.query.is_good)


def run(folder: Path, settings: Settings) -> Outcome:
    """Follow the plan in `folder / "plan"`; raises PartFailedError if a process fails, JavaMissingError."""
    rates = plan.rates_of(folder / "plan")
    java = client.command("PlanWriter.java", folder) if settings.writer == "java" else None
    (folder / "notes").mkdir()
    is_by_hand = settings.scaling == BY_HAND
    with ExitStack() as stack:
        server = stack.enter_context(
            nadi.embedded(folder / "server", scaling="classic" if is_by_hand else settings.scaling)
        )
        manager = stack.enter_context(nadi.StreamManager(server.controller_uri))
        manager.create_scope(SCOPE)
        by_load = ScalingPolicy.by_event_rate(settings.target, scale_factor=settings.factor)
        manager.create_stream(SCOPE, STREAM, scaling=ScalingPolicy.fixed(1) if is_by_hand else by_load)
        manager.reader_group_manager(SCOPE).create_reader_group(GROUP, STREAM)
        uri = server.controller_uri
        readers = [stack.enter_context(_reader(settings, folder, uri, number)) for number in range(READERS)]
        recording = Part.of_module("recorder", "bench.elastic.recorder", folder, uri, str(folder / "samples"))
        recorder = stack.enter_context(recording)
        parts = [*readers, recorder]
        if settings.spark:
            query = Part.of_module("query", "bench.elastic.spark_query", folder, uri, str(folder / "spark"))
            parts.append(stack.enter_context(query))
        for part in parts:
            part.await_ready()
        writer = stack.enter_context(_writer(java, folder, uri))
        writer.await_ready()
        began_ms = ms_now()
        with _Hand(manager, settings.seed) if is_by_hand else nullcontext():
            _watch(writer, parts, len(rates))
        recorder.notify()
        recorder.await_end(END_S)
        history, log = manager.segment_history(SCOPE, STREAM), manager.scaling_log(SCOPE, STREAM)
        manager.seal_stream(SCOPE, STREAM)
        for part in readers:
            part.await_end(END_S)
        if settings.spark:
            query.notify()
            query.await_end(END_S)
        memory = server.peak_memory_bytes()
    written = np.loadtxt(folder / "plan" / "counts", np.int64, ndmin=1)
    notes, shares = _read(folder)
    waits = notes["wait_us"] / 1e6
    query_verdict, batches = None, 0
    if settings.spark:
        keys, sequences, batches = spark_query.read_back(folder / "spark")
        query_verdict = judge(written, keys, sequences)
    samples = samples_of(folder / "samples")
    return Outcome(
        settings,
        began_ms,
        rates,
        [json.loads(line) for line in (folder / "plan" / "progress").read_text().splitlines()],
        samples,
        history,
        scalings_of(history, [] if is_by_hand else samples, settings.target),
        log,
        judge(written, notes["key"].astype(np.int64), notes["sequence"].astype(np.int64)),
        shares,
        (float(np.percentile(waits, 50)), float(np.percentile(waits, 99)), float(waits.max())),
        query_verdict,
        batches,
        memory,
    )


def _notes(folder: Path, number: int) -> Path:
    return folder / "notes" / f"{number}"


def _reader(settings: Settings, folder: Path, uri: str, number: int) -> Part:
    naps = "naps" if settings.naps and number else "awake"
    arguments = [uri, f"{number}", str(_notes(folder, number)), naps]
    return Part.of_module(f"reader-{number}", "bench.elastic.reader", folder, *arguments)


def _writer(java: list[str] | None, folder: Path, uri: str) -> Part:
    arguments = [uri, SCOPE, STREAM, str((folder / "plan").absolute())]
    if java is not None:
        return Part("writer", [*java, *arguments], folder)
    return Part.of_module("writer", "bench.elastic.writer", folder, *arguments)


def _watch(writer: Part, others: list[Part], seconds: int) -> None:
    """Wait until the writer is done, checking that all other processes run."""
    deadline = time.monotonic() + 2 * seconds + END_S
    while writer.is_running and time.monotonic() < deadline:
        for part in others:
            part.check()
        time.sleep(0.2)
    writer.await_end(1)


def _read(folder: Path) -> tuple[Array, list[int]]:
    """Return the events that the readers received, in order, and their number per reader."""
    notes = [np.fromfile(_notes(folder, number), NOTES) for number in range(READERS)]
    together = np.concatenate(notes)
    return together[np.argsort(together["at_ns"], kind="stable")], [len(some) for some in notes]


class _Hand:
    """Scales the stream at random, about twice a second, until the block ends; raises failures there."""

    def __init__(self, manager: nadi.StreamManager, seed: int) -> None:
        self._manager, self._chance = manager, random.Random(seed)
        self._is_over = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            while not self._is_over.wait(self._chance.uniform(0.1, 0.8)):
                self._scale()
        except BaseException as error:
            self._failure = error

    def _scale(self) -> None:
        segments = self._manager.current_segments(SCOPE, STREAM)
        if not segments:
            return  # it is sealed
        at = self._chance.randrange(len(segments))
        if len(segments) < _MOST_BY_HAND and (len(segments) == 1 or self._chance.random() < 0.6):
            piece = segments[at]
            middle = piece.low + (piece.high - piece.low) * self._chance.uniform(0.2, 0.8)
            self._replace([piece.segment_id], [(piece.low, middle), (middle, piece.high)])
        else:
            left, right = segments[at - 1 : at + 1] if at else segments[:2]
            self._replace([left.segment_id, right.segment_id], [(left.low, right.high)])

    def _replace(self, segments: list[int], ranges: list[tuple[float, float]]) -> None:
        if not self._is_over.is_set():
            self._manager.scale_stream(SCOPE, STREAM, segments, ranges)

    def __enter__(self) -> _Hand:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure
