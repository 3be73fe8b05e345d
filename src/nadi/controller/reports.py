"""Reports about a stream, by kind and page, for `nadi.v1.Reports` and the REST interface.

A reader group's lag: its position, the bytes and events after it, and their age. Readers of a nadi group record their
positions in a table in nadi's form. Of other clients' groups only the cuts are known that subscribers publish. Bytes
are counted without reading events; ages come from the segments' time indexes. The identity of a server or cluster:
random digits by which clients recognise the owner of data they store elsewhere.
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
from nadi.controller.scaling.decisions import HotKey
from nadi.controller.scaling.rounds import is_done, logged_decisions
from nadi.controller.state.history import Cut, EpochHistory, ask
from nadi.controller.state.metadata import GroupName, StreamName
from nadi.controller.state.records import Number, ReaderGroupRecord, StreamState
from nadi.controller.state.segments import together
from nadi.controller.stream_rates import event_size, loads_of
from nadi.errors import InvalidArgumentError, SegmentNotFoundError, StreamNotFoundError
from nadi.limits import LAG_GROUPS, LAG_QUESTIONS, LIST_PAGE, TIME_INDEX_MOST_MS, TIME_INDEX_MS
from nadi.model.load import WINDOWS_S
from nadi.model.readergroup import STATE_KEY, UNASSIGNED, WITH_OUTPUTS, GroupRecord, is_nadis
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
    """size: bytes, None if the position is unknown. unread: for each of its segments with unread bytes, the offset they
    start at. why: why the size is unknown."""

    size: int | None
    unread: Mapping[int, int]
    why: str = ""


async def measure_lag(flow: Workflows, past: Past, cut: Cut, end: Cut | None) -> LagReport:
    """Measure the bytes after the cut and before the end, if any. past: the stream's sizes, measured after the cut."""
    return await ask(flow.clock, past.history, lambda history: _measured(past.over(history), cut, end), cuts=2)


def _measured(past: Past, cut: Cut, end: Cut | None) -> LagReport:
    if not past.is_of_stream(cut):
        if not past.is_forgotten(cut):
            return LagReport(None, {}, "its position is not in this stream, which may have been deleted and recreated")
        if not past.is_gone(cut):
            return LagReport(None, {}, "its position is older than the scaling history that the controller retains")
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


