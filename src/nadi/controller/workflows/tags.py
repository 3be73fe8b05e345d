"""The index of tags: for each tag of a scope, the streams that have it, so listing costs only what it finds.

A stream's workflows update the index before its record: while the old record stands, a repeated step can
work out again what to add and remove. So the index may briefly be ahead.
"""

from __future__ import annotations

from collections.abc import Sequence

from nadi.controller.engine.workflows import Workflows
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import Tagged
from nadi.controller.state.store import ANY_VERSION


async def change(flow: Workflows, name: StreamName, before: Sequence[str], after: Sequence[str]) -> None:
    """Add the tags that the stream gains to the index, and drop those that it loses."""
    table = flow.metadata.tags(name.scope)
    if added := [_key(tag, name) for tag in after if tag not in before]:
        await table.put_all([(key, Tagged(), ANY_VERSION) for key in added])
    await table.remove([_key(tag, name) for tag in before if tag not in after])


async def unlisted(flow: Workflows, name: StreamName, wanted: Sequence[str]) -> tuple[str, ...]:
    """Those of the stream's tags that the index doesn't have."""
    if not wanted:
        return ()
    found = await flow.metadata.tags(name.scope).get_all([_key(tag, name) for tag in wanted])
    return tuple(tag for tag, record in zip(wanted, found, strict=True) if record is None)


async def page(flow: Workflows, scope: str, tag: str, token: bytes, count: int) -> tuple[list[str], bytes]:
    """A page of names of streams that have the tag, and the token to continue from; an empty page is the end."""
    found, token = await flow.metadata.tags(scope).page(token, count, prefix=_prefix(tag))
    return [key.rpartition("/")[2] for key, _ in found], token


def _key(tag: str, name: StreamName) -> str:
    return _prefix(tag) + name.stream


def _prefix(tag: str) -> str:
    """The tag in hex: it may contain anything, and must not be a prefix of another tag's keys."""
    return tag.encode().hex() + "/"
