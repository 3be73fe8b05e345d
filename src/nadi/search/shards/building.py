"""Makes a shard of events: what they say to tantivy, and what doesn't parse to the dead letters.

Each event has an *order*, by which the newest come first: when the server took it, in microseconds, with its segment's
number in the low bits; and more than the one before it in its segment. Of a past that is indexed by many it is no less
than that, and few share one, which are listed by their places. So a page of hits can end behind any of them.

Makes one shard of several. Tantivy merges their segments by its own rule, so they are to be as `to_merge` has them;
what it leaves apart are several segments in one shard, and found all the same.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nadi.limits import SEARCH_REASON_CHARS, SEARCH_WRITER_BYTES
from nadi.model.event import EventBlock
from nadi.naming import segment_number
from nadi.search.analysis import OFFSET, ORDER, ORDER_BITS, SEGMENT, SIZE, facet_of, name_of, prepared, schema_of
from nadi.search.fields import TIMES, Field, Format, UnfitError, reader_of
from nadi.search.shards.manifest import Numbers, Shard, Span, Step
from nadi.search.shards.packing import META, packed, unpack, write_meta

if TYPE_CHECKING:
    from tantivy import Document


_MERGER_BYTES = 15_000_000


def merge(objects: Sequence[tuple[str, memoryview]], fields: tuple[Field, ...]) -> list[memoryview]:
    """The parts of the object of all. Blocks; call it in a thread."""
    from tantivy import Index

    with work_folder() as folder:
        make_empty(folder, fields)
        segments = [segment for shard, data in objects for segment in unpack(data, folder, shard)]
        write_meta(folder, (folder / META).read_bytes(), segments)
        index = prepared(Index.open(str(folder)))
        writer = index.writer(min(_MERGER_BYTES, SEARCH_WRITER_BYTES), 1)
        writer.commit()  # has tantivy look for what it could merge
        writer.wait_merging_threads()
        return packed(folder)


def make_empty(folder: Path, fields: tuple[Field, ...]) -> None:
    """An index of tantivy's without any events."""
    from tantivy import Index

    Index(schema_of(fields), path=str(folder))


_NUMBER_MASK = (1 << ORDER_BITS) - 1
_LEAST_WRITER_BYTES = 15_000_000  # tantivy wants as much
_WORK = "nadi-search-"
_NEW_S = 60.0  # for which a folder may not be locked yet
_PER_BYTE = 16  # of memory, for a byte of events, so that a shard is written in one piece


@dataclass(frozen=True, slots=True)
class Stretch:
    """Events of one segment that follow each other. came_ms: when each was taken, -1 where that is unknown. order: of
    the event before, in microseconds. micros: their orders, where they don't follow from these."""

    segment_id: int
    blocks: Sequence[EventBlock]
    came_ms: Numbers
    order: int
    micros: Numbers | None = None

    @property
    def start(self) -> int:
        return self.blocks[0].offset

    @property
    def end(self) -> int:
        return self.blocks[-1].offset + self.blocks[-1].size_bytes


@dataclass(frozen=True, slots=True)
class Unfit:
    """An event that doesn't parse, and why."""

    segment_id: int
    offset: int
    data: bytes
    reason: str


@dataclass(slots=True)
class Built:
    """having: how many events have each field; parts: of the shard's object, None if it would be empty."""

    steps: list[Step] = field(default_factory=list)
    unfit: list[Unfit] = field(default_factory=list)
    docs: int = 0
    having: list[int] = field(default_factory=list)
    parts: list[memoryview] | None = None

    def shard(self, shard_id: str) -> Shard | None:
        if self.parts is None:
            return None
        spans: list[Span] = [(step.segment_id, step.start, step.end) for step in self.steps]
        return Shard(shard_id, self.docs, sum(map(len, self.parts)), spans)


def orders(came_ms: Numbers, before: int) -> Numbers:
    """The microseconds of events' orders: when they came, and each more than the one before.

    >>> orders(np.array([5, 5, -1, 3, 9]), 5000).tolist()
    [5001, 5002, 5003, 5004, 9000]
    """
    steps = np.arange(len(came_ms))
    return np.maximum(np.maximum.accumulate(came_ms * 1000 - steps), before + 1) + steps


