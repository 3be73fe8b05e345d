"""How much work a stream has for those who take it in, for KEDA, which makes them more and fewer by it.

What a trigger of a ScaledObject asks for, from its metadata: names and texts, as KEDA passes them on.

KEDA passes on what is written in the trigger itself, never what a TriggerAuthentication adds. A key that ends in
`FromEnv` comes with the value that this environment variable has in the container that is scaled, or not at all if it
has none there; so every key may be given like this, and secrets should be.

>>> found = trigger({"scalerAddress": "nadi:9090", "scope": "home", "streamFromEnv": "meters", "metric": "rate"})
>>> str(found.stream), found.metric.value, found.unit, found.target, found.metric_name
('home/meters', 'rate', 'events', 1000.0, 'nadi-rate-home-meters')

What a trigger's metric is now, and whether its stream is active: by polls, and watched.

A stream is active while events come into it: one came in the last ten seconds, or for the metric rate, more a second
than the trigger says. With a reader group it is active also while the group has not read all; for the metric lag that
alone counts. A watch of an idle stream looks at the ends of its segments too, where an event shows at once; in the
loads it does within a second.

What passes into a stream, from the loads of its segments.

A segment's mean is weighted over its own age, so right after a scaling those of the old segments still have all of the
load and those of the new ones have it as well. Here each counts for as much of the window as it has been measured,
and the sum for as much as the oldest has: so a constant rate stays what it is while the stream is scaled.

>>> old = SegmentLoad("home/meters/0.#epoch.0", 100.0, (0.0, 50.0), (0.0, 0.0))
>>> rate([old], events=True)
50.0

The latest answers to questions that many ask at the same time: each is asked once, and again once it is too old.

A pace keeps all of them within a fifth of the time: they are put one after the other, each followed by a pause of
four times what it took. With more questions than that leaves room for, answers come later, and are older.
"""

from __future__ import annotations

import asyncio
import base64
import enum
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Generic, TypeVar

from cachetools import LRUCache

from nadi.controller.engine.workflows import Workflows
from nadi.controller.lag import bytes_behind, standing
from nadi.controller.retention.past import look
from nadi.controller.state.metadata import GroupName, StreamName
from nadi.controller.state.records import GroupRetention, Stream, StreamState
from nadi.controller.state.segments import together
from nadi.errors import ConflictError, InvalidArgumentError, SegmentNotFoundError
from nadi.limits import SCALER_ENDS_SEGMENTS, SCALER_KEPT, SCALER_LOOK_S, SCALER_METADATA_MAX_CHARS
from nadi.model.load import WINDOWS_S, SegmentLoad
from nadi.naming import check_name
from nadi.runtime import Runtime

_SUFFIX = "FromEnv"
_SECRETS = ("username", "password", "token")
_OURS = ("scope", "stream", "metric", "unit", "target", "activationTarget", "readerGroup", *_SECRETS)
_OF_KEDA = ("scalerAddress", "enableTLS", "unsafeSsl", "caCert", "tlsCertFile", "tlsClientCert", "tlsClientKey")
_METRIC_NAME_MAX_CHARS = 200
_LEAST_TARGET = 0.001  # KEDA rounds to thousandths
_MOST = 1e15


class Metric(enum.Enum):
    SEGMENTS = "segments"
    LAG = "lag"
    RATE = "rate"


_UNITS = {Metric.SEGMENTS: (), Metric.LAG: ("bytes",), Metric.RATE: ("events", "bytes")}  # the first is the default
_TARGETS = {
    (Metric.SEGMENTS, ""): 1.0,
    (Metric.LAG, "bytes"): float(1 << 20),
    (Metric.RATE, "events"): 1000.0,
    (Metric.RATE, "bytes"): float(1 << 20),
}


@dataclass(frozen=True, slots=True)
class Trigger:
    """target: how much of the metric one replica is for. activation: the stream is active while there is more than
    that. group: whose unread events count, or keep the stream active; None: nobody's."""

    stream: StreamName
    metric: Metric
    unit: str
    target: float
    activation: float
    group: GroupName | None

    @property
    def metric_name(self) -> str:
        """As Kubernetes may name a metric in an address: KEDA puts the trigger's number before it."""
        name = f"nadi-{self.metric.value}-{self.stream.scope}-{self.stream.stream}"
        return name.replace(".", "-")[:_METRIC_NAME_MAX_CHARS]


