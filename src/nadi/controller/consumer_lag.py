"""The lag of reader groups: where each stands, how much lies after that, and for how long.

A nadi group's readers record their positions in a table, in a form that nadi knows. Of other clients' groups only the
cuts are known that those which subscribe to a stream publish. Bytes are counted without reading any event; seconds are
found in the segments' time indexes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from nadi.controller.engine.workflows import Workflows
from nadi.controller.rates import event_size, loads_of
from nadi.controller.retention import past
from nadi.controller.retention.past import Past
from nadi.controller.state.history import Cut, ask
from nadi.controller.state.metadata import GroupName, StreamName
from nadi.controller.state.records import ReaderGroup
from nadi.controller.state.segments import together
from nadi.errors import InvalidArgumentError, ReaderGroupNotFoundError, SegmentNotFoundError, StreamNotFoundError
from nadi.limits import LAG_GROUPS, LAG_QUESTIONS, LIST_PAGE, TIME_INDEX_MOST_MS, TIME_INDEX_MS
from nadi.model.readergroup import NOBODY, STATE_KEY, WITH_OUTPUTS, GroupRecord, is_nadis
from nadi.model.reports import GroupLagReport
from nadi.naming import READER_GROUP_PREFIX, TABLE_SUFFIX, parse_segment_name, segment_name
from nadi.wire import commands as wire
from nadi.wire.fields import TableKey


@dataclass(frozen=True, slots=True)
class Behind:
    """size: bytes, None if the place is unknown. unread: for the segments it stands in that have more, from where on.
    why: what isn't known, and why."""

    size: int | None
    unread: Mapping[int, int]
    why: str = ""


async def bytes_behind(flow: Workflows, past: Past, cut: Cut, end: Cut | None) -> Behind:
    """How much lies after the cut, and before the end if there is one. past: the stream, looked at after the cut."""
    return await ask(flow.clock, past.history, lambda history: _measured(past.over(history), cut, end), cuts=2)


def _measured(past: Past, cut: Cut, end: Cut | None) -> Behind:
    if not past.is_of_stream(cut):
        if not past.is_forgotten(cut):
            return Behind(None, {}, "its position is none of this stream: it was deleted and made anew, perhaps")
        if not past.is_gone(cut):
            return Behind(None, {}, "its position lies where the controller has forgotten how the stream was scaled")
        cut = past.start
    if end is not None and not past.is_of_stream(end):
        if past.is_forgotten(end) and past.is_gone(end):
            return Behind(0, {})
        end = None
    size = past.bytes_after(cut)
    _, offsets = past.standing(cut)
    until = past.ends
    if end is not None:
        size = max(0, size - past.bytes_after(end))
        is_before = past.history.passed(end)
        until = {i: end.get(i, past.ends.get(i, 0) if is_before(i) else 0) for i in offsets}
    starts = {segment: max(offset, past.head.get(segment, 0)) for segment, offset in offsets.items()}
    unread = {i: start for i, start in starts.items() if start < min(past.ends.get(i, 0), until.get(i, 0))}
    return Behind(size, unread)


