"""Whatever happens, at most one leads at a time, and a later leader has a higher token."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from nadi.client.shared.shared_state import LeaderElection, election_kind
from nadi.client.shared.state_synchronizer import StateSynchronizer

from .memory_log import Memory, MemoryLog

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