def trigger(metadata: Mapping[str, str]) -> Trigger:
    """Read it; InvalidArgumentError for the first thing in it that can't be, with what to write instead."""
    given = _known(metadata)
    metric = _choice("metric", given.get("metric", Metric.SEGMENTS.value), tuple(one.value for one in Metric))
    kind = Metric(metric)
    group = _group(given)
    if kind is Metric.LAG and group is None:
        raise _wrong("the metric lag needs a readerGroup, whose unread events it counts")
    unit = _unit(kind, given)
    if kind is Metric.SEGMENTS and "activationTarget" in given:
        raise _wrong("activationTarget means nothing to the metric segments: a stream always has some; leave it out")
    return Trigger(
        _stream(given),
        kind,
        unit,
        _number(given, "target", _TARGETS[kind, unit], _LEAST_TARGET),
        _number(given, "activationTarget", 0.0, 0.0),
        group,
    )


def authorization(metadata: Mapping[str, str]) -> str | None:
    """The credentials in it, as an `authorization` header has them; None if there are none."""
    given = _known(metadata)
    user, password, token = map(given.get, _SECRETS)
    if token is not None:
        if user is not None or password is not None:
            raise _wrong("it has a token and a username or password: give one or the other")
        return f"Bearer {token}"
    if user is None and password is None:
        return None
    if user is None or password is None:
        have, lack = ("password", "username") if user is None else ("username", "password")
        raise _wrong(
            f"it has a {have} and no {lack}: give both. If {lack}{_SUFFIX} is given, the container that is scaled has "
            "no such environment variable, or KEDA may not read the secret that it is from"
        )
    if ":" in user:
        raise _wrong("no username has a colon")
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def metadata_of(request: Any) -> Mapping[str, str]:
    """Of a request of any of KEDA's RPCs."""
    ref = getattr(request, "scaledObjectRef", request)
    found: Mapping[str, str] = ref.scalerMetadata
    return found


def _wrong(text: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"the trigger's metadata: {text}")


def _known(metadata: Mapping[str, str]) -> dict[str, str]:
    """Our keys, without their suffix."""
    if sum(len(key) + len(value) for key, value in metadata.items()) > SCALER_METADATA_MAX_CHARS:
        raise _wrong(f"it has more than {SCALER_METADATA_MAX_CHARS:,} characters")
    given: dict[str, str] = {}
    for key, value in metadata.items():
        plain = key.removesuffix(_SUFFIX)
        if plain in _OURS:
            if plain in given:
                raise _wrong(f"it has both {plain} and {plain}{_SUFFIX}: give one of them")
            given[plain] = value
        elif key not in _OF_KEDA:
            like = get_close_matches(plain[:40], _OURS, 1, 0.5)
            hint = f"{like[0]!r} may be meant; " if like else ""
            raise _wrong(f"there is no {key[:40]!r}: {hint}nadi knows {', '.join(_OURS)}, each also with {_SUFFIX}")
    return given