def build(stretches: Sequence[Stretch], form: Format, fields: tuple[Field, ...]) -> Built:
    """Blocks; call it in a thread. The stretches are of different segments."""
    with work_folder() as folder:
        built = _write(folder, stretches, form, fields)
        if built.docs:
            built.parts = packed(folder)
        return built


@contextmanager
def work_folder() -> Iterator[Path]:
    """A folder for tantivy, in memory where the system has files there. It is locked as long as it is used, which a
    kill ends: see `clean_work_folders`."""
    folder = Path(tempfile.mkdtemp(prefix=_WORK))
    lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def clean_work_folders() -> None:
    """Remove those of processes that were killed. Blocks."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_WORK}*"):
        with suppress(OSError):  # another's, or gone, or in use
            lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                found = os.fstat(lock)
                if found.st_uid == os.getuid() and found.st_mtime < time.time() - _NEW_S:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def _write(folder: Path, stretches: Sequence[Stretch], form: Format, fields: tuple[Field, ...]) -> Built:
    from tantivy import Index

    size = sum(one.end - one.start for one in stretches)
    index = prepared(Index(schema_of(fields), path=str(folder)))
    writer = index.writer(max(_LEAST_WRITER_BYTES, min(size * _PER_BYTE, SEARCH_WRITER_BYTES)), 1)
    made = Built(having=[0] * len(fields))
    documents = _documents(form, fields, made.having)
    for stretch in stretches:
        micros = orders(stretch.came_ms, stretch.order) if stretch.micros is None else stretch.micros
        events = documents(stretch, (micros << ORDER_BITS) | (segment_number(stretch.segment_id) & _NUMBER_MASK))
        for found in events:
            if isinstance(found, Unfit):
                made.unfit.append(found)
            else:
                writer.add_document(found)
                made.docs += 1
        made.steps.append(Step(stretch.segment_id, stretch.start, stretch.end, int(micros[-1])))
    if made.docs:
        writer.commit()
    writer.wait_merging_threads()
    return made


def _documents(
    form: Format, fields: tuple[Field, ...], having: list[int]
) -> Callable[[Stretch, Numbers], Iterator[Document | Unfit]]:
    """What makes a stretch's events what tantivy takes, given their orders, and counts in `having` which fields they
    have."""
    from tantivy import Document

    def add_facet(document: Document, name: str, value: str) -> None:
        document.add_facet(name, facet_of(value))

    kinds: dict[str, Any] = {
        "text": Document.add_text,
        "keyword": Document.add_text,
        "long": Document.add_integer,
        **dict.fromkeys(TIMES, Document.add_integer),
        "double": Document.add_float,
        "bool": Document.add_boolean,
        "facet": add_facet,
    }
    adders = [(kinds[field.kind], name_of(number)) for number, field in enumerate(fields)]
    values_of = reader_of(form, fields)

    def documents(stretch: Stretch, numbers: Numbers) -> Iterator[Document | Unfit]:
        segment, place = stretch.segment_id, iter(numbers.tolist())
        for block in stretch.blocks:
            offsets = block.offsets().tolist()
            ends = [*offsets[1:], block.offset + block.size_bytes]
            for data, offset, end, order in zip(block.events(), offsets, ends, place, strict=False):
                try:
                    values = values_of(data)
                except UnfitError as error:
                    yield Unfit(segment, offset, data, str(error)[:SEARCH_REASON_CHARS])
                    continue
                document = Document()
                add = document.add_unsigned
                add(ORDER, order)
                add(SEGMENT, segment)
                add(OFFSET, offset)
                add(SIZE, end - offset)
                last = -1
                for number, value in values:
                    adder, name = adders[number]
                    adder(document, name, value)
                    if number != last:  # values of one field follow each other
                        having[number] += 1
                        last = number
                yield document

    return documents
