"""Slow down scopes and users that exceed the rates of their quotas on this server, and count their connections.

A request is counted when it arrives and carried out at once; if its owner then exceeds a rate, the peer has to wait
before its next one: until the bytes and requests so far fit the rate, with a burst of `QUOTA_BURST_S` allowed. Peers
of an owner wait behind each other. No wait exceeds `QUOTA_WAIT_MAX_S`, since clients take a silent server for dead.

The active controller decides how much each server of a cluster may admit (`nadi.controller.quotas`); servers report
their use and get their shares every second (`keep_shared`). What a server itself writes and reads isn't counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

from nadi.limits import QUOTA_BURST_S, QUOTA_SHARE_S, QUOTA_WAIT_MAX_S
from nadi.model.quotas import RATES, SCOPE, QuotaShare, QuotaUse
from nadi.observe.metrics import MetricDefinition, Sample, by_name
from nadi.throttled_log import ProblemLog

log = logging.getLogger(__name__)
Share = Callable[[str, Sequence[QuotaUse]], Awaitable[Sequence[QuotaShare]]]
IN, OUT = 0, 2  # the first of two rates in `RATES`
_RAISED = 1.2  # times as much: waiting peers are released, and wait again if they must
MEANINGS = by_name(
    (
        MetricDefinition(
            "nadi_quota_limit", "What a quota allows on this server, by owner and limit.", ("owner", "limit")
        ),
        MetricDefinition(
            "nadi_quota_used", "Bytes and requests counted against a quota.", ("owner", "limit"), "counter"
        ),
        MetricDefinition("nadi_quota_slowed_seconds", "Time that peers waited for a quota.", ("owner",), "counter"),
        MetricDefinition("nadi_quota_connections", "Open connections of a user with a quota.", ("owner",)),
    )
)


class _Rate:
    """One rate of an owner. per_s: the limit; None only counts. used: in total. due_s: when all that was used fits."""

    __slots__ = ("_cost_s", "_last_used", "due_s", "measured_per_s", "per_s", "used")

    def __init__(self) -> None:
        self.per_s: float | None = None
        self._cost_s = 0.0  # of one byte or request; 0: only counts
        self.used = self._last_used = 0
        self.measured_per_s = 0.0
        self.due_s = 0.0

    def limit(self, per_s: float | None) -> None:
        self.per_s, self._cost_s = per_s, 0.0 if per_s is None else 1 / max(per_s, 1e-9)

    def take(self, amount: int, now_s: float) -> float:
        """Count an amount; return the seconds to wait until the next, negative if there are none."""
        self.used += amount
        cost_s = self._cost_s
        if not cost_s:
            return 0.0
        due_s, earliest_s = self.due_s, now_s - QUOTA_BURST_S  # without `min` and `max`: it runs for each block
        wait_s = (due_s if due_s > earliest_s else earliest_s) + amount * cost_s - now_s
        if wait_s > QUOTA_WAIT_MAX_S:
            wait_s = QUOTA_WAIT_MAX_S
        self.due_s = now_s + wait_s
        return wait_s

    def measure(self, elapsed_s: float) -> float:
        """Return the rate per second, a mean of the last seconds."""
        now_per_s, self._last_used = (self.used - self._last_used) / elapsed_s, self.used
        self.measured_per_s = (self.measured_per_s + now_per_s) / 2
        return self.measured_per_s


class _Owner:
    """A scope or user with a quota. slowed_s: the sum of its peers' waits."""

    __slots__ = ("connections", "is_full", "rates", "slowed_s")

    def __init__(self) -> None:
        self.rates = [_Rate() for _ in RATES]
        self.connections: int | None = None
        self.is_full = False
        self.slowed_s = 0.0

    def set(self, share: QuotaShare) -> bool:
        """Apply a share; return whether peers that wait may wait too long now."""
        is_raised = self.is_full and not share.is_full
        self.is_full, self.connections = share.is_full, share.connections
        for rate, per_s in zip(self.rates, share.rates, strict=True):
            if rate.per_s is not None and (per_s is None or per_s > _RAISED * rate.per_s):
                is_raised, rate.due_s = True, 0.0
            rate.limit(per_s)
        return is_raised

    def take(self, first: int, size_bytes: int, count: int, now_s: float) -> float:
        wait_s = self.rates[first].take(size_bytes, now_s)
        other_s = self.rates[first + 1].take(count, now_s)
        if other_s > wait_s:
            wait_s = other_s
        if self.is_full and first == IN:
            wait_s = QUOTA_WAIT_MAX_S
        if wait_s > 0:
            self.slowed_s += wait_s
        return wait_s