async def seconds_behind(flow: Workflows, name: StreamName, unread: Mapping[int, int]) -> float | None:
    """For how long the oldest unread event has waited, at least; 0 if there is none. None if there are too many
    segments to ask, or they were truncated meanwhile."""
    if not unread:
        return 0.0
    now_ms = flow.clock.now_ms()
    left = LAG_QUESTIONS

    async def waiting_at(at_ms: int, segments: Sequence[int]) -> list[int]:
        """Of these segments, those that had something unread by then."""
        found = await together(flow.segments.locate_moment(name.segment(segment), at_ms) for segment in segments)
        return [segment for segment, (offset, _) in zip(segments, found, strict=True) if offset > unread[segment]]

    late_ms, early_ms, step_ms = now_ms + 1, now_ms, TIME_INDEX_MOST_MS  # at late_ms something had come
    suspects = list(unread)
    try:
        while early_ms > 0 and (left := left - len(suspects)) >= 0:
            found = await waiting_at(early_ms, suspects)
            if not found:
                break
            suspects, late_ms, early_ms, step_ms = found, early_ms, now_ms - step_ms, step_ms * 2
        while left >= 0 and late_ms - max(early_ms, 0) > max(TIME_INDEX_MS, (now_ms - late_ms) // 50):
            left -= len(suspects)
            middle_ms = (late_ms + max(early_ms, 0)) // 2
            found = await waiting_at(middle_ms, suspects)
            if found:
                suspects, late_ms = found, middle_ms
            else:
                early_ms = middle_ms
    except SegmentNotFoundError:
        return None
    if left < 0:
        return None
    return max(0, now_ms - late_ms) / 1000


BY_READERS, BY_SUBSCRIBER = "readers", "subscriber"
_LAYOUTS = (1, WITH_OUTPUTS)
_decoder = msgspec.msgpack.Decoder(GroupRecord)


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a group stands in one stream. cut: None if unknown, and `why` says why; end: up to where it reads, None for
    ever. source: "readers" or "subscriber", which published it at published_ms."""

    stream: StreamName
    cut: Cut | None = None
    end: Cut | None = None
    source: str = ""
    why: str = ""
    segments: int | None = None
    unassigned: int | None = None
    published_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """A group with its standings, one for each of its streams. readers: their number; None if unknown."""

    name: GroupName
    readers: int | None
    recorded_every_s: float | None
    standings: tuple[Standing, ...]


async def look(flow: Workflows, name: GroupName) -> Group:
    return await standing(flow, name, (await flow.metadata.group(name)).value)


async def standing(flow: Workflows, name: GroupName, group: ReaderGroup) -> Group:
    """The group as it is now, given its record."""
    if not is_nadis(group.group_id):
        why = "its readers keep their positions in another client's form, and it publishes none to the controller"
        return await _published(flow, name, group, why)
    state, why = await _state(flow, name)
    if state is None or state.group_id != group.group_id:
        return await _published(flow, name, group, why or "its state is that of an earlier group of this name")
    if not group.config.starts.keys() >= set(state.streams):  # whoever may read the group may write it
        return await _published(flow, name, group, "its state names streams that the group was not made for")
    try:
        cuts, ends = _by_stream(state.positions()), _by_stream({key: end.offset for key, end in state.ends.items()})
    except InvalidArgumentError:
        return await _published(flow, name, group, "its state can't be read: it names segments that can't be")
    standings = []
    for key in state.streams:
        mine = [segment for segment in state.segments.values() if segment.keys.stream == key and segment.is_active]
        source, why = (BY_READERS, "") if key in cuts else ("", "it has no position in this stream")
        unassigned = sum(segment.owner == NOBODY for segment in mine)
        place = cuts.get(key), ends.get(key), source, why
        standings.append(Standing(StreamName.of(key), *place, len(mine), unassigned))
    return Group(name, len(state.readers), state.recorded_every_s, tuple(standings))


async def _state(flow: Workflows, name: GroupName) -> tuple[GroupRecord | None, str]:
    """The state of a nadi group, or why it can't be known. It is read where it is stored, every time."""
    table = segment_name(name.scope, name.stream.stream + TABLE_SUFFIX, 0)
    command = wire.ReadTable(flow.segments.request_id(), table, "", (TableKey(STATE_KEY),))
    try:
        (entry,) = (await flow.segments.ask(command, wire.TableRead)).entries
    except SegmentNotFoundError:
        return None, "it is being created or deleted"
    if entry.version < 0:
        return None, "it is being created"
    try:
        state = _decoder.decode(entry.value)
    except msgspec.MsgspecError:
        return None, "its state can't be read: a newer nadi may have written it"
    return (state, "") if state.layout in _LAYOUTS else (None, "a newer nadi has written its state")


async def _published(flow: Workflows, name: GroupName, group: ReaderGroup, why: str) -> Group:
    standings = []
    for key in sorted(group.config.starts):
        stream = StreamName.of(key)
        found = await flow.metadata.subscribers(stream).get(name.key, fresh=True)
        if found is None or not found.value.cut or found.value.group_id != group.group_id:
            standings.append(Standing(stream, why=why))
            continue
        end = group.config.ends.get(key) or None
        standings.append(Standing(stream, found.value.cut, end, BY_SUBSCRIBER, published_ms=found.value.published_ms))
    return Group(name, None, None, tuple(standings))


def _by_stream(positions: dict[str, int]) -> dict[str, dict[int, int]]:
    cuts: dict[str, dict[int, int]] = {}
    for name, offset in positions.items():
        scope, stream, segment = parse_segment_name(name)
        cuts.setdefault(f"{scope}/{stream}", {})[segment] = offset
    return cuts


async def of_group(flow: Workflows, name: StreamName, _: str) -> tuple[list[GroupLagReport], str]:
    """The lag of the group whose state's stream that is, in each of its streams; InvalidArgumentError if it is another
    stream."""
    if not name.stream.startswith(READER_GROUP_PREFIX):
        raise InvalidArgumentError(f"{name} is not the state of a reader group: ask for the report of {name}'s groups")
    group = await look(flow, GroupName.of(name))
    reports = []
    for one in group.standings:
        mean = event_size((await loads_of(flow, one.stream)).values())
        reports.append(await measured(flow, group, one, mean))
    return reports, ""


async def of_stream(flow: Workflows, name: StreamName, _: str) -> tuple[list[GroupLagReport], str]:
    """The lag of each group that reads the stream, the farthest behind first: groups of the stream's own scope, and
    those of others that subscribe to it. InvalidArgumentError if there are more than LAG_GROUPS groups to look at."""
    names = {GroupName(*key.split("/")) async for key, _ in flow.metadata.subscribers(name).scan()}
    looked_at = 0
    async for key, record in flow.metadata.groups(name.scope).scan(page=LIST_PAGE):
        looked_at += 1
        if looked_at > LAG_GROUPS:
            raise InvalidArgumentError(
                f"scope {name.scope} has more than {LAG_GROUPS:,} reader groups: ask for the lag of one of them"
            )
        if name.key in record.value.config.starts:
            names.add(GroupName(name.scope, key))
    found: list[tuple[Group, Standing]] = []
    for one in sorted(names):
        try:
            group = await look(flow, one)
        except ReaderGroupNotFoundError:
            continue  # deleted meanwhile
        found += [(group, standing) for standing in group.standings if standing.stream == name]
    if not found:
        return [], ""
    mean = event_size((await loads_of(flow, name)).values())
    stream = await past.look(flow, name)
    lags = [await measured(flow, group, standing, mean, stream) for group, standing in found]
    lags.sort(key=lambda lag: (-(lag.bytes_behind or 0), lag.scope, lag.group))
    return lags, ""


async def measured(
    flow: Workflows, group: Group, standing: Standing, mean: float | None, stream: Past | None = None
) -> GroupLagReport:
    """The group's lag in one stream. mean: the size of its events; stream: as it was looked at after the group."""

    def report(why: str, size: int | None = None, seconds: float | None = None) -> GroupLagReport:
        events = 0 if size == 0 else round(size / mean) if size is not None and mean else None
        return GroupLagReport(
            *group.name,
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
