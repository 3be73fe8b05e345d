"""Where reader groups stand, as far as anybody but their readers can know.

A nadi group's readers record their positions in a table, in a form that nadi knows. Of other clients' groups only those
that subscribe to a stream say anything: what they have published, before which they need nothing any more.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from nadi.controller.engine.workflows import Workflows
from nadi.controller.state.history import Cut
from nadi.controller.state.metadata import GroupName, StreamName
from nadi.controller.state.records import ReaderGroup
from nadi.errors import InvalidArgumentError, SegmentNotFoundError
from nadi.model.readergroup import NOBODY, STATE_KEY, WITH_OUTPUTS, GroupRecord, is_nadis
from nadi.naming import TABLE_SUFFIX, parse_segment_name, segment_name
from nadi.wire import commands as wire
from nadi.wire.fields import TableKey

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
    """The group as it is now; ReaderGroupNotFoundError if there is none."""
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
        standings.append(
            Standing(
                StreamName.of(key),
                cuts.get(key),
                ends.get(key),
                BY_READERS if key in cuts else "",
                "" if key in cuts else "it has no position in this stream",
                len(mine),
                sum(segment.owner == NOBODY for segment in mine),
            )
        )
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
    """What the group has published, stream by stream."""
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
