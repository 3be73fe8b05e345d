"""Steps that several workflows share. Each may be repeated.

A creation checks its scope once its work is recorded: deleting a scope marks it DELETING and then looks for unfinished
work and for contents. So either the deletion sees the record and waits for it, or the creation sees the mark and undoes
whatever is half made.

The index of tags has, for each tag of a scope, the streams with it, so listing costs only what it finds. A stream's
workflows update the index before its record: while the old record stands, a repeated step can work out again what to
add and remove. So the index may briefly be ahead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from nadi.controller.engine.workflows import Refused, Workflows
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import EpochChange, ScopeState, Stream, Tagged
from nadi.controller.state.segments import together
from nadi.controller.state.store import ANY_VERSION
from nadi.errors import InvalidArgumentError, ScopeNotFoundError


def check_all(what: str, *wanted: tuple[bool, str]) -> None:
    """InvalidArgumentError for the first of a configuration's needs that isn't met."""
    for is_met, need in wanted:
        if not is_met:
            raise InvalidArgumentError(f"the {what}'s configuration is wrong: it needs {need}")


async def check_scope(flow: Workflows, scope: str) -> None:
    """Raise Refused if the scope is being deleted or gone."""
    found = await flow.metadata.scopes.get(scope, fresh=True)
    if found is None or found.value.state is ScopeState.DELETING:
        raise Refused(ScopeNotFoundError(scope))


# --- segments --------------------------------------------------------------------------------


async def seal_and_measure(flow: Workflows, name: StreamName, ids: Iterable[int], label: str) -> None:
    """Seal segments at the store and record their lengths."""
    sizes: dict[int, int] = {}

    async def one(segment: int) -> None:
        await flow.segments.seal(name.segment(segment))
        sizes[segment] = await flow.segments.length(name.segment(segment))

    await together(one(segment) for segment in ids)
    await flow.metadata.put_sizes(name, label, sizes)


async def switch(flow: Workflows, name: StreamName, change: EpochChange) -> Stream:
    """Make a published epoch the current one."""
    history = await flow.metadata.history(name)
    stream, version = await flow.metadata.stream(name)
    stream = replace(
        stream,
        epoch=change.epoch,
        reference=change.reference,
        epoch_created_ms=change.created_ms,
        segments=history.epoch(change.epoch),
    )
    await flow.metadata.put_stream(name, stream, version)
    return stream


# --- tags ------------------------------------------------------------------------------------


async def index_tags(flow: Workflows, name: StreamName, before: Sequence[str], after: Sequence[str]) -> None:
    """Add the tags that the stream gains to the index, and drop those that it loses."""
    table = flow.metadata.tags(name.scope)
    if added := [_tag_key(tag, name) for tag in after if tag not in before]:
        await table.put_all([(key, Tagged(), ANY_VERSION) for key in added])
    await table.remove([_tag_key(tag, name) for tag in before if tag not in after])


async def tagged(flow: Workflows, scope: str, tag: str, token: bytes, count: int) -> tuple[list[str], bytes]:
    """A page of names of streams that have the tag, and the token to continue from; an empty page is the end."""
    found, token = await flow.metadata.tags(scope).page(token, count, prefix=_prefix(tag))
    return [key.rpartition("/")[2] for key, _ in found], token


def _tag_key(tag: str, name: StreamName) -> str:
    return _prefix(tag) + name.stream


def _prefix(tag: str) -> str:
    """The tag in hex: it may contain anything, and must not be a prefix of another tag's keys."""
    return tag.encode().hex() + "/"
