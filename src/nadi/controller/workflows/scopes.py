"""Scopes: the flat namespaces of streams, reader groups and key-value tables.

A scope under deletion is marked DELETING in its record, where creations see it (`engine.workflows`). Then unfinished
work is finished and the contents are deleted; the record goes last. If the deletion isn't recursive and the scope isn't
empty, it becomes ACTIVE again.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

from msgspec.structs import replace

from nadi import errors
from nadi.controller.engine.workflows import Workflows, WorkRefused
from nadi.controller.state.metadata import GroupName, StreamName, TableName
from nadi.controller.state.records import (
    CreateWork,
    DeleteScopeWork,
    RetentionType,
    Scope,
    ScopeState,
    StreamConfigRecord,
    UpdateWork,
)
from nadi.controller.state.segments import ABSENT, ANY_VERSION, RecordTable, Versioned
from nadi.controller.workflows import delete, groups, seal, tables
from nadi.limits import LIST_PAGE
from nadi.naming import AUDIT_STREAM, INTERNAL_SCOPE, check_name


def scope_name(scope: str) -> StreamName:
    return StreamName(scope, "")


async def create_scope(flow: Workflows, scope: str) -> None:
    check_name("scope", scope, internal=True)
    name = scope_name(scope)
    if await flow.metadata.scopes.get(scope, fresh=True) is not None:  # before waiting for a deletion, which takes long
        raise errors.AlreadyExistsError("scope", scope)
    async with flow.lock(name):  # the last step of a former scope of this name may still be running
        try:
            await flow.metadata.scopes.put(scope, Scope(flow.clock.now_ms()), ABSENT)
        except errors.ConditionFailedError as error:
            raise errors.AlreadyExistsError("scope", scope) from error


async def make_internal(flow: Workflows) -> None:
    """Create the scope of the controller's own tables; clients can't create anything in it."""
    if await flow.metadata.find_scope(INTERNAL_SCOPE) is None:
        await flow.metadata.streams(INTERNAL_SCOPE).create()
        await flow.metadata.scopes.put(INTERNAL_SCOPE, Scope(flow.clock.now_ms()), ANY_VERSION)


async def make_audit(flow: Workflows, retention_ms: int) -> None:
    """Create the audit stream, or set its retention; 0 keeps everything."""
    name = StreamName(INTERNAL_SCOPE, AUDIT_STREAM)
    config = StreamConfigRecord()
    if retention_ms:
        config = StreamConfigRecord(
            retention_type=RetentionType.TIME, retention_param=retention_ms, retention_max=(1 << 63) - 1
        )

    async def begin() -> CreateWork | UpdateWork | None:
        stream = await flow.metadata.find_stream(name)
        if stream is None:
            (first,) = await flow.metadata.first_numbers([name])
            return CreateWork(config, flow.clock.now_ms(), first, False, 0)
        return None if stream.value.config == config else UpdateWork(config)

    await flow.run(name, begin)


def check_deletable(scope: str, *, recursive: bool) -> None:
    """Reject the deletion of the controller's own scope, which is never empty."""
    if scope == INTERNAL_SCOPE and recursive:
        raise errors.PermissionDeniedError(f"the scope {scope} belongs to the server and can't be deleted")
    if scope == INTERNAL_SCOPE:
        raise errors.NotEmptyError(f"the scope {scope} contains the server's metadata and can't be deleted")


async def begin_delete(flow: Workflows, scope: str, *, recursive: bool) -> DeleteScopeWork:
    _, version = await flow.metadata.scope(scope)
    if not recursive and not await _is_empty(flow, scope):
        raise _not_empty(scope)
    return DeleteScopeWork(recursive, version)


def _not_empty(scope: str) -> errors.NotEmptyError:
    return errors.NotEmptyError(f"scope {scope} is not empty: delete its streams, reader groups and tables first")


def _contents(flow: Workflows, scope: str) -> tuple[RecordTable[Any], ...]:
    """Return the tables whose records are the contents of the scope."""
    return flow.metadata.groups(scope), flow.metadata.tables(scope), flow.metadata.streams(scope)


async def _is_empty(flow: Workflows, scope: str) -> bool:
    return not any([await _some(table, 1) for table in _contents(flow, scope)])


async def _some(table: RecordTable[Any], count: int = LIST_PAGE) -> list[str]:
    return [name for name, _ in (await table.page(count=count))[0]]


async def delete_steps(flow: Workflows, name: StreamName, work: DeleteScopeWork) -> None:
    scope, scopes = name.scope, flow.metadata.scopes
    record = await scopes.get(scope, fresh=True)
    if record is not None and record.value.state is ScopeState.ACTIVE:
        if work.version != record.version:
            return  # the scope was deleted and recreated, or wasn't empty
        record = await scopes.put(scope, replace(record.value, state=ScopeState.DELETING), record.version)
    await _delete_contents(flow, scope, record, recursive=work.recursive)
    for table in _contents(flow, scope):
        await table.delete(must_be_empty=True)
    for table in (flow.metadata.tags(scope), *flow.metadata.shared(scope)):
        await table.delete()
    if record is not None:
        await scopes.remove_if((scope, record.version))


async def _delete_contents(flow: Workflows, scope: str, record: Versioned[Scope] | None, *, recursive: bool) -> None:
    """Delete the scope's contents page by page, or refuse to. Only unfinished work can add new contents."""
    while True:
        try:
            await flow.quiet(scope)
            if await _is_empty(flow, scope):
                return
        except errors.StorageFullError:
            if recursive or record is None:
                raise
        if not recursive and record is not None:
            await flow.metadata.scopes.put(scope, replace(record.value, state=ScopeState.ACTIVE), record.version)
            raise WorkRefused(_not_empty(scope))
        for group in [GroupName(scope, name) for name in await _some(flow.metadata.groups(scope))]:
            with suppress(errors.ReaderGroupNotFoundError):
                await flow.run(group.stream, partial(groups.begin_delete, flow, group, None))
        for table in [TableName(scope, name) for name in await _some(flow.metadata.tables(scope))]:
            with suppress(errors.KeyValueTableNotFoundError):
                await flow.run(table.stream, partial(tables.begin_delete, flow, table))
        for stream in [StreamName(scope, name) for name in await _some(flow.metadata.streams(scope))]:
            with suppress(errors.StreamNotFoundError):
                await flow.run(stream, partial(seal.begin, flow, stream))
                await flow.run(stream, partial(delete.begin, flow, stream))
