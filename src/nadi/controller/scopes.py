"""Scopes: the flat name spaces that hold streams.

`deleting` names the scopes under deletion in this process. Creating a stream looks at it and marks its
work as pending without an await between; deletion adds to it and looks at the pending work in the same
way. So one of the two always sees the other.
"""

from __future__ import annotations

from nadi.controller import delete, seal
from nadi.controller.metadata import StreamName
from nadi.controller.records import DeleteScopeWork, Scope
from nadi.controller.store import ABSENT
from nadi.controller.workflows import Workflows
from nadi.errors import AlreadyExistsError, ConditionFailedError, NotEmptyError, StreamNotFoundError
from nadi.naming import check_name

_PAUSE_S = 0.05


def scope_name(scope: str) -> StreamName:
    """The name under which a scope's own workflows are kept."""
    return StreamName(scope, "")


async def create_scope(flow: Workflows, scope: str) -> None:
    check_name("scope", scope, internal=True)
    async with flow.lock(scope_name(scope)):
        if await flow.metadata.find_scope(scope) is not None:
            raise AlreadyExistsError("scope", scope)
        await flow.metadata.streams(scope).create()
        try:
            await flow.metadata.scopes.put(scope, Scope(flow.clock.now_ms()), ABSENT)
        except ConditionFailedError as error:
            raise AlreadyExistsError("scope", scope) from error


async def begin_delete(flow: Workflows, deleting: set[str], scope: str, *, recursive: bool) -> DeleteScopeWork:
    await flow.metadata.scope(scope)
    deleting.add(scope)
    try:
        found, _ = await flow.metadata.streams(scope).page(count=1)
        if not recursive and (found or flow.any_created_in(scope)):
            raise NotEmptyError(f"scope {scope} still holds streams: delete them first")
    except BaseException:
        deleting.discard(scope)
        raise
    return DeleteScopeWork(recursive)


async def delete_steps(flow: Workflows, deleting: set[str], name: StreamName, work: DeleteScopeWork) -> None:
    scope = name.scope
    deleting.add(scope)
    if work.recursive:
        await _delete_streams(flow, scope)
    await flow.metadata.streams(scope).drop()
    await flow.metadata.scopes.remove([scope])
    deleting.discard(scope)


async def _delete_streams(flow: Workflows, scope: str) -> None:
    while True:
        streams = [stream async for stream, _ in flow.metadata.streams(scope).scan()]
        if not streams and not flow.any_created_in(scope):
            return
        for stream in sorted(streams, reverse=True):  # mark streams after their streams, which take them along
            name = StreamName(scope, stream)
            try:
                await flow.run(name, lambda name=name: seal.begin(flow, name))  # type: ignore[misc]
                await flow.run(name, lambda name=name: delete.begin(flow, name))  # type: ignore[misc]
            except StreamNotFoundError:
                continue
        if not streams:  # some are still being created
            await flow.clock.sleep(_PAUSE_S)
