"""What there is to know about a stream, kind by kind, for `nadi.v1.Reports` and for people, page by page.

The lag of a reader group: where it stands, how much lies after that, and for how long. A nadi group's readers record
their positions in a table, in a form that nadi knows. Of other clients' groups only the cuts are known that those which
subscribe to a stream publish. Bytes are counted without reading any event; seconds are found in the segments' time
indexes. The identity of a server or a cluster: chance digits, by which clients know whose a thing is that they keep
elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from nadi.controller.engine.workflows import Workflows
from nadi.controller.retention import cut_sizes
from nadi.controller.retention.cut_sizes import Past
from nadi.controller.scaling.judge import HotKey
from nadi.controller.scaling.rounds import is_done, logged_decisions
from nadi.controller.state.history import Cut, EpochHistory, ask
from nadi.controller.state.metadata import GroupName, StreamName
from nadi.controller.state.records import Number, ReaderGroupRecord, StreamState
from nadi.controller.state.segments import together
from nadi.controller.stream_rates import event_size, loads_of
from nadi.errors import InvalidArgumentError, SegmentNotFoundError, StreamNotFoundError
from nadi.limits import LAG_GROUPS, LAG_QUESTIONS, LIST_PAGE, TIME_INDEX_MOST_MS, TIME_INDEX_MS
from nadi.model.load import WINDOWS_S
from nadi.model.readergroup import NOBODY, STATE_KEY, WITH_OUTPUTS, GroupRecord, is_nadis
from nadi.model.reports import (
    GROUP_LAG,
    IDENTITY,
    SCALING,
    SEGMENTS,
    STREAM_LAG,
    GroupLagReport,
    HotKeyReport,
    IdentityReport,
    LoadReport,
    ScalingReport,
    SegmentReport,
)
from nadi.naming import READER_GROUP_PREFIX, TABLE_SUFFIX, parse_segment_name, segment_epoch, segment_name
from nadi.wire import commands as wire
from nadi.wire.fields import WireTableKey


@dataclass(frozen=True, slots=True)
class LagReport:
    """size: bytes, None if the place is unknown. unread: for the segments it stands in that have more, from where on.
    why: what isn't known, and why."""

    size: int | None
    unread: Mapping[int, int]
    why: str = ""


async def bytes_behind(flow: Workflows, past: Past, cut: Cut, end: Cut | None) -> LagReport:
    """How much lies after the cut, and before the end if there is one. past: the stream, looked at after the cut."""
    return await ask(flow.clock, past.history, lambda history: _measured(past.over(history), cut, end), cuts=2)


def _measured(past: Past, cut: Cut, end: Cut | None) -> LagReport:
    if not past.is_of_stream(cut):
        if not past.is_forgotten(cut):
            return LagReport(None, {}, "its position is none of this stream: it was deleted and made anew, perhaps")
        if not past.is_gone(cut):
            return LagReport(None, {}, "its position lies where the controller has forgotten how the stream was scaled")
        cut = past.start
    if end is not None and not past.is_of_stream(end):
        if past.is_forgotten(end) and past.is_gone(end):
            return LagReport(0, {})
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
    return LagReport(size, unread)


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
class GroupReport:
    """A group with its standings, one for each of its streams. readers: their number; None if unknown."""

    name: GroupName
    readers: int | None
    recorded_every_s: float | None
    standings: tuple[Standing, ...]


async def standing(flow: Workflows, name: GroupName, group: ReaderGroupRecord) -> GroupReport:
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
        counts = len(mine), sum(segment.owner == NOBODY for segment in mine)
        standings.append(Standing(StreamName.of(key), cuts.get(key), ends.get(key), source, why, *counts))
    return GroupReport(name, len(state.readers), state.recorded_every_s, tuple(standings))


async def _state(flow: Workflows, name: GroupName) -> tuple[GroupRecord | None, str]:
    """The state of a nadi group, or why it can't be known. It is read where it is stored, every time."""
    table = segment_name(name.scope, name.stream.stream + TABLE_SUFFIX, 0)
    command = wire.ReadTable(flow.segments.request_id(), table, "", (WireTableKey(STATE_KEY),))
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


