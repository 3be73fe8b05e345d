"""Any interleaving of clients that share state equals doing their calls one after another.

The clients are the real ones over a log in memory, whose every call waits twice until the test lets it go
on: before it has its effect, and before its caller hears of that. Hypothesis chooses who goes on.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from nadi.client.state_sync.shared_state import LeaderElection, SharedMap, election_kind, map_kind
from nadi.client.state_sync.state_synchronizer import StateSynchronizer

from .memory_log import Memory, MemoryLog

CLIENTS = 3
KEYS = ("a", "b")


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
        self.log = MemoryLog(memory, gated=True)
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


# --- whatever happens, at most one leads at a time, and a later leader has a higher token ---

PARTICIPANTS = 3
STEPS = st.lists(
    st.tuples(
        st.integers(0, PARTICIPANTS - 1),
        st.sampled_from(["campaign", "campaign", "resign", "refresh", "restart"]),
        st.integers(0, 30),  # ms until the next step
        st.integers(1, 50),  # ms of the lease
    ),
    max_size=40,
)


@settings(max_examples=100)
@given(STEPS)
def test_one_leader_at_a_time(steps: list[tuple[int, str, int, int]]) -> None:
    memory = Memory()

    def taking_part() -> LeaderElection:
        return LeaderElection(StateSynchronizer(MemoryLog(memory), election_kind()), "same name")

    async def elect() -> None:
        all_of_them = [taking_part() for _ in range(PARTICIPANTS)]
        now_ms, last_leader, last_token = 0, -1, 0
        for index, step, pause_ms, lease_ms in steps:
            match step:
                case "campaign":
                    token = await all_of_them[index].campaign(now_ms, lease_ms)
                    assert token == all_of_them[index].token(now_ms)
                case "resign":
                    await all_of_them[index].resign()
                case "refresh":
                    await all_of_them[index].refresh()
                case _:
                    all_of_them[index] = taking_part()
                    last_leader = -1 if last_leader == index else last_leader
            now_ms += pause_ms
            leading = [(i, token) for i, one in enumerate(all_of_them) if (token := one.token(now_ms)) is not None]
            assert len(leading) <= 1
            for leader, token in leading:
                assert token > last_token or (token == last_token and leader == last_leader)
                last_leader, last_token = leader, token

    asyncio.run(elect())