def _choice(key: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise _wrong(f"{key} is one of {', '.join(choices)}, not {value[:40]!r}")
    return value


def _name(kind: str, key: str, value: str) -> str:
    try:
        return check_name(kind, value)
    except InvalidArgumentError as error:
        raise _wrong(f"{key}: {error}") from error


def _stream(given: Mapping[str, str]) -> StreamName:
    for key in ("scope", "stream"):
        if not given.get(key):
            raise _wrong(f"it needs a {key}")
    return StreamName(_name("scope", "scope", given["scope"]), _name("stream", "stream", given["stream"]))


def _group(given: Mapping[str, str]) -> GroupName | None:
    """A group of the stream's scope, or of another: scope/group."""
    if "readerGroup" not in given:
        return None
    scope, slash, group = given["readerGroup"].rpartition("/")
    if not slash:
        scope = _stream(given).scope
    return GroupName(_name("scope", "readerGroup", scope), _name("reader group", "readerGroup", group))


def _unit(metric: Metric, given: Mapping[str, str]) -> str:
    units = _UNITS[metric]
    if not units:
        if "unit" in given:
            raise _wrong(f"unit means nothing to the metric {metric.value}: leave it out")
        return ""
    return _choice(f"the unit of {metric.value}", given.get("unit", units[0]), units)


def _number(given: Mapping[str, str], key: str, default: float, least: float) -> float:
    text = given.get(key)
    if text is None:
        return default
    try:
        number = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        number = math.nan
    if not least <= number <= _MOST:
        raise _wrong(f"{key} is a number from {least:g} to {_MOST:g}, such as {default or 10:g}, not {text[:40]!r}")
    return number


_SHORT, _WINDOW = 0, 1  # of WINDOWS_S: 2 and 10 s
RATE_S = WINDOWS_S[_WINDOW]
# Of a load that was even, the mean over 2 s is this part of that over 10 s once it has been over for 10 s; of a single
# event once it has been over for 14 s, however much it was.
_LEFT = math.exp(-RATE_S / WINDOWS_S[_SHORT] + 1)


def rate(loads: Sequence[SegmentLoad], *, events: bool) -> float:
    """Events, or bytes, a second into the stream, over the last ten seconds, or since it has been measured."""
    rates = [(load.events_per_s if events else load.bytes_per_s)[_WINDOW] for load in loads]
    oldest = max((load.age_s for load in loads), default=0.0)
    if oldest <= 0:
        return 0.0
    return sum(one * _share(load.age_s) for one, load in zip(rates, loads, strict=True)) / _share(oldest)


def _share(age_s: float) -> float:
    """Of the window, how much was measured."""
    return -math.expm1(-max(age_s, 0.0) / RATE_S)


def is_flowing(loads: Iterable[SegmentLoad]) -> bool:
    """Whether an event came in the last ten seconds, or a little before."""
    return any(load.events_per_s[_SHORT] > _LEFT * load.events_per_s[_WINDOW] for load in loads)


K = TypeVar("K")
V = TypeVar("V")
_LONGEST_S = 1.0  # for which the others wait for a question: a store that is slow may answer some and not others


class Pace:
    """pause: after a question, as a multiple of what it took."""

    def __init__(self, clock: Runtime, pause: float = 4.0) -> None:
        self._clock, self._pause = clock, pause
        self._turn = asyncio.Lock()

    async def put(self, ask: Callable[[], Awaitable[V]]) -> V:
        """The answer, once it was this question's turn."""
        await self._turn.acquire()
        began_s = self._clock.monotonic()
        task = asyncio.ensure_future(ask())
        try:
            await asyncio.wait([task], timeout=_LONGEST_S)
        finally:
            took_s = min(self._clock.monotonic() - began_s, _LONGEST_S)
            asyncio.get_running_loop().call_later(self._pause * took_s, self._turn.release)
        return await task


class Shared(Generic[K, V]):
    """most: answers kept, each for `age_s` after it came. An error is for those who waited for it."""

    def __init__(
        self, clock: Runtime, pace: Pace, ask: Callable[[K], Awaitable[V]], *, age_s: float, most: int
    ) -> None:
        self._clock, self._pace, self._ask, self._age_s = clock, pace, ask, age_s
        self._answers: LRUCache[K, _Answer[V]] = LRUCache(most)

    async def get(self, key: K) -> V:
        answer = self._answers.get(key)
        if answer is None or answer.until_s <= self._clock.monotonic():
            asking = self._pace.put(lambda: self._ask(key))
            answer = self._answers[key] = _Answer(self._clock, asking, self._age_s)
        return await asyncio.shield(answer.task)


class _Answer(Generic[V]):
    """until_s: when it is too old; never before it came."""

    def __init__(self, clock: Runtime, asking: Awaitable[V], age_s: float) -> None:
        self.until_s = float("inf")

        def came(task: asyncio.Future[V]) -> None:
            failed = task.cancelled() or task.exception() is not None
            self.until_s = clock.monotonic() + (0.0 if failed else age_s)

        self.task = asyncio.ensure_future(asking)
        self.task.add_done_callback(came)


async def unread(flow: Workflows, name: GroupName, stream: StreamName) -> int:
    """Bytes of the stream's events that the group hasn't read; ReaderGroupNotFoundError, StreamNotFoundError, and
    ConflictError with the reason where that isn't known.

    A group that holds retention back and has published nothing yet stands where it starts.
    """
    group = (await flow.metadata.group(name)).value
    await flow.metadata.stream(stream)
    if stream.key not in group.config.starts:
        raise ConflictError(f"the reader group {name} doesn't read {stream}: name a group that does")
    standings = (await standing(flow, name, group)).standings
    mine = next((one for one in standings if one.stream == stream), None)
    cut, end = (mine.cut, mine.end) if mine is not None else (None, None)
    if cut is None and group.config.retention_type is not GroupRetention.NONE:
        cut = group.config.starts[stream.key]
    why = mine.why if mine is not None else "it has no position in this stream"
    if cut is not None:
        behind = await bytes_behind(flow, await look(flow, stream), cut, end)
        if behind.size is not None:
            return behind.size
        why = behind.why
    raise ConflictError(
        f"how much of {stream} the reader group {name} has not read isn't known: {why}; make it one that holds "
        "retention back, or choose another metric"
    )


_SHOWN_S = 2.0  # after which an event has come into the loads, at the latest
Ends = Mapping[int, int]  # of segments, by id


class Demand:
    def __init__(self, flow: Workflows, pace: Pace | None = None) -> None:
        self._flow = flow
        clock = flow.clock
        pace = pace or Pace(clock)
        self._loads = Shared(clock, pace, self._all_loads, age_s=SCALER_LOOK_S, most=1)
        self._lags = Shared(clock, pace, self._bytes_behind, age_s=SCALER_LOOK_S, most=SCALER_KEPT)
        self._ends = Shared(clock, pace, self._all_ends, age_s=SCALER_LOOK_S, most=SCALER_KEPT)

    async def value(self, trigger: Trigger) -> float:
        """The metric, in its unit: StreamNotFoundError, and for a lag what `unread` raises."""
        stream = await self._stream(trigger.stream)
        if trigger.metric is Metric.SEGMENTS:
            return 0.0 if stream.state is StreamState.SEALED else float(len(stream.segments))
        if trigger.metric is Metric.RATE:
            return rate(await self._loads_of(trigger.stream), events=trigger.unit == "events")
        assert trigger.group is not None
        return float(await self._lags.get((trigger.group, trigger.stream)))

    async def is_active(self, trigger: Trigger) -> bool:
        """Whether there is anything to do; raises what `value` does."""
        if trigger.metric is Metric.LAG:
            return await self.value(trigger) > trigger.activation
        await self._stream(trigger.stream)
        flowing = is_flowing(await self._loads_of(trigger.stream))
        if flowing and (trigger.metric is Metric.SEGMENTS or await self.value(trigger) > trigger.activation):
            return True
        return trigger.group is not None and await self._lags.get((trigger.group, trigger.stream)) > 0

    async def watch(self, trigger: Trigger) -> AsyncGenerator[bool, None]:
        """Whether it is active now, and then each change, without end; raises what `value` does."""
        was: bool | None = None
        async with aclosing(self._looks(trigger)) as looks:
            async for active in looks:
                if active is not was:
                    yield active
                was = active

    async def _looks(self, trigger: Trigger) -> AsyncGenerator[bool, None]:
        clock, grown_s = self._flow.clock, float("-inf")
        ends: Ends | None = None
        sees_growth = trigger.metric is not Metric.LAG and trigger.activation == 0
        while True:
            active = await self.is_active(trigger)
            if sees_growth:
                before, ends = ends, None if active else await self._ends.get(trigger.stream)
                if before is not None and ends is not None and _grew(before, ends):
                    grown_s = clock.monotonic()
            yield active or clock.monotonic() < grown_s + _SHOWN_S
            await clock.sleep(SCALER_LOOK_S)

    # --- questions, each asked for all who want to know --------------------------------------------

    async def _stream(self, name: StreamName) -> Stream:
        return (await self._flow.metadata.stream(name)).value

    async def _loads_of(self, name: StreamName) -> list[SegmentLoad]:
        return (await self._loads.get(None)).get(name.key, [])

    async def _all_loads(self, _: None) -> dict[str, list[SegmentLoad]]:
        found: dict[str, list[SegmentLoad]] = {}
        for load in await self._flow.segments.loads():
            found.setdefault(load.segment.rpartition("/")[0], []).append(load)
        return found

    async def _bytes_behind(self, asked: tuple[GroupName, StreamName]) -> int:
        return await unread(self._flow, *asked)

    async def _all_ends(self, name: StreamName) -> Ends | None:
        """Of the current segments; None if they are too many to ask."""
        segments = (await self._stream(name)).segments
        if len(segments) > SCALER_ENDS_SEGMENTS:
            return None
        ends: dict[int, int] = {}

        async def end(segment: int) -> None:
            try:
                ends[segment] = await self._flow.segments.length(name.segment(segment))
            except SegmentNotFoundError:  # the stream is being deleted
                ends[segment] = 0

        await together(end(segment.id) for segment in segments)
        return ends


def _grew(before: Ends, now: Ends) -> bool:
    return any(end > before.get(segment, 0) for segment, end in now.items())
