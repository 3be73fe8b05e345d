"""Key-value tables: a fixed number of table segments over equal ranges of the key space.

Clients read and write the segments themselves; the controller creates, locates and deletes them. A table never scales.
As for streams, segment numbers continue after those of a deleted table of the same name, so no name is used twice.
"""

from __future__ import annotations

from nadi.controller.engine.workflows import Workflows, WorkRefused, check_all, check_scope
from nadi.controller.state.history import first_epoch
from nadi.controller.state.metadata import StreamName, TableName
from nadi.controller.state.records import CreateTableWork, DeleteTableWork, KeyValueTableRecord, TableConfig
from nadi.controller.state.segments import ANY_VERSION, together
from nadi.errors import AlreadyExistsError
from nadi.limits import PREFIXED_NAME_MAX_CHARS, STREAM_MAX_SEGMENTS, TABLE_FIXED_KEY_MAX_BYTES
from nadi.naming import check_name


def check_config(config: TableConfig) -> None:
    key_bytes = config.primary_key_bytes + config.secondary_key_bytes
    check_all(
        "key-value table",
        (1 <= config.partitions <= STREAM_MAX_SEGMENTS, f"1 to {STREAM_MAX_SEGMENTS:,} partitions"),
        (config.primary_key_bytes > 0, "a primary key of at least one byte"),
        (config.secondary_key_bytes >= 0, "no negative length of the secondary key"),
        (key_bytes <= TABLE_FIXED_KEY_MAX_BYTES, f"keys of at most {TABLE_FIXED_KEY_MAX_BYTES} bytes"),
        (config.rollover_size_bytes >= 0, "no negative rollover size"),
    )


async def begin_create(flow: Workflows, name: TableName, config: TableConfig) -> CreateTableWork:
    check_name("key-value table", name.table, max_chars=PREFIXED_NAME_MAX_CHARS)
    await flow.metadata.open_scope(name.scope)
    if await flow.metadata.find_table(name) is not None:
        raise AlreadyExistsError("key-value table", name.key)
    check_config(config)
    (first,) = await flow.metadata.first_numbers([name.stream])
    now = flow.clock.now_ms()
    return CreateTableWork(KeyValueTableRecord(config, now, first_epoch(config.partitions, now, first).added))


async def create_steps(flow: Workflows, stream: StreamName, work: CreateTableWork) -> None:
    table, config = work.table, work.table.config
    key_bytes = config.primary_key_bytes + config.secondary_key_bytes
    try:
        await check_scope(flow, stream.scope)
    except WorkRefused:
        if await flow.metadata.tables(stream.scope).get(TableName.of(stream).table, fresh=True) is not None:
            return  # already created: its record is the last step
        await together(flow.segments.delete_table(stream.segment(segment.id)) for segment in table.segments)
        raise
    await together(
        flow.segments.create_table(stream.segment(segment.id), key_bytes, config.rollover_size_bytes)
        for segment in table.segments
    )
    await flow.metadata.tables(stream.scope).put(TableName.of(stream).table, table, ANY_VERSION)


async def begin_delete(flow: Workflows, name: TableName) -> DeleteTableWork:
    await flow.metadata.table(name)
    return DeleteTableWork()


async def delete_steps(flow: Workflows, stream: StreamName, work: DeleteTableWork) -> None:
    name = TableName.of(stream)
    record = await flow.metadata.find_table(name)
    if record is None:
        return
    segments = record.value.segments
    await together(flow.segments.delete_table(stream.segment(segment.id)) for segment in segments)
    await flow.metadata.keep_last_numbers([(stream, segments)])
    await flow.metadata.tables(stream.scope).remove([name.table])
