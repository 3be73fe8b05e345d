"""Dead letters: events that are no rows, as JSON in a stream of their own, each once.

A snapshot says how many there are among the events that it covers, and how many there were before. They are written
after it, read anew from between its cuts, under numbers that follow from that: whoever writes them again, because a
writer was killed before it was done, writes those that are missing (`client.numbered`). No snapshot follows before.
"""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import numpy as np
import pyarrow as pa

from nadi.client import StreamManager
from nadi.client.blocking.face import inside
from nadi.client.manager.streams import stores_of
from nadi.client.numbered.places import StreamShape
from nadi.client.numbered.writer import NumberedEvent, NumberedWriter
from nadi.client.scan.scan import scan
from nadi.client.values.options import value_options
from nadi.client.values.parser import ValueParser
from nadi.client.values.target import target_of
from nadi.lake.definition import LakeDefinition
from nadi.lake.marks import Mark
from nadi.lake.table.partitions import misplaced, partition_fields
from nadi.limits import LAKE_LETTERS_AT_ONCE, MIB
from nadi.model.keyspace import key_position
from nadi.naming import segment_name
from nadi.process.dead_letters import DeadLetter

_AT_ONCE_BYTES = 4 * MIB


def write_letters(manager: StreamManager, lake: LakeDefinition, table_id: UUID, mark: Mark) -> int:
    """Write those of one snapshot that aren't there yet, in order; how many it has. TruncatedError if their events are
    gone."""
    to = lake.dead_letter_stream
    if not mark.own_letters or to is None:
        return 0
    thread, core = inside(manager)
    stores = stores_of(core)
    writer = thread.result(lambda: NumberedWriter(StreamShape(stores, *to), table_id.bytes))
    position = key_position(str(table_id))  # of all, so that the last of them is there only if all are
    number = mark.letters - mark.own_letters
    try:
        if thread.run(writer.last_number(position)) >= mark.letters - 1:
            return mark.own_letters  # and what they were made of may be gone
        some: list[NumberedEvent] = []
        size = 0
        for letter in letters_of(manager, lake, mark):
            data = letter.encode()
            some.append(NumberedEvent(number, position, data))
            number, size = number + 1, size + len(data)
            if len(some) >= LAKE_LETTERS_AT_ONCE or size >= _AT_ONCE_BYTES:
                thread.run(writer.write(some))
                some, size = [], 0
        if some:
            thread.run(writer.write(some))
    finally:
        thread.result(writer.close)
    return mark.own_letters


def letters_of(manager: StreamManager, lake: LakeDefinition, mark: Mark) -> Iterator[DeadLetter]:
    """Those between a snapshot's cuts, read as it read them: always the same, in the same order."""
    reading = mark.reading
    assert reading is not None, "bytes are always rows"
    thread, core = inside(manager)
    value = value_options(reading.format, reading.ddl, reading.version, None)
    assert value is not None
    target = thread.run(target_of(core, value, lake.scope, [lake.stream], lambda _: True))
    assert target is not None
    parser = ValueParser(core.schemas(lake.scope, lake.stream), thread.run, lake.full_name, target)
    events = scan(
        manager,
        lake.scope,
        lake.stream,
        start=mark.start_cut,
        end=mark.end_cut,
        columns=["value", "event", "segment_id", "offset"],
        value_format=reading.format,
        value_schema=reading.ddl,
        value_version=reading.version,
    )
    partition = partition_fields(lake.partition)
    for batch in events.batches():
        is_wrong = batch.column("value").is_null().to_numpy(zero_copy_only=False).copy()
        without_partition = misplaced(partition, pa.RecordBatch.from_struct_array(batch.column("value")))
        is_wrong[list(without_partition)] = True
        if not is_wrong.any():
            continue
        wrong = batch.take(pa.array(np.flatnonzero(is_wrong)))
        nowhere = [without_partition.get(int(row)) for row in np.flatnonzero(is_wrong)]
        segment_id, offsets = wrong.column("segment_id")[0].as_py(), wrong.column("offset").to_numpy()
        reasons = parser.parse(wrong.column("event"), segment_id, offsets).wrong
        for at, data in enumerate(wrong.column("event").to_pylist()):
            yield DeadLetter(
                by=f"lake {lake.name}",
                segment=segment_name(lake.scope, lake.stream, segment_id),
                offset=int(offsets[at]),
                reason=reasons.get(at, nowhere[at] or "it is null"),
                data=data,
            )
