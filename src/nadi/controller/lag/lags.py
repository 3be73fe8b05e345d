"""The lag of reader groups, as it is reported: one record for each group and stream."""

from __future__ import annotations

from collections.abc import Mapping

from nadi.controller.engine.workflows import Workflows
from nadi.controller.lag import states
from nadi.controller.lag.behind import bytes_behind, event_sizes, seconds_behind
from nadi.controller.lag.states import Group, Standing
from nadi.controller.retention import past
from nadi.controller.retention.past import Past
from nadi.controller.state.metadata import GroupName, StreamName
from nadi.errors import InvalidArgumentError, ReaderGroupNotFoundError, StreamNotFoundError
from nadi.limits import LAG_GROUPS, LIST_PAGE
from nadi.model.reports import GroupLagReport
from nadi.naming import READER_GROUP_PREFIX


async def of_group(flow: Workflows, name: StreamName, _: str) -> tuple[list[GroupLagReport], str]:
    """The lag of the group whose state's stream that is, in each of its streams; InvalidArgumentError if it is another
    stream."""
    if not name.stream.startswith(READER_GROUP_PREFIX):
        raise InvalidArgumentError(f"{name} is not the state of a reader group: ask for the report of {name}'s groups")
    group = await states.look(flow, GroupName.of(name))
    sizes: dict[str, float] = {}
    for one in group.standings:
        sizes |= event_sizes(await flow.segments.loads(f"{one.stream.key}/"))
    return [await measured(flow, group, one, sizes) for one in group.standings], ""


async def of_stream(flow: Workflows, name: StreamName, _: str) -> tuple[list[GroupLagReport], str]:
    """The lag of each group that reads the stream, the farthest behind first: groups of the stream's own scope, and
    those of others that subscribe to it. InvalidArgumentError if there are more than LAG_GROUPS groups to look at."""
    names = {GroupName(name.scope, group) for group in await _readers(flow, name)}
    async for key, _record in flow.metadata.subscribers(name).scan():
        names.add(GroupName(*key.split("/")))
    found: list[tuple[Group, Standing]] = []
    for one in sorted(names):
        try:
            group = await states.look(flow, one)
        except ReaderGroupNotFoundError:
            continue  # deleted meanwhile
        found += [(group, standing) for standing in group.standings if standing.stream == name]
    if not found:
        return [], ""
    sizes = event_sizes(await flow.segments.loads(f"{name.key}/"))
    stream = await past.look(flow, name)
    lags = [await measured(flow, group, standing, sizes, stream) for group, standing in found]
    lags.sort(key=lambda lag: (-(lag.bytes_behind or 0), lag.scope, lag.group))
    return lags, ""


async def _readers(flow: Workflows, name: StreamName) -> list[str]:
    """The groups of the stream's scope whose configuration names it."""
    found: list[str] = []
    looked_at = 0
    position = b""
    while True:
        page, position = await flow.metadata.groups(name.scope).page(position, LIST_PAGE)
        if not page:
            return found
        looked_at += len(page)
        if looked_at > LAG_GROUPS:
            raise InvalidArgumentError(
                f"scope {name.scope} has more than {LAG_GROUPS:,} reader groups: ask for the lag of one of them"
            )
        found += [group for group, record in page if name.key in record.value.config.starts]


async def measured(
    flow: Workflows,
    group: Group,
    standing: Standing,
    sizes: Mapping[str, float],
    stream: Past | None = None,
) -> GroupLagReport:
    """The group's lag in one stream. sizes: `event_sizes`; stream: as it was looked at after the group."""

    def report(why: str, size: int | None = None, seconds: float | None = None) -> GroupLagReport:
        mean = sizes.get(standing.stream.key)
        events = 0 if size == 0 else round(size / mean) if size is not None and mean else None
        return GroupLagReport(
            group.name.scope,
            group.name.group,
            standing.stream.key,
            size,
            events,
            seconds,
            group.readers,
            standing.segments,
            standing.unassigned,
            standing.source if size is not None else "",
            group.recorded_every_s if group.readers else None,
            standing.published_ms,
            why,
        )

    if standing.cut is None:
        return report(standing.why)
    try:
        behind = await bytes_behind(flow, stream or await past.look(flow, standing.stream), standing.cut, standing.end)
    except StreamNotFoundError:
        return report("the stream was deleted")
    if behind.size is None:
        return report(behind.why)
    seconds = await seconds_behind(flow, standing.stream, behind.unread)
    return report("", behind.size, seconds)
