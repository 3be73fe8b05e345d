"""Clients of a simulated server, which do what real ones do, one call at a time, and keep on where one is lost."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from nadi.controller.controller import Controller
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import Config, EpochSegment, TxnState
from nadi.errors import ConflictError, InvalidArgumentError, NotFoundError, UnavailableError
from nadi.model.keyspace import key_position
from nadi.naming import transaction_segment_name
from nadi.wire import commands as wire
from nadi.wire.fields import NO_VERSION, NOT_EXISTS, TableEntry, TableKey

from .history import BrokenWordError, Counter, History, Noted, Written
from .world import LostError, World

T = TypeVar("T")
_AWAY = (wire.NoSuchSegment, wire.SegmentIsTruncated)


class Client:
    """name: its chance is made of it, and nothing else."""

    def __init__(self, world: World, history: History, name: str) -> None:
        self.world, self.history, self.name = world, history, name
        self.chance = world.chance(name)
        self._ids = itertools.count(1)

    def id(self) -> int:
        return next(self._ids)

    async def pause(self, mean_s: float) -> None:
        await asyncio.sleep(self.chance.expovariate(1 / mean_s))

    async def once(self, command: wire.Command) -> wire.Command:
        """The reply; LostError or UnavailableError where there is none."""
        return await self.world.ask(self.name, command, lambda server: server.exchange(command))

    async def sure(self, command: wire.Command) -> Any:
        """The reply, of a command that may be carried out several times."""
        while True:
            try:
                reply = await self.once(command)
            except (LostError, UnavailableError):
                await self.pause(0.5)
                continue
            if not isinstance(reply, wire.ErrorMessage):
                return reply
            if reply.error_code == wire.DAMAGED_DATA:
                raise BrokenWordError(f"nothing is damaged here, but {reply}")
            await self.pause(0.5)

    async def control(self, what: str, call: Callable[[Controller], Awaitable[T]], *, tries: int = 1_000_000) -> T:
        """A call to the controller, repeated where it may have been lost: the controller's are made for that."""
        for _ in range(tries):
            try:
                return await self.world.ask(self.name, what, lambda server: call(server.controller))
            except (LostError, UnavailableError):
                await self.pause(0.5)
        raise LostError

    async def length(self, segment: str) -> tuple[int, int] | None:
        """Where it begins and ends; None if it is gone."""
        info = await self.sure(wire.GetStreamSegmentInfo(self.id(), segment, ""))
        return None if isinstance(info, _AWAY) else (info.start_offset, info.write_offset)


class Appender(Client):
    """One writer's appends, to any segments: conditional ones, tried until it is known what became of them."""

    def __init__(self, world: World, history: History, name: str) -> None:
        super().__init__(world, history, name)
        self.writer = self.chance.getrandbits(128).to_bytes(16, "big")
        self._ends: dict[str, int] = {}  # of the segments that it is set up for
        self._numbers = itertools.count(1)

    async def append(self, segment: str, payload: bytes, number: int) -> int | None:
        """Where it ends; -1 if that isn't known, None if the segment is sealed without it."""
        while True:
            try:
                end = self._ends.get(segment)
                if end is None:
                    setup = await self.once(wire.SetupAppend(self.id(), self.writer, segment, ""))
                    if isinstance(setup, wire.AppendSetup) and setup.last_event_number >= number:
                        return -1
                    found = await self.length(segment)
                    if isinstance(setup, _AWAY) or found is None:
                        raise NotFoundError(segment)
                    end = self._ends[segment] = found[1]
                command = wire.ConditionalAppend(self.writer, number, end, 0, memoryview(payload), self.id())
                # one writer has one segment at a time at this door
                await self._set_up(segment)
                reply = await self.once(command)
            except (LostError, UnavailableError):
                self._ends.pop(segment, None)
                await self.pause(0.5)
                continue
            match reply:
                case wire.DataAppended():
                    self._ends[segment] = reply.current_segment_write_offset
                    return reply.current_segment_write_offset
                case wire.InvalidEventNumber():
                    return -1
                case wire.SegmentIsSealed():
                    self._ends.pop(segment, None)
                    setup = await self.sure(wire.SetupAppend(self.id(), self.writer, segment, ""))
                    if isinstance(setup, wire.AppendSetup):
                        return -1 if setup.last_event_number >= number else None
                    raise NotFoundError(segment)
                case wire.NoSuchSegment():
                    raise NotFoundError(segment)
                case _:  # others have written there, or the server is another one
                    self._ends.pop(segment, None)

    async def _set_up(self, segment: str) -> None:
        reply = await self.once(wire.SetupAppend(self.id(), self.writer, segment, ""))
        if not isinstance(reply, wire.AppendSetup):
            raise UnavailableError(str(reply))


