"""Quotas: their records, the counts of what they limit, and the shares of a cluster's servers.

Servers slow down their own peers (`nadi.access.quotas`) and report the rates they measure. A rate is divided among the
servers that report: a small part evenly, so that a newcomer can start, and the rest in proportion to the use of each.
Connections of a user are limited to the quota less those on other servers. Counts of streams and segments are checked
here, by the only controller, before a stream is created or scaled.

All quotas are in memory, as read when the controller first needed them; only this controller changes their records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import asdict

from nadi.controller.engine.workflows import Workflows
from nadi.controller.retention import cut_sizes
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import QuotaRecord
from nadi.controller.state.segments import ABSENT, ANY_VERSION
from nadi.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError, QuotaExceededError
from nadi.limits import (
    METRICS_PAGE,
    QUOTA_COUNTED_S,
    QUOTA_CREATED_S,
    QUOTA_IDLE_SHARE,
    QUOTA_SERVER_S,
    QUOTA_STORED_REST,
    QUOTA_STORED_S,
    QUOTAS_MAX,
)
from nadi.model.quotas import (
    RATES,
    SCOPE,
    Quota,
    QuotaLimits,
    QuotaShare,
    QuotaUse,
    check_limits,
    check_owner,
)


@dataclass(slots=True)
class _Counted:
    """The streams of a scope with a quota. streams: the segments of each. admitted_s: when streams were admitted that
    may not have a record yet. at_s: of the last count. stored_bytes: as last measured; stored_due_s: measure again."""

    streams: dict[str, int] = field(default_factory=dict)
    admitted_s: dict[str, float] = field(default_factory=dict)
    at_s: float = -1e9
    stored_bytes: int = 0
    stored_due_s: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class QuotaCatalog:
    """All quotas. `admit` is for `Workflows`."""

    def __init__(self, flow: Workflows) -> None:
        self._flow = flow
        self._quotas: dict[str, QuotaLimits] | None = None
        self._loading = asyncio.Lock()
        self._servers: dict[str, tuple[float, dict[str, QuotaUse]]] = {}  # with the time of the last report
        self._counted: dict[str, _Counted] = {}

    async def load(self) -> dict[str, QuotaLimits]:
        async with self._loading:
            if self._quotas is None:
                self._quotas = {key: record.value.limits async for key, record in self._flow.metadata.quotas.scan()}
            return self._quotas

    async def list(self) -> list[Quota]:
        """Return all quotas, by owner, with their use."""
        return [await self._described(owner, record) for owner, record in sorted((await self.load()).items())]

    async def get(self, owner: str) -> Quota:
        check_owner(owner)
        record = (await self.load()).get(owner)
        if record is None:
            raise _missing(owner)
        return await self._described(owner, record)

    async def put(self, owner: str, limits: QuotaLimits, *, creates: bool) -> Quota:
        """Create a quota, or replace all its limits. AlreadyExistsError, NotFoundError, InvalidArgumentError."""
        check_limits(owner, limits)
        quotas = await self.load()
        if creates and owner in quotas:
            raise AlreadyExistsError("quota", owner)
        if not creates and owner not in quotas:
            raise _missing(owner)
        if owner not in quotas and len(quotas) >= QUOTAS_MAX:
            raise InvalidArgumentError(f"there are {QUOTAS_MAX:,} quotas, and more aren't supported: delete some")
        async with self._loading:
            self._quotas = None  # the outcome may stay unknown
            await self._flow.metadata.quotas.put(owner, QuotaRecord(limits), ABSENT if creates else ANY_VERSION)
        return await self.get(owner)

    async def delete(self, owner: str) -> None:
        check_owner(owner)
        if owner not in await self.load():
            raise _missing(owner)
        async with self._loading:
            self._quotas = None
            await self._flow.metadata.quotas.remove([owner])

    # --- shares of servers --------------------------------------------------------------------

    async def share(self, server: str, uses: Sequence[QuotaUse]) -> Sequence[QuotaShare]:
        """Note what a server used; return what it may use until its next report."""
        quotas, now_s = await self.load(), self._flow.clock.monotonic()
        self._servers[server] = now_s, {use.owner: use for use in uses}
        self._servers = {name: known for name, known in self._servers.items() if now_s - known[0] < QUOTA_SERVER_S}
        return [self._share(server, owner, record) for owner, record in quotas.items()]

    def _share(self, server: str, owner: str, record: QuotaLimits) -> QuotaShare:
        none = QuotaUse(owner, (0.0,) * len(RATES), 0)
        uses = {name: used.get(owner, none) for name, (_, used) in self._servers.items()}
        own = uses[server]
        rates: list[float | None] = []
        for number, name in enumerate(RATES):
            limit, total = getattr(record, name), sum(use.rates[number] for use in uses.values())
            part = own.rates[number] / total if total else 1 / len(uses)
            part = QUOTA_IDLE_SHARE / len(uses) + (1 - QUOTA_IDLE_SHARE) * part
            rates.append(None if limit is None else limit * part)
        connections = record.connections
        if connections is not None:
            connections = max(0, connections - sum(use.connections for use in uses.values()) + own.connections)
        counted = self._counted.get(owner.partition("/")[2]) if owner.startswith(f"{SCOPE}/") else None
        is_full = record.stored_bytes is not None and counted is not None and counted.stored_bytes > record.stored_bytes
        return QuotaShare(owner, tuple(rates), connections, is_full)

    # --- counts -------------------------------------------------------------------------------

    async def admit(self, name: StreamName, segments: int) -> None:
        """Count a stream that is about to have `segments` segments; QuotaExceededError. Internal ones don't count."""
        quotas = self._quotas if self._quotas is not None else await self.load()
        owner = f"{SCOPE}/{name.scope}"
        quota = quotas.get(owner)
        if quota is None or name.stream.startswith("_"):
            return
        counted = await self._count(name.scope)
        wanted = counted.streams | {name.stream: segments}
        if _exceeded(quota, counted.streams, wanted):  # some may have been deleted
            counted = await self._count(name.scope, age_s=QUOTA_COUNTED_S)
            wanted = counted.streams | {name.stream: segments}
        if exceeded := _exceeded(quota, counted.streams, wanted):
            raise QuotaExceededError.of(owner, *exceeded)
        is_new = name.stream not in counted.streams
        if is_new and quota.stored_bytes is not None and counted.stored_bytes > quota.stored_bytes:
            used = counted.stored_bytes
            raise QuotaExceededError.of(owner, "stored_bytes", quota.stored_bytes, used, used)
        counted.streams[name.stream] = segments  # before anything is awaited
        counted.admitted_s[name.stream] = self._flow.clock.monotonic()

    async def _count(self, scope: str, age_s: float = 1e9) -> _Counted:
        """Return the scope's counts, renewed if they are older. Streams just admitted count even without a record."""
        counted = self._counted.setdefault(scope, _Counted())
        clock = self._flow.clock
        async with counted.lock:
            began_s = clock.monotonic()
            if began_s - counted.at_s > age_s:
                streams = {
                    stream: len(record.value.segments)
                    async for stream, record in self._flow.metadata.streams(scope).scan(page=METRICS_PAGE)
                    if not stream.startswith("_")
                }
                recent = {
                    stream: at_s for stream, at_s in counted.admitted_s.items() if began_s - at_s < QUOTA_CREATED_S
                }
                counted.streams = streams | {stream: counted.streams[stream] for stream in recent}
                counted.admitted_s, counted.at_s = recent, began_s
            return counted

    async def measure(self) -> None:
        """Measure the stored bytes of scopes whose quotas limit them: a round of the controller."""
        clock = self._flow.clock
        quotas = await self.load()
        scopes = {owner.partition("/")[2]: record for owner, record in quotas.items() if owner.startswith(f"{SCOPE}/")}
        self._counted = {scope: counted for scope, counted in self._counted.items() if scope in scopes}
        for scope, record in scopes.items():
            began_s, counted = clock.monotonic(), self._counted.setdefault(scope, _Counted())
            if record.stored_bytes is None or began_s < counted.stored_due_s:
                continue
            counted.stored_bytes = await self._stored_bytes(scope)
            took_s = clock.monotonic() - began_s
            counted.stored_due_s = began_s + max(QUOTA_STORED_S, QUOTA_STORED_REST * took_s)

    async def _stored_bytes(self, scope: str) -> int:
        total = 0
        async for stream, _ in self._flow.metadata.streams(scope).scan(page=METRICS_PAGE):
            if not stream.startswith("_"):
                try:
                    total += (await cut_sizes.measure(self._flow, StreamName(scope, stream))).retained_bytes
                except NotFoundError:
                    pass  # deleted meanwhile
        return total

    async def _described(self, owner: str, record: QuotaLimits) -> Quota:
        used: dict[str, float] = {}
        measured = [use for _, known in self._servers.values() if (use := known.get(owner)) is not None]
        for number, name in enumerate(RATES):
            used[name] = round(sum(use.rates[number] for use in measured), 1)
        used["connections"] = sum(use.connections for use in measured)
        kind, scope = check_owner(owner)
        if kind == SCOPE and (record.streams is not None or record.segments is not None):
            counted = await self._count(scope, age_s=QUOTA_COUNTED_S)
            used |= {"streams": len(counted.streams), "segments": sum(counted.streams.values())}
        if kind == SCOPE and scope in self._counted:
            used["stored_bytes"] = self._counted[scope].stored_bytes
        limits = asdict(record)
        return Quota(owner=owner, **limits, used={name: used[name] for name in used if limits[name] is not None})


def _exceeded(quota: QuotaLimits, streams: dict[str, int], wanted: dict[str, int]) -> tuple[str, int, int, int] | None:
    """Return the limit's name and value, the use before and after; None if no limit is exceeded."""
    counts = {
        "streams": (len(streams), len(wanted)),
        "segments": (sum(streams.values()), sum(wanted.values())),
    }
    for name, (used, after) in counts.items():
        most = getattr(quota, name)
        if most is not None and most < after > used:
            return name, most, used, after
    return None


def _missing(owner: str) -> NotFoundError:
    return NotFoundError(f"{owner[:60]} does not have a quota: create it with nadi quota create, or list them")