async def measure_lag_seconds(flow: Workflows, name: StreamName, unread: Mapping[int, int]) -> float | None:
    """Return the minimum age of the oldest unread event; 0 if there is none. None if there are too many segments to
    query, or if they were truncated meanwhile."""
    if not unread:
        return 0.0
    now_ms = flow.clock.now_ms()
    remaining = LAG_QUESTIONS

    async def waiting_at(at_ms: int, segments: Sequence[int]) -> list[int]:
        """Return those of the segments that had unread events by then."""
        waiting = await together(flow.segments.locate_moment(name.segment(segment), at_ms) for segment in segments)
        return [segment for segment, (offset, _) in zip(segments, waiting, strict=True) if offset > unread[segment]]

    late_ms, early_ms, step_ms = now_ms + 1, now_ms, TIME_INDEX_MOST_MS  # something was unread at late_ms
    suspects = list(unread)
    try:
        while early_ms > 0 and (remaining := remaining - len(suspects)) >= 0:
            waiting = await waiting_at(early_ms, suspects)
            if not waiting:
                break
            suspects, late_ms, early_ms, step_ms = waiting, early_ms, now_ms - step_ms, step_ms * 2
        while remaining >= 0 and late_ms - max(early_ms, 0) > max(TIME_INDEX_MS, (now_ms - late_ms) // 50):
            remaining -= len(suspects)
            middle_ms = (late_ms + max(early_ms, 0)) // 2
            waiting = await waiting_at(middle_ms, suspects)
            if waiting:
                suspects, late_ms = waiting, middle_ms
            else:
                early_ms = middle_ms
    except SegmentNotFoundError:
        return None
    if remaining < 0:
        return None
    return max(0, now_ms - late_ms) / 1000


BY_READERS, BY_SUBSCRIBER = "readers", "subscriber"
_LAYOUTS = (1, WITH_OUTPUTS)
_decoder = msgspec.msgpack.Decoder(GroupRecord)


@dataclass(frozen=True, slots=True)
class GroupPosition:
    """A group's position in one stream. cut: None if unknown; `why` then has the reason. end: where it stops reading,
    None if nowhere. source: "readers", or "subscriber" for a cut published at published_ms."""

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
    """A group with its position in each of its streams. readers: their number; None if unknown."""

    name: GroupName
    readers: int | None
    recorded_every_s: float | None
    standings: tuple[GroupPosition, ...]


async def standing(flow: Workflows, name: GroupName, group: ReaderGroupRecord) -> GroupReport:
    if not is_nadis(group.group_id):
        why = "its readers keep their positions in another client's form, and it publishes none to the controller"
        return await _published(flow, name, group, why)
    state, why = await _state(flow, name)
    if state is None or state.group_id != group.group_id:
        return await _published(flow, name, group, why or "its state is that of an earlier group of this name")
    if not group.config.starts.keys() >= set(state.streams):  # anyone with read access to the group can write it
        return await _published(flow, name, group, "its state names streams outside the group's configuration")
    try:
        cuts, ends = _by_stream(state.positions()), _by_stream({key: end.offset for key, end in state.ends.items()})
    except InvalidArgumentError:
        return await _published(flow, name, group, "its state can't be read: it has invalid segment names")
    standings = []
    for key in state.streams:
        own = [segment for segment in state.segments.values() if segment.keys.stream == key and segment.is_active]
        source, why = (BY_READERS, "") if key in cuts else ("", "it has no position in this stream")
        counts = len(own), sum(segment.owner == UNASSIGNED for segment in own)
        standings.append(GroupPosition(StreamName.of(key), cuts.get(key), ends.get(key), source, why, *counts))
    return GroupReport(name, len(state.readers), state.recorded_every_s, tuple(standings))


async def _state(flow: Workflows, name: GroupName) -> tuple[GroupRecord | None, str]:
    """Return the state of a nadi group, or the reason why it is unknown. It is never cached."""
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
        subscription = await flow.metadata.subscribers(stream).get(name.key, fresh=True)
        if subscription is None or not subscription.value.cut or subscription.value.group_id != group.group_id:
            standings.append(GroupPosition(stream, why=why))
            continue
        end = group.config.ends.get(key) or None
        standings.append(
            GroupPosition(
                stream, subscription.value.cut, end, BY_SUBSCRIBER, published_ms=subscription.value.published_ms
            )
        )
    return GroupReport(name, None, None, tuple(standings))


def _by_stream(positions: dict[str, int]) -> dict[str, dict[int, int]]:
    cuts: dict[str, dict[int, int]] = {}
    for name, offset in positions.items():
        scope, stream, segment = parse_segment_name(name)
        cuts.setdefault(f"{scope}/{stream}", {})[segment] = offset
    return cuts


async def of_group(flow: Workflows, name: StreamName, _: str) -> tuple[list[GroupLagReport], str]:
    """Report the lag in each stream of the group whose state stream is `name`; InvalidArgumentError if it is not a
    group's state stream."""
    if not name.stream.startswith(READER_GROUP_PREFIX):
        raise InvalidArgumentError(f"{name} is not the state of a reader group: request the lag of {name}'s groups")
    group_name = GroupName.of(name)
    group = await standing(flow, group_name, (await flow.metadata.group(group_name)).value)
    reports = []
    for position in group.standings:
        mean = event_size((await loads_of(flow, position.stream)).values())
        reports.append(await measured(flow, group, position, mean))
    return reports, ""


async def of_stream(flow: Workflows, name: StreamName, _: str) -> tuple[list[GroupLagReport], str]:
    """Report the lag of each group that reads the stream, largest first: groups of the stream's own scope, and
    subscribers from other scopes. InvalidArgumentError if the scope has more than LAG_GROUPS groups."""
    names = {GroupName(*key.split("/")) async for key, _ in flow.metadata.subscribers(name).scan()}
    inspected = 0
    async for key, record in flow.metadata.groups(name.scope).scan(page=LIST_PAGE):
        inspected += 1
        if inspected > LAG_GROUPS:
            raise InvalidArgumentError(
                f"scope {name.scope} has more than {LAG_GROUPS:,} reader groups: request the lag of a single group"
            )
        if name.key in record.value.config.starts:
            names.add(GroupName(name.scope, key))
    positions: list[tuple[GroupReport, GroupPosition]] = []
    for group_name in sorted(names):
        stored = await flow.metadata.find_group(group_name)
        if stored is not None:  # else it was deleted meanwhile
            group = await standing(flow, group_name, stored.value)
            positions += [(group, position) for position in group.standings if position.stream == name]
    if not positions:
        return [], ""
    mean = event_size((await loads_of(flow, name)).values())
    stream = await cut_sizes.measure(flow, name)
    lags = [await measured(flow, group, position, mean, stream) for group, position in positions]
    lags.sort(key=lambda lag: (-(lag.lag_bytes or 0), lag.scope, lag.group))
    return lags, ""


async def measured(
    flow: Workflows, group: GroupReport, standing: GroupPosition, mean: float | None, stream: Past | None = None
) -> GroupLagReport:
    """Report the group's lag in one stream. mean: event size; stream: its sizes, measured after the group's state."""

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
        lag = await measure_lag(
            flow, stream or await cut_sizes.measure(flow, standing.stream), standing.cut, standing.end
        )
    except StreamNotFoundError:
        return report("the stream was deleted")
    if lag.size is None:
        return report(lag.why)
    seconds = await measure_lag_seconds(flow, standing.stream, lag.unread)
    return report("", lag.size, seconds)


_BITS = 52  # of a random float


async def identity(flow: Workflows) -> IdentityReport:
    async def made(stored: Number | None) -> Number:
        return Number(int(flow.clock.chance() * (1 << _BITS))) if stored is None else stored

    stored = await flow.metadata.numbers.change("identity", "the identity", made)
    return IdentityReport(f"{stored.value.value:013x}")


_NUMBER = re.compile(r"[0-9]{1,19}", re.ASCII)
_PAGE_PARTS = 10_000  # segments and key ranges per page, 40 bytes each: one decision may involve a thousand
_NONE = (0.0,) * len(WINDOWS_S)
HotKeys = Callable[[StreamName], Mapping[int, HotKey | None]]


async def scalings(flow: Workflows, name: StreamName, token: str) -> tuple[list[ScalingReport], str]:
    """Return a page of the stream's scaling log, oldest first. token: the last number of the previous page."""
    last, history = _last(token), await flow.metadata.history(name)
    entries = [entry for entry in await logged_decisions(flow.metadata, name) if entry.number > max(last, 0)]
    sizes = accumulate(len(entry.segments) + len(entry.into) for entry in entries[:LIST_PAGE])
    count = max(1, sum(size <= _PAGE_PARTS for size in sizes))
    page = [
        msgspec.convert({**asdict(entry), "is_done": is_done(entry, history)}, ScalingReport)
        for entry in entries[:count]
    ]
    return page, str(page[-1].number) if len(entries) > len(page) else ""


def _last(token: str) -> int:
    """Return the last number of the previous page; -1 if there is none."""
    if token and not _NUMBER.fullmatch(token):
        raise InvalidArgumentError(f"{token[:40]!r} is not a page token: pass the token from the previous page")
    return int(token) if token else -1


async def loads(hot_keys: HotKeys, flow: Workflows, name: StreamName, _: str) -> tuple[list[LoadReport], str]:
    """Report the load of all current segments, by key; nothing if the stream is sealed."""
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
    """Return a page of segments by id. token: the last id of the previous page."""
    last, history = _last(token), await flow.metadata.history(name)
    ids = list(islice(history.ids_after(last), LIST_PAGE + 1))
    page = ids[:LIST_PAGE]
    records = await _reports(flow, name, history, page)
    return records, str(page[-1]) if len(ids) > LIST_PAGE else ""


async def replaced(flow: Workflows, name: StreamName, count: int) -> list[SegmentReport]:
    history = await flow.metadata.history(name)
    removed: list[int] = []
    for epoch in range(history.newest, history.first, -1):
        removed += [segment for segment in history.change(epoch).removed if segment in history.segments]
        if len(removed) >= count:
            break
    return await _reports(flow, name, history, removed[:count])


async def _reports(flow: Workflows, name: StreamName, history: EpochHistory, ids: list[int]) -> list[SegmentReport]:
    """Report the segments as they are now. The history may grow while lengths are requested, so the report also names
    the successors of segments replaced meanwhile."""
    drafts = [_report(history, i) for i in ids]
    lengths = {i: history.sizes[i] for i in ids if i in history.sizes}
    missing = [i for i in ids if i not in lengths]
    stream = (await flow.metadata.stream(name)).value
    current = await together(flow.segments.length_or_zero(name.segment(i)) for i in missing)
    lengths |= zip(missing, current, strict=True)
    is_passed = history.passed(stream.head) if stream.head else lambda _: False

    def start(segment: int) -> int:
        end = lengths[segment]
        is_gone = history.is_forgotten(segment) or is_passed(segment)
        return end if is_gone else min(max(stream.head.get(segment, 0), 0), end)

    return [
        replace(draft, start_offset=start(draft.segment_id), end_offset=lengths[draft.segment_id]) for draft in drafts
    ]


def _report(history: EpochHistory, segment: int) -> SegmentReport:
    piece, sealed_in = history.segments[segment], history.sealed_in.get(segment)
    epoch = segment_epoch(segment)  # may be forgotten although the segment still exists
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
    """Return a page of the stream's report of that kind. more: further kinds, whose makers keep state.
    StreamNotFoundError; InvalidArgumentError if the kind is unknown."""
    if kind == IDENTITY:
        return [await identity(flow)], ""
    kinds = {**KINDS, **more}
    make = kinds.get(kind)
    if make is None:
        raise InvalidArgumentError(
            f"unknown report kind {kind[:40]!r}: request {', '.join(sorted([*kinds, IDENTITY]))}"
        )
    await flow.metadata.stream(name)
    return await make(flow, name, token)
