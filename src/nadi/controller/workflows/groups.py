"""Reader groups: a configuration, a stream `_RG<group>` for the group's state, and subscriptions.

Readers share their state through the stream (nadi's own through a table that its client creates), not through the
controller, so a group exists only once its stream does. Both are deleted with it. A group whose retention type isn't
NONE subscribes to its streams (`subscribers`). The record is written last and removed last: while it exists, stream and
subscriptions exist or are being created or removed. Each update increments the generation; a request with another
generation fails, and its client reads the group again.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from nadi import errors
from nadi.controller.engine.workflows import Workflows, check_all
from nadi.controller.state.metadata import GroupName, StreamName
from nadi.controller.state.records import (
    CreateGroupWork,
    CreateWork,
    DeleteGroupWork,
    DeleteWork,
    GroupConfig,
    GroupRetention,
    ReaderGroupRecord,
    SealWork,
    StreamConfigRecord,
    UpdateGroupWork,
)
from nadi.controller.transactions.decisions import Transactions
from nadi.controller.workflows import create, delete, seal, subscribers
from nadi.limits import PREFIXED_NAME_MAX_CHARS, READER_GROUP_MAX_BYTES, READER_GROUP_ROLLOVER_BYTES
from nadi.naming import READER_GROUP_PREFIX, check_name


def check_config(config: GroupConfig) -> None:
    """Raise InvalidArgumentError for a configuration that is too large or that official clients couldn't decode."""
    for key in (*config.starts, *config.ends):
        scope, _, stream = key.partition("/")
        try:
            check_name("scope", scope, internal=True)
            check_name("stream", stream, internal=True)
        except errors.InvalidNameError as error:  # would otherwise appear to be about the group's name
            raise errors.InvalidArgumentError(f"the reader group has a stream cut for {key!r}: {error}") from error
    for subscription in subscribed(config):  # its lock is another group's: taking two of those could deadlock
        if subscription.stream.startswith(READER_GROUP_PREFIX):
            raise errors.InvalidArgumentError(
                f"{subscription} is the state of a reader group: groups can't subscribe to it"
            )
    size = len(msgspec.msgpack.encode(config))
    check_all(
        "reader group",
        (bool(config.starts), "a starting stream cut for at least one stream"),
        (config.ends.keys() <= config.starts.keys(), "a starting stream cut for each stream with an ending one"),
        (config.max_outstanding_checkpoints > 0, "at least one outstanding checkpoint"),
        (config.rollover_size_bytes >= 0, "no negative rollover size"),
        (size <= READER_GROUP_MAX_BYTES, f"at most {READER_GROUP_MAX_BYTES:,} bytes, but has {size:,}"),
    )


def subscribed(config: GroupConfig) -> Iterator[StreamName]:
    if config.retention_type is not GroupRetention.NONE:
        for key in config.starts:
            yield StreamName.of(key)


async def begin_create(flow: Workflows, name: GroupName, config: GroupConfig, group_id: str) -> CreateGroupWork:
    check_name("reader group", name.group, max_chars=PREFIXED_NAME_MAX_CHARS)
    await flow.metadata.open_scope(name.scope)
    if await flow.metadata.find_group(name) is not None:
        raise errors.AlreadyExistsError("reader group", name.key)
    check_config(config)
    for stream in subscribed(config):
        await flow.metadata.stream(stream)
    (first,) = await flow.metadata.first_numbers([name.stream])
    return CreateGroupWork(ReaderGroupRecord(config, group_id, 0, flow.clock.now_ms()), first)


async def create_steps(flow: Workflows, stream: StreamName, work: CreateGroupWork) -> None:
    name, group = GroupName.of(stream), work.group
    if await flow.metadata.find_stream(stream) is None:
        rollover = group.config.rollover_size_bytes or READER_GROUP_ROLLOVER_BYTES
        config = StreamConfigRecord(rollover_size_bytes=rollover)
        await create.steps(flow, stream, CreateWork(config, group.created_ms, work.first_number, False, 0))
    for subscription in subscribed(group.config):
        await subscribers.subscribe(flow, subscription, name, group)
    await flow.metadata.put_group(name, group)


async def begin_update(
    flow: Workflows, name: GroupName, config: GroupConfig, group_id: str, generation: int
) -> UpdateGroupWork:
    current = (await flow.metadata.group(name)).value
    if generation != current.generation or group_id != current.group_id:
        raise errors.GenerationMismatchError(name.key, generation, current.generation)
    check_config(config)
    before = set(subscribed(current.config))
    for stream in subscribed(config):
        if stream not in before:
            await flow.metadata.stream(stream)
    return UpdateGroupWork(replace(current, config=config, generation=generation + 1))


async def update_steps(flow: Workflows, stream: StreamName, work: UpdateGroupWork) -> None:
    name, group = GroupName.of(stream), work.group
    current = (await flow.metadata.group(name)).value
    staying = list(subscribed(group.config))
    for subscription in staying:
        await subscribers.subscribe(flow, subscription, name, group)
    for subscription in set(subscribed(current.config)).difference(staying):
        await subscribers.unsubscribe(flow, subscription, name)
    await flow.metadata.put_group(name, group)


async def begin_delete(flow: Workflows, name: GroupName, group_id: str | None) -> DeleteGroupWork:
    """Return the work to record. group_id: None deletes whichever group has the name."""
    current = (await flow.metadata.group(name)).value
    if group_id is not None and group_id != current.group_id:
        raise errors.ReaderGroupNotFoundError(*name)
    return DeleteGroupWork()


async def delete_steps(flow: Workflows, transactions: Transactions, stream: StreamName, work: DeleteGroupWork) -> None:
    name = GroupName.of(stream)
    current = await flow.metadata.find_group(name)
    if current is not None:
        for subscription in subscribed(current.value.config):
            await subscribers.unsubscribe(flow, subscription, name)
    if await flow.metadata.find_stream(stream) is not None:
        await seal.steps(flow, transactions, stream, SealWork())
    await delete.steps(flow, stream, DeleteWork((stream.stream,)))
    await flow.metadata.group_state(name).delete()
    await flow.metadata.groups(name.scope).remove([name.group])
