"""How much work a stream has for its consumers: for KEDA, which scales them by it.

A trigger's metadata comes as KEDA passes it on: what is written in the trigger itself, never what a
TriggerAuthentication adds. A key that ends in `FromEnv` comes with the value that this environment variable has in the
container that is scaled, or not at all if it has none there.

>>> found = trigger({"scalerAddress": "nadi:9090", "scope": "home", "streamFromEnv": "meters", "metric": "rate"})
>>> str(found.stream), found.metric.value, found.unit, found.target, found.metric_name
('home/meters', 'rate', 'events', 1000.0, 'nadi-rate-home-meters')

A stream is active while events come into it: one came in the last ten seconds, or for the metric rate, more a second
than the trigger says. With a reader group it is active also while the group has not read all; for the metric lag that
alone counts.
"""

from __future__ import annotations

import asyncio
import base64
import enum
import math
from collections.abc import AsyncGenerator, Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from nadi.controller.engine.workflows import Shared, Workflows
from nadi.controller.reports import bytes_behind, standing
from nadi.controller.retention.cut_sizes import look
from nadi.controller.state.metadata import GroupName, StreamName
from nadi.controller.state.records import GroupRetention, StreamState
from nadi.controller.stream_rates import Rates, is_flowing, rate
from nadi.errors import ConflictError, InvalidArgumentError
from nadi.limits import SCALER_AT_ONCE, SCALER_KEPT, SCALER_LOOK_S, SCALER_METADATA_MAX_CHARS
from nadi.model.load import SegmentLoad
from nadi.naming import check_name

_SUFFIX = "FromEnv"
_SECRETS = ("username", "password", "token")
_OURS = ("scope", "stream", "metric", "unit", "target", "activationTarget", "readerGroup", *_SECRETS)
_OF_KEDA = ("scalerAddress", "enableTLS", "unsafeSsl", "caCert", "tlsCertFile", "tlsClientCert", "tlsClientKey")
_METRIC_NAME_MAX_CHARS = 200
_LEAST_TARGET = 0.001  # KEDA rounds to thousandths
_MOST = 1e15


class Metric(enum.StrEnum):
    SEGMENTS = "segments"
    LAG = "lag"
    RATE = "rate"


_TARGETS = {  # by metric and unit, of which the first of a metric is the default
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
        name = f"nadi-{self.metric}-{self.stream.scope}-{self.stream.stream}"
        return name.replace(".", "-")[:_METRIC_NAME_MAX_CHARS]


def trigger(metadata: Mapping[str, str]) -> Trigger:
    """Read it; InvalidArgumentError for the first thing in it that can't be, with what to write instead."""
    given = _known(metadata)
    metric = Metric(_choice("metric", given.get("metric", Metric.SEGMENTS), tuple(Metric)))
    group = _group(given)
    if metric is Metric.LAG and group is None:
        raise _wrong("the metric lag needs a readerGroup, whose unread events it counts")
    units = tuple(unit for known, unit in _TARGETS if known is metric)
    if not units[0] and "unit" in given:
        raise _wrong(f"unit means nothing to the metric {metric}: leave it out")
    unit = _choice(f"the unit of {metric}", given.get("unit", units[0]), units)
    if metric is Metric.SEGMENTS and "activationTarget" in given:
        raise _wrong("activationTarget means nothing to the metric segments: a stream always has some; leave it out")
    target = _number(given, "target", _TARGETS[metric, unit], _LEAST_TARGET)
    return Trigger(_stream(given), metric, unit, target, _number(given, "activationTarget", 0.0, 0.0), group)


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
    metadata: Mapping[str, str] = getattr(request, "scaledObjectRef", request).scalerMetadata
    return metadata


def _wrong(text: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"the trigger's metadata: {text}")


def _known(metadata: Mapping[str, str]) -> dict[str, str]:
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


async def unread(flow: Workflows, name: GroupName, stream: StreamName) -> int:
    """Bytes of the stream's events that the group hasn't read; ReaderGroupNotFoundError, StreamNotFoundError, and
    ConflictError with the reason where that isn't known. A group that holds retention back and has published nothing
    yet stands where it starts."""
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


class Demand:
    def __init__(self, flow: Workflows, rates: Rates) -> None:
        self._flow, self._rates, self._permits = flow, rates, asyncio.Semaphore(SCALER_AT_ONCE)
        self._lags = Shared(flow.clock, self._unread, age_s=SCALER_LOOK_S, most=SCALER_KEPT)

    async def value(self, trigger: Trigger) -> float:
        """The metric, in its unit: StreamNotFoundError, and for a lag what `unread` raises."""
        stream = (await self._flow.metadata.stream(trigger.stream)).value
        if trigger.metric is Metric.SEGMENTS:
            return 0.0 if stream.state is StreamState.SEALED else float(len(stream.segments))
        if trigger.metric is Metric.RATE:
            return rate(await self._loads(trigger.stream), events=trigger.unit == "events")
        assert trigger.group is not None
        return float(await self._lags.get((trigger.group, trigger.stream)))

    async def is_active(self, trigger: Trigger) -> bool:
        """Whether there is anything to do; raises what `value` does."""
        value = await self.value(trigger)
        if trigger.metric is Metric.LAG:
            return value > trigger.activation
        flowing = is_flowing(await self._loads(trigger.stream))
        if flowing and (trigger.metric is Metric.SEGMENTS or value > trigger.activation):
            return True
        return trigger.group is not None and await self._lags.get((trigger.group, trigger.stream)) > 0

    async def watch(self, trigger: Trigger) -> AsyncGenerator[bool, None]:
        """Whether it is active now, and then each change, without end; raises what `value` does."""
        was: bool | None = None
        while True:
            active = await self.is_active(trigger)
            if active is not was:
                yield active
            was = active
            await self._flow.clock.sleep(SCALER_LOOK_S)

    async def _loads(self, name: StreamName) -> Collection[SegmentLoad]:
        return (await self._rates.loads()).get(name, {}).values()

    async def _unread(self, asked: tuple[GroupName, StreamName]) -> int:
        """Each question is followed by a pause of four times what it took: more of them than that leaves room for get
        their answers later."""
        await self._permits.acquire()
        began_s = self._flow.clock.monotonic()
        try:
            return await unread(self._flow, *asked)
        finally:
            pause_s = 4 * (self._flow.clock.monotonic() - began_s)
            asyncio.get_running_loop().call_later(pause_s, self._permits.release)
