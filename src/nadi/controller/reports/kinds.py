"""The kinds of reports, each with the function that makes a page of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from nadi.controller.engine.workflows import Workflows
from nadi.controller.lag import lags
from nadi.controller.reports.identity import identity
from nadi.controller.reports.segments import segments
from nadi.controller.state.metadata import StreamName
from nadi.errors import InvalidArgumentError
from nadi.model.reports import GROUP_LAG, IDENTITY, SEGMENTS, STREAM_LAG

Page = tuple[Sequence[Any], str]  # records, and the token of the next page: empty at the end
Kind = Callable[[Workflows, StreamName, str], Awaitable[Page]]

KINDS: Mapping[str, Kind] = {SEGMENTS: segments, GROUP_LAG: lags.of_group, STREAM_LAG: lags.of_stream}


async def report(flow: Workflows, name: StreamName, kind: str, token: str, more: Mapping[str, Kind]) -> Page:
    """A page of the stream's report of that kind. more: kinds whose makers remember something. StreamNotFoundError, or
    InvalidArgumentError if it isn't one."""
    if kind == IDENTITY:
        return [await identity(flow)], ""
    kinds = {**KINDS, **more}
    make = kinds.get(kind)
    if make is None:
        raise InvalidArgumentError(
            f"there are no reports of the kind {kind[:40]!r}: ask for {', '.join(sorted([*kinds, IDENTITY]))}"
        )
    await flow.metadata.stream(name)
    return await make(flow, name, token)
