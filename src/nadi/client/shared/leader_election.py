"""One leader among many processes, for the length of a lease, with a token that grows with each leader.

Time is the caller's: every call takes `now_ms`, so all who take part must agree on it up to less than a
lease. Clocks can fail and processes can stall, so a leader passes its token along with what it does, and
whoever carries that out refuses a token lower than one it has seen: then a former leader does no harm.
"""

from __future__ import annotations

import msgspec

from nadi.client.control.arguments import checked
from nadi.client.shared.shared_state import SharedState
from nadi.client.shared.state_synchronizer import StateKind, StateSynchronizer
from nadi.errors import InvalidArgumentError


class Lease(msgspec.Struct, frozen=True, array_like=True):
    """Who leads, until when, and with which token; before the first leader the token is 0."""

    leader: str = ""
    token: int = 0
    until_ms: int = 0


def election_kind() -> StateKind[Lease, Lease]:
    return StateKind.of_types(Lease, Lease, Lease, lambda _, update: update)


@checked()
class LeaderElection(SharedState[Lease, Lease]):
    """One who takes part, by the name of `participant`."""

    def __init__(self, synchronizer: StateSynchronizer[Lease, Lease], participant: str) -> None:
        super().__init__(synchronizer)
        self.participant = participant
        self._token: int | None = None  # under which this object leads or has led

    def token(self, now_ms: int) -> int | None:
        """Return the fencing token if this participant leads at that time, as far as this object knows."""
        leads = self._token == self._state.token and self._state.until_ms > now_ms
        return self._token if leads else None

    def leader(self, now_ms: int) -> Lease | None:
        """Return the lease of the leader at that time, as far as this object knows."""
        return self._state if self._state.until_ms > now_ms else None

    async def campaign(self, now_ms: int, lease_ms: int, timeout: float | None = None) -> int | None:
        """Lead until `now_ms + lease_ms` if nobody else does, or keep leading; return the token, or None.

        The leader calls it again well before the lease ends. A name counts only together with the token that
        this object received: another process of the same name waits like everybody else.
        """
        if not isinstance(now_ms, int) or not isinstance(lease_ms, int) or lease_ms <= 0:
            raise InvalidArgumentError(
                f"a lease is a number of ms above 0, from a time in ms: not {lease_ms}, {now_ms!r}"
            )
        token: int | None = None

        def generate(state: Lease) -> list[Lease]:
            nonlocal token
            if state.until_ms > now_ms and state.token != self._token:
                token = None
                return []
            goes_on = state.until_ms > now_ms
            token = state.token if goes_on else state.token + 1
            until_ms = max(now_ms + lease_ms, state.until_ms) if goes_on else now_ms + lease_ms
            return [Lease(self.participant, token, until_ms)]

        await self._change(generate, timeout)
        self._token = token
        return token

    async def resign(self, timeout: float | None = None) -> bool:
        """Let somebody else lead at once; return False if this participant no longer leads."""

        def generate(state: Lease) -> list[Lease]:
            return [Lease("", state.token, 0)] if state.token == self._token and state.leader else []

        resigned = await self._change(generate, timeout)
        self._token = None
        return resigned
