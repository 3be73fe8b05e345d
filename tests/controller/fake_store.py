"""A segment store in memory, with the behaviour the controller relies on, that can be told to die.

Segments hold bytes and can be sealed, truncated, merged and deleted; tables hold versioned keys. After
`die_at` the given command and all later ones fail as an unreachable store does; with `lose_reply` that
command is still carried out, so only its answer is lost. `revive` brings it back with all it had.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from nadi.errors import UnavailableError
from nadi.model.framing import frame_events
from nadi.wire import commands as wire
from nadi.wire.codec import encode
from nadi.wire.commands import Command
from nadi.wire.fields import NO_VERSION, NOT_EXISTS, TableEntry, TableKey

_GROWING = (wire.UpdateTableEntries, wire.CreateSegment, wire.CreateTableSegment)  # what a full disk has no room for


@dataclass(slots=True)
class Segment:
    data: bytearray = field(default_factory=bytearray)
    start: int = 0
    sealed: bool = False
    scale_type: int = 0
    target_rate: int = 0
    attributes: dict[bytes, int] = field(default_factory=dict)


@dataclass(slots=True)
class FakeTable:
    entries: dict[bytes, tuple[int, bytes]] = field(default_factory=dict)
    length: int = 0


class FakeStore:
    def __init__(self) -> None:
        self.segments: dict[str, Segment] = {}
        self.tables: dict[str, FakeTable] = {}
        self.log: list[Command] = []
        self.used_names: set[str] = set()
        self.die_after: int | None = None
        self.lose_reply = False
        self.writer_of: dict[bytes, str] = {}  # the segment that a writer was set up for
        self.full = False  # whether there is no room, but for what makes some
        self.dead = asyncio.Event()
        self.before: Callable[[Command], Awaitable[None]] | None = None  # what is to happen before a command

    def die_at(self, commands: int, *, lose_reply: bool = False) -> None:
        """Die at the `commands`-th command from now, counted from 0."""
        self.die_after, self.lose_reply = commands, lose_reply
        self.dead = asyncio.Event()

    def revive(self) -> None:
        self.die_after = None
        self.dead = asyncio.Event()

    async def exchange(self, command: Command) -> Command:
        encode(command)  # it must fit the wire
        await asyncio.sleep(0)
        if self.before is not None:
            await self.before(command)
        if self.full and isinstance(command, _GROWING):
            return wire.ErrorMessage(command.request_id, command.segment, "no room", wire.STORAGE_FULL)
        if self.dead.is_set():
            raise UnavailableError("the fake store is dead")
        if self.die_after is not None:
            self.die_after -= 1
            if self.die_after < 0:
                if self.lose_reply:
                    self._answer(command)
                self.dead.set()
                raise UnavailableError("the fake store dies")
        reply = self._answer(command)
        await asyncio.sleep(0)
        return reply

    def _answer(self, command: Command) -> Command:
        self.log.append(command)
        reply = getattr(self, f"_{type(command).__name__}")(command)
        assert isinstance(reply, Command)
        return reply

    # --- for tests -------------------------------------------------------------------------------

    def append(self, name: str, data: bytes) -> None:
        segment = self.segments[name]
        assert not segment.sealed, f"{name} is sealed"
        segment.data += data

    def data(self, name: str) -> bytes:
        return bytes(self.segments[name].data)

    # --- segments --------------------------------------------------------------------------------

    def _CreateSegment(self, c: wire.CreateSegment) -> Command:
        if c.segment in self.segments:
            return wire.SegmentAlreadyExists(c.request_id, c.segment)
        self.segments[c.segment] = Segment(scale_type=c.scale_type, target_rate=c.target_rate)
        self.used_names.add(c.segment)
        return wire.SegmentCreated(c.request_id, c.segment)

    def _UpdateSegmentPolicy(self, c: wire.UpdateSegmentPolicy) -> Command:
        if c.segment not in self.segments:
            return wire.NoSuchSegment(c.request_id, c.segment)
        self.segments[c.segment].scale_type = c.scale_type
        self.segments[c.segment].target_rate = c.target_rate
        return wire.SegmentPolicyUpdated(c.request_id, c.segment)

    def _SealSegment(self, c: wire.SealSegment) -> Command:
        if c.segment not in self.segments:
            return wire.NoSuchSegment(c.request_id, c.segment)
        if self.segments[c.segment].sealed:
            return wire.SegmentIsSealed(c.request_id, c.segment)
        self.segments[c.segment].sealed = True
        return wire.SegmentSealed(c.request_id, c.segment)

    def _TruncateSegment(self, c: wire.TruncateSegment) -> Command:
        if c.segment not in self.segments:
            return wire.NoSuchSegment(c.request_id, c.segment)
        segment = self.segments[c.segment]
        assert c.truncation_offset <= len(segment.data)
        segment.start = max(segment.start, c.truncation_offset)
        return wire.SegmentTruncated(c.request_id, c.segment)

    def _DeleteSegment(self, c: wire.DeleteSegment) -> Command:
        if self.segments.pop(c.segment, None) is None:
            return wire.NoSuchSegment(c.request_id, c.segment)
        return wire.SegmentDeleted(c.request_id, c.segment)

    def _GetStreamSegmentInfo(self, c: wire.GetStreamSegmentInfo) -> Command:
        segment = self.segments.get(c.segment)
        if segment is None:
            return wire.NoSuchSegment(c.request_id, c.segment)
        return wire.StreamSegmentInfo(
            c.request_id, c.segment, True, segment.sealed, False, 0, len(segment.data), segment.start
        )

    def _LocateMoment(self, c: wire.LocateMoment) -> Command:
        """It knows no times: nothing is known to have come before any moment."""
        if c.segment not in self.segments:
            return wire.NoSuchSegment(c.request_id, c.segment)
        return wire.MomentLocated(c.request_id, c.segment, self.segments[c.segment].start, False)

    def _SetupAppend(self, c: wire.SetupAppend) -> Command:
        if c.segment not in self.segments:
            return wire.NoSuchSegment(c.request_id, c.segment)
        self.writer_of[c.writer_id] = c.segment
        last = self.segments[c.segment].attributes.get(c.writer_id, NO_VERSION)
        return wire.AppendSetup(c.request_id, c.segment, c.writer_id, last)

    def _ConditionalAppend(self, c: wire.ConditionalAppend) -> Command:
        name = self.writer_of[c.writer_id]
        segment = self.segments.get(name)
        if segment is None:
            return wire.NoSuchSegment(c.request_id, name)
        if segment.sealed:
            return wire.SegmentIsSealed(c.request_id, name)
        if c.event_number <= segment.attributes.get(c.writer_id, NO_VERSION):
            return wire.InvalidEventNumber(c.writer_id, c.request_id)
        if len(segment.data) != c.expected_offset:
            return wire.ConditionalCheckFailed(c.writer_id, c.event_number, c.request_id)
        segment.data += frame_events([bytes(c.data)])
        segment.attributes[c.writer_id] = c.event_number
        return wire.DataAppended(c.writer_id, c.event_number, -1, c.request_id, len(segment.data))

    def _ReadSegment(self, c: wire.ReadSegment) -> Command:
        segment = self.segments.get(c.segment)
        if segment is None:
            return wire.NoSuchSegment(c.request_id, c.segment)
        if c.offset < segment.start:
            return wire.SegmentIsTruncated(c.request_id, c.segment, segment.start)
        assert c.offset < len(segment.data), "a read at the end would wait"
        data = memoryview(bytes(segment.data[c.offset : c.offset + c.suggested_length]))
        return wire.SegmentRead(c.segment, c.offset, False, False, data, c.request_id)

    def _GetSegmentAttribute(self, c: wire.GetSegmentAttribute) -> Command:
        segment = self.segments.get(c.segment)
        if segment is None:
            return wire.NoSuchSegment(c.request_id, c.segment)
        return wire.SegmentAttribute(c.request_id, segment.attributes.get(c.attribute_id, NO_VERSION))

    def _UpdateSegmentAttribute(self, c: wire.UpdateSegmentAttribute) -> Command:
        segment = self.segments.get(c.segment)
        if segment is None:
            return wire.NoSuchSegment(c.request_id, c.segment)
        if segment.attributes.get(c.attribute_id, NO_VERSION) != c.expected_value:
            return wire.SegmentAttributeUpdated(c.request_id, False)
        segment.attributes[c.attribute_id] = c.new_value
        return wire.SegmentAttributeUpdated(c.request_id, True)

    def _MergeSegmentsBatch(self, c: wire.MergeSegmentsBatch) -> Command:
        target = self.segments.get(c.target)
        if target is None:
            return wire.NoSuchSegment(c.request_id, c.target)
        if target.sealed:
            return wire.SegmentIsSealed(c.request_id, c.target)
        merged = []
        for name in c.sources:
            source = self.segments.pop(name, None)
            if source is not None:
                target.data += source.data
            merged.append((name, len(target.data)))
        return wire.SegmentsBatchMerged(c.request_id, c.target, tuple(merged))

    # --- tables ----------------------------------------------------------------------------------

    def _CreateTableSegment(self, c: wire.CreateTableSegment) -> Command:
        if c.segment in self.tables:
            return wire.SegmentAlreadyExists(c.request_id, c.segment)
        self.tables[c.segment] = FakeTable()
        return wire.SegmentCreated(c.request_id, c.segment)

    def _DeleteTableSegment(self, c: wire.DeleteTableSegment) -> Command:
        table = self.tables.get(c.segment)
        if table is None:
            return wire.NoSuchSegment(c.request_id, c.segment)
        if c.must_be_empty and table.entries:
            return wire.TableSegmentNotEmpty(c.request_id, c.segment)
        del self.tables[c.segment]
        return wire.SegmentDeleted(c.request_id, c.segment)

    def _UpdateTableEntries(self, c: wire.UpdateTableEntries) -> Command:
        table = self.tables.get(c.segment)
        if table is None:
            return wire.NoSuchSegment(c.request_id, c.segment)
        for entry in c.entries:
            held = table.entries.get(entry.key)
            if entry.version >= 0 and held is None:
                return wire.TableKeyDoesNotExist(c.request_id, c.segment)
            if entry.version == NOT_EXISTS and held is not None:
                return wire.TableKeyBadVersion(c.request_id, c.segment)
            if entry.version >= 0 and held is not None and held[0] != entry.version:
                return wire.TableKeyBadVersion(c.request_id, c.segment)
        versions = []
        for entry in c.entries:
            table.entries[entry.key] = (table.length, bytes(entry.value))
            versions.append(table.length)
            table.length += 17 + len(entry.key) + len(entry.value)
        return wire.TableEntriesUpdated(c.request_id, tuple(versions))

    def _UpdateTableToFreeRoom(self, c: wire.UpdateTableToFreeRoom) -> Command:
        if c.make_table:
            self.tables.setdefault(c.segment, FakeTable())
        return self._UpdateTableEntries(wire.UpdateTableEntries(c.request_id, c.segment, c.token, c.entries))

    def _RemoveTableKeys(self, c: wire.RemoveTableKeys) -> Command:
        table = self.tables.get(c.segment)
        if table is None:
            return wire.NoSuchSegment(c.request_id, c.segment)
        for key in c.keys:
            held = table.entries.get(key.key)
            if key.version >= 0 and held is None:
                return wire.TableKeyDoesNotExist(c.request_id, c.segment)
            if key.version >= 0 and held is not None and held[0] != key.version:
                return wire.TableKeyBadVersion(c.request_id, c.segment)
        for key in c.keys:
            if table.entries.pop(key.key, None) is not None:
                table.length += 17 + len(key.key)
        return wire.TableKeysRemoved(c.request_id, c.segment)

    def _ReadTable(self, c: wire.ReadTable) -> Command:
        table = self.tables.get(c.segment)
        if table is None:
            return wire.NoSuchSegment(c.request_id, c.segment)
        absent = (NOT_EXISTS, b"")
        found = tuple(TableEntry(k.key, *table.entries.get(k.key, absent)) for k in map(TableKey._make, c.keys))
        return wire.TableRead(c.request_id, c.segment, found)

    def _ReadTableEntries(self, c: wire.ReadTableEntries) -> Command:
        table = self.tables.get(c.segment)
        if table is None:
            return wire.NoSuchSegment(c.request_id, c.segment)
        token, low, high = c.range
        after = token[1:]
        keys = sorted(k for k in table.entries if k > after and low <= k and (not high or k <= high))
        keys = keys[: min(c.suggested_count, 7)]
        page = tuple(TableEntry(k, *table.entries[k]) for k in keys)
        token = b"!" + keys[-1] if keys else token
        return wire.TableEntriesRead(c.request_id, c.segment, page, token)