async def _published(flow: Workflows, name: GroupName, group: ReaderGroupRecord, why: str) -> GroupReport:
    standings = []
    for key in sorted(group.config.starts):
        stream = StreamName.of(key)
        found = await flow.metadata.subscribers(stream).get(name.key, fresh=True)
        if found is None or not found.value.cut or found.value.group_id != group.group_id:
            standings.append(Standing(stream, why=why))
            continue
        end = group.config.ends.get(key) or None
        standings.append(Standing(stream, found.value.cut, end, BY_SUBSCRIBER, published_ms=found.value.published_ms))
    return GroupReport(name, None, None, tuple(standings))


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
    group_name = GroupName.of(name)
    group = await standing(flow, group_name, (await flow.metadata.group(group_name)).value)
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
    found: list[tuple[GroupReport, Standing]] = []
    for one in sorted(names):
        known = await flow.metadata.find_group(one)
        if known is not None:  # else it was deleted meanwhile
            group = await standing(flow, one, known.value)
            found += [(group, its) for its in group.standings if its.stream == name]
    if not found:
        return [], ""
    mean = event_size((await loads_of(flow, name)).values())
    stream = await cut_sizes.look(flow, name)
    lags = [await measured(flow, group, its, mean, stream) for group, its in found]
    lags.sort(key=lambda lag: (-(lag.bytes_behind or 0), lag.scope, lag.group))
    return lags, ""


async def measured(
    flow: Workflows, group: GroupReport, standing: Standing, mean: float | None, stream: Past | None = None
) -> GroupLagReport:
    """The group's lag in one stream. mean: the size of its events; stream: as it was looked at after the group."""

    def report(why: str, size: int | None = None, seconds: float | None = None) -> GroupLagReport:
        events = 0 if size == 0 else round(size / mean) if size is not None and mean else None
        counts = group.readers, standing.segments, standing.unassigned
        source = standing.source if size is not None else ""
        every_s = group.recorded_every_s if group.readers else None
        key, at_ms = standing.stream.key, standing.published_ms
        return GroupLagReport(*group.name, key, size, events, seconds, *counts, source, every_s, at_ms, why)

    if standing.cut is None:
        return report(standing.why)
    try:
        behind = await bytes_behind(
            flow, stream or await cut_sizes.look(flow, standing.stream), standing.cut, standing.end
        )
    except StreamNotFoundError:
        return report("the stream was deleted")
    if behind.size is None:
        return report(behind.why)
    seconds = await seconds_behind(flow, standing.stream, behind.unread)
    return report("", behind.size, seconds)


_BITS = 52  # that a chance has


async def identity(flow: Workflows) -> IdentityReport:
    async def made(held: Number | None) -> Number:
        return Number(int(flow.clock.chance() * (1 << _BITS))) if held is None else held

    held = await flow.metadata.numbers.change("identity", "the identity", made)
    return IdentityReport(f"{held.value.value:013x}")


_NUMBER = re.compile(r"[0-9]{1,19}", re.ASCII)
_PAGE_PARTS = 10_000  # segments and key ranges in a page, 40 bytes each: one decision may be about a thousand
_NONE = (0.0,) * len(WINDOWS_S)
HotKeys = Callable[[StreamName], Mapping[int, HotKey | None]]


async def scalings(flow: Workflows, name: StreamName, token: str) -> tuple[list[ScalingReport], str]:
    """A page of the stream's scaling log, oldest first. token: the last number of the page before."""
    last, history = _last(token), await flow.metadata.history(name)
    found = [entry for entry in await logged_decisions(flow.metadata, name) if entry.number > max(last, 0)]
    sizes = accumulate(len(entry.segments) + len(entry.into) for entry in found[:LIST_PAGE])
    count = max(1, sum(size <= _PAGE_PARTS for size in sizes))
    page = [
        msgspec.convert({**asdict(entry), "is_done": is_done(entry, history)}, ScalingReport) for entry in found[:count]
    ]
    return page, str(page[-1].number) if len(found) > len(page) else ""


