"""The calls about what stands beside streams: reader groups, subscribers, writers' times, key-value tables."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from nadi.controller.engine.workflows import Workflows
from nadi.controller.periodic.watermark_rounds import WatermarkRounds
from nadi.controller.state.history import Cut
from nadi.controller.state.metadata import GroupName, StreamName, TableName
from nadi.controller.state.records import (
    GroupConfig,
    KeyValueTable,
    ReaderGroup,
    Step,
    TableConfig,
    UpdateGroupWork,
)
from nadi.controller.state.store import RecordTable, T, Versioned
from nadi.controller.time import marks
from nadi.controller.workflows import groups, subscribers, tables
from nadi.errors import AlreadyExistsError, InvalidArgumentError
from nadi.limits import LIST_PAGE


class StructureCalls:
    """The part of `Controller` that has these calls."""

    def __init__(self, flow: Workflows) -> None:
        self._flow, self.metadata = flow, flow.metadata
        self.watermarks = WatermarkRounds(flow)

    # --- reader groups ---------------------------------------------------------------------------

    async def create_reader_group(self, name: GroupName, config: GroupConfig, group_id: str) -> ReaderGroup:
        """The group as stored: an existing one of that name, else a new one with this UUID."""
        with suppress(AlreadyExistsError):
            await self._flow.run(name.stream, lambda: groups.begin_create(self._flow, name, config, group_id))
        return await self.reader_group(name)

    async def reader_group(self, name: GroupName) -> ReaderGroup:
        return (await self.metadata.group(name)).value

    async def list_reader_groups(self, scope: str, token: str, count: int = LIST_PAGE) -> tuple[list[str], str]:
        """A page of names, and the token to continue from; an empty page is the end."""
        await self.metadata.scope(scope)
        found, token = await page_of(self.metadata.groups(scope), token, count)
        return [group for group, _ in found], token

    async def update_reader_group(self, name: GroupName, config: GroupConfig, group_id: str, generation: int) -> int:
        """The new generation; GenerationMismatchError if the group is no longer as the caller read it."""
        begin = partial(groups.begin_update, self._flow, name, config, group_id, generation)
        work = await self._flow.run(name.stream, begin)
        assert isinstance(work, UpdateGroupWork)
        return work.group.generation

    async def delete_reader_group(self, name: GroupName, group_id: str) -> None:
        await self._flow.run(name.stream, lambda: groups.begin_delete(self._flow, name, group_id))

    async def subscribers(self, name: StreamName) -> list[str]:
        return await subscribers.names(self._flow, name)

    async def publish_cut(self, name: StreamName, subscriber: str, group_id: str, generation: int, cut: Cut) -> None:
        """Let retention truncate before this cut as far as the subscriber is concerned."""
        await subscribers.publish(self._flow, name, subscriber, group_id, generation, cut)

    # --- event time ------------------------------------------------------------------------------

    async def note_time(
        self, name: StreamName, writer: str, time: int, position: Cut, steps: Sequence[Step] | None = None
    ) -> None:
        """Record that all the writer's events up to `time` lie before `position`. steps: times up to that one, each
        with a position that the writer's later events lie behind as well; None: the time and the position are one."""
        if await marks.note(self._flow, name, writer, time, position, steps):
            await self.watermarks.look_at(name)

    async def remove_writer(self, name: StreamName, writer: str) -> None:
        await marks.remove_writer(self._flow, name, writer)

    # --- key-value tables ------------------------------------------------------------------------

    async def create_table(self, name: TableName, config: TableConfig) -> None:
        """Create a key-value table: when this returns, all its segments exist."""
        await self._flow.run(name.stream, lambda: tables.begin_create(self._flow, name, config))

    async def delete_table(self, name: TableName) -> None:
        await self._flow.run(name.stream, lambda: tables.begin_delete(self._flow, name))

    async def table(self, name: TableName) -> KeyValueTable:
        return (await self.metadata.table(name)).value

    async def list_tables(self, scope: str, token: str) -> tuple[list[str], str]:
        """A page of names of key-value tables; an empty page is the end."""
        await self.metadata.scope(scope)
        found, token = await page_of(self.metadata.tables(scope), token, LIST_PAGE)
        return [table for table, _ in found], token


async def page_of(table: RecordTable[T], token: str, count: int) -> tuple[list[tuple[str, Versioned[T]]], str]:
    found, following = await table.page(position_of(token), count)
    return found, following.hex() if found else token


def position_of(token: str) -> bytes:
    try:
        return bytes.fromhex(token)
    except ValueError as error:
        raise InvalidArgumentError(f"{token[:40]!r} is not a continuation token of this controller") from error