class Writer(Appender):
    """Writes events of its own keys to a stream, wherever that is scaled to, and perhaps notes the time."""

    def __init__(self, world: World, history: History, name: str, stream: StreamName, *, notes: bool = False) -> None:
        super().__init__(world, history, name)
        self.stream, self.notes = stream, notes
        self._keys = {f"{name}-{key}": itertools.count(1) for key in range(3)}
        self._segments: dict[str, EpochSegment] = {}  # by key
        self._position: dict[int, int] = {}
        self._taken: set[int] = set()

    async def run(self, mean_s: float) -> None:
        while True:
            for _ in range(self.chance.randrange(1, 6)):
                await self._write(self.chance.choice(list(self._keys)))
            if self.notes:
                await self._note_time()
            await self.pause(mean_s)

    async def _write(self, key: str) -> None:
        event = self.history.written(Written(self.stream.key, key, next(self._keys[key])))
        number = next(self._numbers)
        while True:
            segment = await self._segment(key)
            name = self.stream.segment(segment.id)
            try:
                end = await self.append(name, event.payload, number)
            except NotFoundError:  # truncated; whether it had the event nobody can tell
                self._segments.pop(key)
                return
            if end is not None:
                event.acknowledged, event.segment, event.end = True, name, end
                if end >= 0:
                    self._position[segment.id] = end
                return
            await self._follow(key, segment)

    async def _segment(self, key: str) -> EpochSegment:
        found = self._segments.get(key)
        if found is None:
            current = await self.control("segments", lambda controller: controller.current_segments(self.stream))
            found = self._segments[key] = _of(key, current)
        return found

    async def _follow(self, key: str, segment: EpochSegment) -> None:
        found = await self.control("successors", lambda controller: controller.successors(self.stream, segment.id))
        self._segments[key] = _of(key, [successor for successor, _ in found])

    async def _note_time(self) -> None:
        if not self._position:
            return
        time, position = self._time(), dict(self._position)
        await self.control("note", lambda server: server.note_time(self.stream, self.name, time, position))
        self.history.notes.append(Noted(time, self._time(), position))

    def _time(self) -> int:
        return self.world.runtime.monotonic_ms()  # nobody sets it back


def _of(key: str, segments: Iterable[EpochSegment]) -> EpochSegment:
    position = key_position(key)
    return next(segment for segment in segments if segment.low <= position < segment.high)