def _last(token: str) -> int:
    """What the page before ended with; -1 if there is none."""
    if token and not _NUMBER.fullmatch(token):
        raise InvalidArgumentError(f"{token[:40]!r} is not the token of a page: give back the one that you got")
    return int(token) if token else -1


async def loads(hot_keys: HotKeys, flow: Workflows, name: StreamName, _: str) -> tuple[list[LoadReport], str]:
    """All of the stream's current segments, by key; none if it is sealed."""
    stream = (await flow.metadata.stream(name)).value
    if stream.state is StreamState.SEALED:
        return [], ""
    measured, hot = await loads_of(flow, name), hot_keys(name)
    records = []
    for piece in stream.segments:
        load, key, hot_key = measured.get(piece.id), hot.get(piece.id), None
        if piece.id in hot:
            hot_key = HotKeyReport(key.position, key.share) if key is not None else HotKeyReport(None, None)
        events, sizes = (load.events_per_s, load.bytes_per_s) if load is not None else (_NONE, _NONE)
        keyed = load is not None and load.keys is not None
        records.append(LoadReport(piece.id, piece.low, piece.high, list(events), list(sizes), keyed, hot_key))
    return records, ""


async def segments(flow: Workflows, name: StreamName, token: str) -> tuple[list[SegmentReport], str]:
    """A page in the order of ids. token: the last id of the page before."""
    last, history = _last(token), await flow.metadata.history(name)
    ids = list(islice(history.ids_after(last), LIST_PAGE + 1))
    page = ids[:LIST_PAGE]
    records = await _reports(flow, name, history, page)
    return records, str(page[-1]) if len(ids) > LIST_PAGE else ""


async def replaced(flow: Workflows, name: StreamName, count: int) -> list[SegmentReport]:
    history = await flow.metadata.history(name)
    found: list[int] = []
    for epoch in range(history.newest, history.first, -1):
        found += [segment for segment in history.change(epoch).removed if segment in history.segments]
        if len(found) >= count:
            break
    return await _reports(flow, name, history, found[:count])


async def _reports(flow: Workflows, name: StreamName, history: EpochHistory, ids: list[int]) -> list[SegmentReport]:
    """As they are now: the history goes on while lengths are asked for, and who is told that a segment was replaced is
    to be told by which."""
    found = [_report(history, i) for i in ids]
    lengths = {i: history.sizes[i] for i in ids if i in history.sizes}
    asked = [i for i in ids if i not in lengths]
    stream = (await flow.metadata.stream(name)).value
    now = await together(flow.segments.length_if_there(name.segment(i)) for i in asked)
    lengths |= zip(asked, now, strict=True)
    is_passed = history.passed(stream.head) if stream.head else lambda _: False

    def start(segment: int) -> int:
        end = lengths[segment]
        is_gone = history.is_forgotten(segment) or is_passed(segment)
        return end if is_gone else min(max(stream.head.get(segment, 0), 0), end)

    return [replace(one, start_offset=start(one.segment_id), end_offset=lengths[one.segment_id]) for one in found]


def _report(history: EpochHistory, segment: int) -> SegmentReport:
    piece, sealed_in = history.segments[segment], history.sealed_in.get(segment)
    epoch = segment_epoch(segment)  # which may be forgotten, and the segment still there
    return SegmentReport(
        segment,
        piece.low,
        piece.high,
        history.began_ms(segment),
        None if sealed_in is None else history.change(sealed_in).created_ms,
        0,
        0,
        rolled=epoch >= history.first and history.reference(epoch) != epoch,
    )


Page = tuple[Sequence[Any], str]  # records, and the token of the next page: empty at the end
Kind = Callable[[Workflows, StreamName, str], Awaitable[Page]]

KINDS: Mapping[str, Kind] = {SEGMENTS: segments, SCALING: scalings, GROUP_LAG: of_group, STREAM_LAG: of_stream}


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
