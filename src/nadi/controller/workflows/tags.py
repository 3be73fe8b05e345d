"""The index of tags: for each tag of a scope the streams that have it, so that listing costs what it finds.

Workflows of a stream bring the index up to date before its record: as long as the old record stands, a
repetition finds out again what is to be added and removed. So for a moment the index may be ahead.
"""

from __future__ import annotations

from collections.abc import Sequence

from nadi.controller.engine.workflows import Workflows
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import Tagged
from nadi.controller.state.store import ANY_VERSION


async def change(flow: Workflows, name: StreamName, before: Sequence[str], after: Sequence[str]) -> None:
    """Index the tags that the stream gets, and drop those that it loses."""
    table = flow.metadata.tags(name.scope)
    if added := [_key(tag, name) for tag in after if tag not in before]:
        await table.put_all([(key, Tagged(), ANY_VERSION) for key in added])
    await table.remove([_key(tag, name) for tag in before if tag not in after])


async def page(flow: Workflows, scope: str, tag: str, token: bytes, count: int) -> tuple[list[str], bytes]:
    """A page of names of streams that have the tag, and the token to go on from; an empty page is the end."""
    found, token = await flow.metadata.tags(scope).page(token, count, prefix=_prefix(tag))
    return [key.rpartition("/")[2] for key, _ in found], token


def _key(tag: str, name: StreamName) -> str:
    return _prefix(tag) + name.stream


def _prefix(tag: str) -> str:
    """In hex, for a tag may hold anything, and must not begin another one's keys."""
    return tag.encode().hex() + "/"
