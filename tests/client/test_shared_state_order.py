"""Any interleaving of clients that share state equals doing their calls one after another.

The clients are the real ones over a log in memory, whose every call waits twice until the test lets it go
on: before it has its effect, and before its caller hears of that. Hypothesis chooses who goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from nadi.client.revisioned_stream import Extent, Record
from nadi.client.shared_state import SharedMap, map_kind
from nadi.client.state_synchronizer import StateSynchronizer
from nadi.errors import ConditionFailedError, NadiError, TruncatedError

CLIENTS = 3
KEYS = ("a", "b")


@dataclass
class Memory:
    """What a server would keep of one revisioned stream."""

    start: int = 0
    records: list[Record] = field(default_factory=list)
    mark: int | None = None

    @property
    def end(self) -> int:
        return self.records[-1].end if self.records else self.start


class GatedLog:
    """One client's way to the memory."""

    name = "sc/st"
    trouble: NadiError | None = None

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.gate: asyncio.Future[None] | None = None

    async def _wait(self) -> None:
        self.gate = asyncio.get_running_loop().create_future()
        await self.gate

    def let_go(self) -> None:
        if self.gate is not None and not self.gate.done():
            self.gate.set_result(None)

    async def extent(self) -> Extent:
        await self._wait()
        found = Extent(self._memory.start, self._memory.end)
        await self._wait()
        return found

    async def read(self, start: int, end: int) -> AsyncGenerator[Record, None]:
        await self._wait()
        if start < self._memory.start:
            raise TruncatedError(self.name, start, self._memory.start)
        found = [record for record in self._memory.records if start <= record.revision < end]
        await self._wait()
        for record in found:
            yield record

    async def append(self, data: bytes, expected_end: int) -> int:
        await self._wait()
        if self._memory.end != expected_end:
            await self._wait()
            raise ConditionFailedError("elsewhere")
        end = expected_end + 8 + len(data)
        self._memory.records.append(Record(expected_end, end, data))
        await self._wait()
        return end

    async def mark(self) -> int | None:
        await self._wait()
        found = self._memory.mark
        await self._wait()
        return found

    async def set_mark(self, revision: int, expected: int | None) -> bool:
        await self._wait()
        done = self._memory.mark == expected
        if done:
            self._memory.mark = revision
        await self._wait()
        return done

    async def truncate(self, revision: int) -> None:
        await self._wait()
        self._memory.start = max(revision, self._memory.start)
        self._memory.records = [record for record in self._memory.records if record.revision >= revision]
        await self._wait()


@dataclass
class Done:
    """A call that ended: the revision it knew then, and whether it wrote the record that ends there."""

    revision: int
    wrote: bool
    name: str
    arguments: tuple[Any, ...]
    result: Any


class Client:
    def __init__(self, memory: Memory, done: list[Done]) -> None:
        self.log = GatedLog(memory)
        self.map: SharedMap[int] = SharedMap(StateSynchronizer(self.log, map_kind(int)))
        self._done = done
        self.task: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        return self.task is not None and not self.task.done()

    async def call(self, name: str, *arguments: Any) -> None:
        match name, arguments:
            case "increment", (key,):
                result: Any = await self.map.compute(key, lambda value: (value or 0) + 1)
                wrote = True
            case "put_if_absent", (key, value):
                result = wrote = await self.map.put_if_absent(key, value)
            case "replace", (key, expected, value):
                result = wrote = await self.map.replace(key, expected, value)
            case "remove", (key,):
                result = wrote = await self.map.remove(key)
            case "compact", (keep,):
                await self.map.compact(keep_history=keep)
                result, wrote = None, True
            case _:
                await self.map.refresh()
                result, wrote = self.map.as_dict(), False
        self._done.append(Done(self.map.revision, wrote, name, arguments, result))


def done_serially(state: dict[str, int], call: Done) -> Any:
    match call.name, call.arguments:
        case "increment", (key,):
            state[key] = state.get(key, 0) + 1
            return state[key]
        case "put_if_absent", (key, value):
            return key not in state and state.setdefault(key, value) == value
        case "replace", (key, expected, value):
            if state.get(key) != expected:
                return False
            state[key] = value
            return True
        case "remove", (key,):
            return state.pop(key, None) is not None
        case "compact", _:
            return None
    return dict(state)


class Interleaving(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.done: list[Done] = []
        self.memory = Memory()
        self.clients = [Client(self.memory, self.done) for _ in range(CLIENTS)]

    def settle(self) -> None:
        async def turns() -> None:
            for _ in range(8):
                await asyncio.sleep(0)

        self.loop.run_until_complete(turns())

    def start(self, client: int, name: str, *arguments: Any) -> None:
        if not self.clients[client].is_busy:
            self.clients[client].task = self.loop.create_task(self.clients[client].call(name, *arguments))
            self.settle()

    @rule(client=st.integers(0, CLIENTS - 1), key=st.sampled_from(KEYS))
    def increment(self, client: int, key: str) -> None:
        self.start(client, "increment", key)

    @rule(client=st.integers(0, CLIENTS - 1), key=st.sampled_from(KEYS), value=st.integers(1, 3))
    def put_if_absent(self, client: int, key: str, value: int) -> None:
        self.start(client, "put_if_absent", key, value)

    @rule(client=st.integers(0, CLIENTS - 1), key=st.sampled_from(KEYS), old=st.integers(1, 3), new=st.integers(1, 3))
    def replace(self, client: int, key: str, old: int, new: int) -> None:
        self.start(client, "replace", key, old, new)

    @rule(client=st.integers(0, CLIENTS - 1), key=st.sampled_from(KEYS))
    def remove(self, client: int, key: str) -> None:
        self.start(client, "remove", key)

    @rule(client=st.integers(0, CLIENTS - 1), keep=st.booleans())
    def compact(self, client: int, keep: bool) -> None:
        self.start(client, "compact", keep)

    @rule(client=st.integers(0, CLIENTS - 1))
    def refresh(self, client: int) -> None:
        self.start(client, "refresh")

    @rule(client=st.integers(0, CLIENTS - 1), steps=st.integers(1, 12))
    def go_on(self, client: int, steps: int) -> None:
        for _ in range(steps):
            self.clients[client].log.let_go()
            self.settle()

    def teardown(self) -> None:
        try:
            for _ in range(10_000):
                if not any(client.is_busy for client in self.clients):
                    break
                for index in range(CLIENTS):
                    self.go_on(index, 1)
            for client in self.clients:
                if client.task is not None:
                    client.task.result()
            state: dict[str, int] = {}
            # who read a revision comes after who wrote up to it
            for call in sorted(self.done, key=lambda call: (call.revision, not call.wrote)):
                assert done_serially(state, call) == call.result, call
        finally:
            self.loop.close()


TestInterleaving = Interleaving.TestCase
TestInterleaving.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
