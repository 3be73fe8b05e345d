"""Scopes: the flat name spaces that hold streams, reader groups and key-value tables.

`deleting` names the scopes under deletion in this process. Creating anything in one looks at it and marks its
work as pending without an await between; deletion adds to it and looks at the pending work in the same
way. So one of the two always sees the other.
"""

from __future__ import annotations

from typing import Any

from nadi.controller.engine.workflows import Workflows
from nadi.controller.state.metadata import GroupName, StreamName, TableName
from nadi.controller.state.records import DeleteScopeWork, Scope
from nadi.controller.state.store import ABSENT, ANY_VERSION, Table
from nadi.controller.workflows import delete, groups, seal, tables
from nadi.errors import (
    AlreadyExistsError,
    ConditionFailedError,
    KeyValueTableNotFoundError,
    NotEmptyError,
    PermissionDeniedError,
    ReaderGroupNotFoundError,
    SegmentNotFoundError,
    StreamNotFoundError,
)
from nadi.limits import LIST_PAGE
from nadi.naming import INTERNAL_SCOPE, check_name

_PAUSE_S = 0.05


def scope_name(scope: str) -> StreamName:
    """The name under which a scope's own workflows are kept."""
    return StreamName(scope, "")


async def create_scope(flow: Workflows, deleting: set[str], scope: str) -> None:
    check_name("scope", scope, internal=True)
    if scope in deleting:  # that may take long: no reason to let the client wait
        raise AlreadyExistsError("scope", scope)
    async with flow.lock(scope_name(scope)):
        if await flow.metadata.find_scope(scope) is not None:
            raise AlreadyExistsError("scope", scope)
        await flow.metadata.streams(scope).create()
        try:
            await flow.metadata.scopes.put(scope, Scope(flow.clock.now_ms()), ABSENT)
        except ConditionFailedError as error:
            raise AlreadyExistsError("scope", scope) from error


async def make_internal(flow: Workflows) -> None:
    """The scope of the controller's own tables is there like any other, and nothing can be made in it."""
    if await flow.metadata.find_scope(INTERNAL_SCOPE) is None:
        await flow.metadata.streams(INTERNAL_SCOPE).create()
        await flow.metadata.scopes.put(INTERNAL_SCOPE, Scope(flow.clock.now_ms()), ANY_VERSION)


def check_deletable(scope: str, *, recursive: bool) -> None:
    """The controller's own scope always holds something, and nobody may delete that."""
    if scope == INTERNAL_SCOPE and recursive:
        raise PermissionDeniedError(f"the scope {scope} is the server's own")
    if scope == INTERNAL_SCOPE:
        raise NotEmptyError(f"the scope {scope} holds what the server knows of all others")


async def begin_delete(flow: Workflows, deleting: set[str], scope: str, *, recursive: bool) -> DeleteScopeWork:
    await flow.metadata.scope(scope)
    deleting.add(scope)
    try:
        if not recursive:
            if flow.any_pending_in(scope, reached=False) or not await _is_empty(flow, scope):
                raise NotEmptyError(f"scope {scope} is not empty: delete its streams, reader groups and tables first")
            await flow.quiet(scope)  # no record may outlive what it would be resumed on
    except BaseException:
        deleting.discard(scope)
        raise
    return DeleteScopeWork(recursive)


def _contents(flow: Workflows, scope: str) -> tuple[Table[Any], ...]:
    """The tables of which each record is something in the scope."""
    return flow.metadata.groups(scope), flow.metadata.tables(scope), flow.metadata.streams(scope)


async def _is_empty(flow: Workflows, scope: str) -> bool:
    return not any([await _some(table, 1) for table in _contents(flow, scope)])


async def _some(table: Table[Any], count: int = LIST_PAGE) -> list[str]:
    """The first names in the table; none if it was dropped by an earlier try."""
    try:
        return [name for name, _ in (await table.page(count=count))[0]]
    except SegmentNotFoundError:
        return []


async def delete_steps(flow: Workflows, deleting: set[str], name: StreamName, work: DeleteScopeWork) -> None:
    scope = name.scope
    deleting.add(scope)
    if work.recursive:
        await _delete_contents(flow, scope)
    for table in (*_contents(flow, scope), flow.metadata.tags(scope), *flow.metadata.shared(scope)):
        await table.drop()
    await flow.metadata.scopes.remove([scope])
    flow.scopes_deleted += 1
    deleting.discard(scope)


async def _delete_contents(flow: Workflows, scope: str) -> None:
    """Delete what is in the scope, a page at a time; nothing new comes in, but some may be under way."""
    while True:
        for group in (some_groups := await _some(flow.metadata.groups(scope))):
            await _delete_group(flow, GroupName(scope, group))
        for table in (some_tables := await _some(flow.metadata.tables(scope))):
            await _delete_table(flow, TableName(scope, table))
        for stream in (some_streams := await _some(flow.metadata.streams(scope))):
            await _delete_stream(flow, StreamName(scope, stream))
        if not (some_groups or some_tables or some_streams):
            if not flow.any_pending_in(scope):
                return
            await flow.clock.sleep(_PAUSE_S)


async def _delete_group(flow: Workflows, name: GroupName) -> None:
    try:
        await flow.run(name.stream, lambda: groups.begin_delete(flow, name, None))
    except ReaderGroupNotFoundError:
        pass


async def _delete_table(flow: Workflows, name: TableName) -> None:
    try:
        await flow.run(name.stream, lambda: tables.begin_delete(flow, name))
    except KeyValueTableNotFoundError:
        pass


async def _delete_stream(flow: Workflows, name: StreamName) -> None:
    try:
        await flow.run(name, lambda: seal.begin(flow, name))
        await flow.run(name, lambda: delete.begin(flow, name))
    except StreamNotFoundError:
        pass