class Quotas:
    """The quotas of a server's peers. is_limiting: whether there are any; if not, nothing else needs to be called."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.is_limiting = False
        self._monotonic = monotonic
        self._scopes: dict[str, _Owner] = {}
        self._users: dict[str, _Owner] = {}
        self._connections = Counter[str]()  # of each user, also without a quota
        self.waiting: dict[Brake, None] = {}
        self._measured_s = monotonic()

    def take(self, first: int, scope: str, user: str | None, size_bytes: int, count: int = 1) -> float:
        """Count `count` requests; return how long their sender must wait before the next. first: IN or OUT. user: ""
        if unknown, None for the server itself."""
        if user is None:
            return 0.0
        of_scope, of_user = self._scopes.get(scope), self._users.get(user)
        if of_scope is None and of_user is None:
            return 0.0
        now_s = self._monotonic()
        wait_s = of_scope.take(first, size_bytes, count, now_s) if of_scope is not None else 0.0
        if of_user is not None and (user_s := of_user.take(first, size_bytes, count, now_s)) > wait_s:
            wait_s = user_s
        return wait_s

    def connect(self, user: str) -> str:
        """Count a connection of a user; return why it must be closed instead, or ""."""
        owner = self._users.get(user)
        if owner is not None and owner.connections is not None and self._connections[user] >= owner.connections:
            return f"quota exceeded: user/{user} has as many connections as its quota allows on this server"
        self._connections[user] += 1
        return ""

    def disconnect(self, user: str) -> None:
        self._connections[user] -= 1
        if not self._connections[user]:
            del self._connections[user]

    def uses(self) -> list[QuotaUse]:
        """Return the use of each quota since the last call."""
        elapsed_s = max(self._monotonic() - self._measured_s, 1e-3)
        self._measured_s += elapsed_s
        return [
            QuotaUse(key, tuple(rate.measure(elapsed_s) for rate in owner.rates), self._connections[name])
            for key, name, owner in self._owners()
        ]

    def apply(self, shares: Iterable[QuotaShare]) -> None:
        """Replace all quotas."""
        former = {key: owner for key, _, owner in self._owners()}
        self._scopes, self._users = {}, {}
        is_raised = False
        for share in shares:
            kind, _, name = share.owner.partition("/")
            owner = former.pop(share.owner) if share.owner in former else _Owner()
            (self._scopes if kind == SCOPE else self._users)[name] = owner
            is_raised |= owner.set(share)
        self.is_limiting = bool(self._scopes or self._users)
        if is_raised or former:
            for brake in list(self.waiting):
                brake.release()

    async def keep_shared(self, server: str, share: Share, sleep: Callable[[float], Awaitable[None]]) -> None:
        """Exchange use for shares again and again. Without an answer the last shares stay in effect."""
        problems = ProblemLog(log, "%s wait for the active controller")
        while True:
            with problems.about("changes of quotas"):
                self.apply(await share(server, self.uses()))
            await sleep(QUOTA_SHARE_S)

    def samples(self) -> Iterator[Sample]:
        for key, name, owner in self._owners():
            for limit, rate in zip(RATES, owner.rates, strict=True):
                if rate.per_s is not None:
                    yield Sample(MEANINGS["nadi_quota_limit"], rate.per_s, (key, limit))
                    yield Sample(MEANINGS["nadi_quota_used"], rate.used, (key, limit))
            yield Sample(MEANINGS["nadi_quota_slowed_seconds"], owner.slowed_s, (key,))
            if owner.connections is not None:
                yield Sample(MEANINGS["nadi_quota_limit"], owner.connections, (key, "connections"))
                yield Sample(MEANINGS["nadi_quota_connections"], self._connections[name], (key,))

    def _owners(self) -> Iterator[tuple[str, str, _Owner]]:
        for kind, owners in (("scope", self._scopes), ("user", self._users)):
            for name, owner in owners.items():
                yield f"{kind}/{name}", name, owner


class Brake:
    """Makes one peer wait. resume: called when it may continue."""

    __slots__ = ("_quotas", "_resume", "_timer", "_until_s")

    def __init__(self, quotas: Quotas, resume: Callable[[], None]) -> None:
        self._quotas, self._resume = quotas, resume
        self._timer: asyncio.TimerHandle | None = None
        self._until_s = 0.0

    @property
    def is_on(self) -> bool:
        return self._timer is not None

    def hold(self, wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + wait_s
        if self._timer is None:
            self._quotas.waiting[self] = None
        elif until_s <= self._until_s:
            return
        else:
            self._timer.cancel()
        self._until_s, self._timer = until_s, loop.call_later(wait_s, self.release)

    def release(self) -> None:
        self.close()
        self._resume()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            del self._quotas.waiting[self]