class Reader(Client):
    """Reads on in all segments of streams, and now and then all again."""

    def __init__(self, world: World, history: History, name: str, streams: list[StreamName]) -> None:
        super().__init__(world, history, name)
        self.streams = streams
        self._offsets: dict[str, int] = {}

    async def run(self, mean_s: float) -> None:
        while True:
            await self.pause(mean_s)
            if self.chance.random() < 0.05:
                self._offsets.clear()
            await self.read_on(self.chance.choice(self.streams))

    async def read_on(self, stream: StreamName) -> dict[str, tuple[int, int]]:
        """To the end; gives where the segments that are there begin and end."""
        epochs = await self.control("history", lambda controller: controller.history(stream))
        found: dict[str, tuple[int, int]] = {}
        for segment in list(epochs.segments):
            name = stream.segment(segment)
            ends = await self.length(name)
            if ends is not None:
                found[name] = ends
                await self._read(name, *ends)
        return found

    async def _read(self, segment: str, start: int, end: int) -> None:
        at = max(self._offsets.get(segment, start), start)
        while at < end:
            command = wire.ReadSegment(segment, at, self.chance.choice([200, 5_000, 1 << 20]), "", self.id())
            reply = await self.sure(command)
            if isinstance(reply, _AWAY):
                return
            assert isinstance(reply, wire.SegmentRead), reply
            at += self.history.read(segment, at, bytes(reply.data))
            self._offsets[segment] = at


class Transactions(Client):
    """Begins transactions, writes to them, and commits, aborts or leaves them."""

    def __init__(self, world: World, history: History, name: str, stream: StreamName) -> None:
        super().__init__(world, history, name)
        self.stream = stream
        self._number = itertools.count(1)

    async def run(self, mean_s: float) -> None:
        while True:
            await self.pause(mean_s)
            await self._one()

    async def _one(self) -> None:
        begun = await self.control("begin", lambda controller: controller.create_transaction(self.stream, 20_000))
        txn, key = begun.txn_id, f"{self.name}-{next(self._number)}"
        self.history.transactions[txn] = TxnState.OPEN
        appender = Appender(self.world, self.history, f"{self.name}/{txn:x}")
        numbers = itertools.count(1)
        try:
            for number in range(self.chance.randrange(1, 6)):
                segment = self.chance.choice(begun.ranges)
                # of a key of its own each, for they go to any segments
                event = self.history.written(Written(self.stream.key, f"{key}-{number}", number, txn))
                name = transaction_segment_name(self.stream.segment(segment.id), txn)
                if await appender.append(name, event.payload, next(numbers)) is None:
                    break  # it was ended, for it took too long
                event.segment = name
            else:
                await self._end(txn)
        except NotFoundError:
            pass
        while self.history.transactions[txn] not in (TxnState.COMMITTED, TxnState.ABORTED):
            await self.pause(5.0)
            self.history.transactions[txn] = await self.control(
                "state", lambda controller: controller.transaction_state(self.stream, txn)
            )

    async def _end(self, txn: int) -> None:
        how = self.chance.random()
        try:
            if how < 0.7:
                await self.control("commit", lambda controller: controller.commit_transaction(self.stream, txn))
            elif how < 0.9:
                await self.control("abort", lambda controller: controller.abort_transaction(self.stream, txn))
        except ConflictError:
            pass  # it had ended by itself


class Scaler(Client):
    """Splits segments, and joins neighbours."""

    async def run(self, stream: StreamName, mean_s: float) -> None:
        while True:
            await self.pause(mean_s)
            segments = list(await self.control("segments", lambda controller: controller.current_segments(stream)))
            at = self.chance.randrange(len(segments))
            if len(segments) < 4 and at < 3:
                low, high = segments[at].low, segments[at].high
                sealed, ranges = [segments[at].id], [(low, (low + high) / 2), ((low + high) / 2, high)]
            else:
                at = min(at, len(segments) - 2)
                one, other = segments[at : at + 2]
                sealed, ranges = [one.id, other.id], [(one.low, other.high)]
            try:
                await self.control("scale", lambda controller: controller.scale(stream, sealed, ranges))  # noqa: B023
            except (ConflictError, InvalidArgumentError):
                pass


class Truncater(Client):
    async def run(self, stream: StreamName, mean_s: float) -> None:
        while True:
            await self.pause(mean_s)
            segments = await self.control("segments", lambda controller: controller.current_segments(stream))
            cut: dict[int, int] = {}
            for segment in segments:
                ends = await self.length(stream.segment(segment.id))
                if ends is None:
                    break
                cut[segment.id] = ends[1]
            else:
                self.history.cuts.setdefault(stream.key, []).append(cut)
                try:
                    await self.control("truncate", lambda controller: controller.truncate_stream(stream, cut))  # noqa: B023
                except (ConflictError, InvalidArgumentError):
                    pass


class TableUser(Client):
    """Counts in entries of a table, two of them always in one step."""

    SEGMENT = "home/table/0.#epoch.0"
    KEYS = (b"one", b"two", b"three", b"four")

    async def run(self, mean_s: float) -> None:
        await self.sure(wire.CreateTableSegment(self.id(), self.SEGMENT, ""))
        while True:
            await self.pause(mean_s)
            await self._count(self.chance.sample(self.KEYS, 2), mean_s / 10)

    async def read(self, keys: list[bytes]) -> dict[bytes, TableEntry]:
        counters = [self.history.counters.setdefault(key, Counter()) for key in keys]
        at_least = [counter.highest for counter in counters]
        asked = tuple(TableKey(key, NO_VERSION) for key in keys)
        reply = await self.sure(wire.ReadTable(self.id(), self.SEGMENT, "", asked))
        assert isinstance(reply, wire.TableRead), reply
        for counter, entry, least in zip(counters, reply.entries, at_least, strict=True):
            counter.seen(int(bytes(entry.value) or b"0"), least)
        return {bytes(entry.key): entry for entry in reply.entries}

    async def _count(self, keys: list[bytes], mean_s: float) -> None:
        found = await self.read(keys)
        await self.pause(mean_s)  # others count meanwhile
        values = {key: int(bytes(entry.value) or b"0") + 1 for key, entry in found.items()}
        entries = tuple(
            TableEntry(key, entry.version if entry.value else NOT_EXISTS, str(values[key]).encode())
            for key, entry in found.items()
        )
        for key, value in values.items():
            self.history.counters[key].tried = max(self.history.counters[key].tried, value)
        try:
            reply = await self.once(wire.UpdateTableEntries(self.id(), self.SEGMENT, "", entries))
        except (LostError, UnavailableError):
            return
        if isinstance(reply, wire.TableEntriesUpdated):
            for key, value in values.items():
                self.history.counters[key].acknowledged(value)
        else:
            assert isinstance(reply, (wire.TableKeyBadVersion, wire.TableKeyDoesNotExist, wire.ErrorMessage)), reply


class Deleter(Client):
    """Makes streams that don't live long."""

    async def run(self, mean_s: float) -> None:
        for number in itertools.count(1):
            await self.pause(mean_s)
            await self._one(StreamName("home", f"{self.name}-{number}"))

    async def _one(self, stream: StreamName) -> None:
        try:
            await self.control("create", lambda controller: controller.create_stream(stream, Config(min_segments=2)))
        except ConflictError:
            pass  # an answer that was lost
        segments = await self.control("segments", lambda controller: controller.current_segments(stream))
        writer = Appender(self.world, self.history, f"{self.name}/{stream.stream}")
        await writer.append(stream.segment(segments[0].id), b"gone", 1)
        await self.control("seal", lambda controller: controller.seal_stream(stream))
        try:
            await self.control("delete", lambda controller: controller.delete_stream(stream))
        except NotFoundError:
            pass  # an answer that was lost
        for segment in segments:
            assert await self.length(stream.segment(segment.id)) is None, f"{stream} is deleted"


async def learn_ends(client: Client, history: History, stream: StreamName) -> None:
    """Ask what became of transactions whose client was stopped before it knew; wait until they have ended."""
    for txn, state in history.transactions.items():
        while state not in (TxnState.COMMITTED, TxnState.ABORTED):
            state = await client.control("state", lambda controller: controller.transaction_state(stream, txn))  # noqa: B023
            history.transactions[txn] = state
            await asyncio.sleep(5.0)
