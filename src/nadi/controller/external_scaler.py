"""Measures of a stream's workload for KEDA, which scales its consumers by them.

KEDA passes on a trigger's own metadata, but nothing that a TriggerAuthentication adds. A key that ends in `FromEnv` has
the value of that environment variable in the scaled container, and is missing if the container lacks the variable.

>>> parsed = trigger({"scalerAddress": "nadi:9090", "scope": "home", "streamFromEnv": "meters", "metric": "rate"})
>>> str(parsed.stream), parsed.metric.value, parsed.unit, parsed.target, parsed.metric_name
('home/meters', 'rate', 'events', 1000.0, 'nadi-rate-home-meters')

A stream is active while events arrive: one in the last ten seconds or, for the metric rate, more per second than the
trigger's activationTarget. With a reader group it is also active while the group has unread events; for the metric lag
only unread events count.
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
from nadi.controller.reports import measure_lag, standing
from nadi.controller.retention.cut_sizes import measure
from nadi.controller.state.metadata import GroupName, StreamName
from nadi.controller.state.records import GroupRetention, StreamState
from nadi.controller.stream_rates import Rates, is_flowing, rate
from nadi.errors import ConflictError, InvalidArgumentError
from nadi.limits import SCALER_AT_ONCE, SCALER_CACHED, SCALER_METADATA_MAX_CHARS, SCALER_POLL_S
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


_TARGETS = {  # by metric and unit; a metric's first unit is its default
    (Metric.SEGMENTS, ""): 1.0,
    (Metric.LAG, "bytes"): float(1 << 20),
    (Metric.RATE, "events"): 1000.0,
    (Metric.RATE, "bytes"): float(1 << 20),
}


@dataclass(frozen=True, slots=True)
class Trigger:
    """target: the amount of the metric per replica. activation: the stream is active above that amount. group: whose
    unread events count or keep the stream active; None if there is none."""

    stream: StreamName
    metric: Metric
    unit: str
    target: float
    activation: float
    group: GroupName | None

    @property
    def metric_name(self) -> str:
        """A name that Kubernetes accepts within an address; KEDA prefixes the trigger's number."""
        name = f"nadi-{self.metric}-{self.stream.scope}-{self.stream.stream}"
        return name.replace(".", "-")[:_METRIC_NAME_MAX_CHARS]


def trigger(metadata: Mapping[str, str]) -> Trigger:
    """Parse a trigger's metadata; InvalidArgumentError describes the first mistake and its correction."""
    settings = _known(metadata)
    metric = Metric(_choice("metric", settings.get("metric", Metric.SEGMENTS), tuple(Metric)))
    group = _group(settings)
    if metric is Metric.LAG and group is None:
        raise _wrong("the metric lag needs a readerGroup, whose unread events it counts")
    units = tuple(unit for known, unit in _TARGETS if known is metric)
    if not units[0] and "unit" in settings:
        raise _wrong(f"unit does not apply to the metric {metric}: leave it out")
    unit = _choice(f"the unit of {metric}", settings.get("unit", units[0]), units)
    if metric is Metric.SEGMENTS and "activationTarget" in settings:
        raise _wrong("activationTarget does not apply to the metric segments: a stream always has some; leave it out")
    target = _number(settings, "target", _TARGETS[metric, unit], _LEAST_TARGET)
    return Trigger(_stream(settings), metric, unit, target, _number(settings, "activationTarget", 0.0, 0.0), group)


def authorization(metadata: Mapping[str, str]) -> str | None:
    """Return the credentials as the value of an `authorization` header; None if there are none."""
    settings = _known(metadata)
    user, password, token = map(settings.get, _SECRETS)
    if token is not None:
        if user is not None or password is not None:
            raise _wrong("it has a token and a username or password: give one or the other")
        return f"Bearer {token}"
    if user is None and password is None:
        return None
    if user is None or password is None:
        have, lack = ("password", "username") if user is None else ("username", "password")
        raise _wrong(
            f"it has a {have} but no {lack}: give both. If {lack}{_SUFFIX} is given, the scaled container lacks that "
            "environment variable, or KEDA may not read the secret that defines it"
        )
    if ":" in user:
        raise _wrong("the username contains a colon: use one without")
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def metadata_of(request: Any) -> Mapping[str, str]:
    metadata: Mapping[str, str] = getattr(request, "scaledObjectRef", request).scalerMetadata
    return metadata


def _wrong(text: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"the trigger's metadata: {text}")


def _known(metadata: Mapping[str, str]) -> dict[str, str]:
    if sum(len(key) + len(value) for key, value in metadata.items()) > SCALER_METADATA_MAX_CHARS:
        raise _wrong(f"it has more than {SCALER_METADATA_MAX_CHARS:,} characters")
    settings: dict[str, str] = {}
    for key, value in metadata.items():
        plain = key.removesuffix(_SUFFIX)
        if plain in _OURS:
            if plain in settings:
                raise _wrong(f"it has both {plain} and {plain}{_SUFFIX}: give one of them")
            settings[plain] = value
        elif key not in _OF_KEDA:
            like = get_close_matches(plain[:40], _OURS, 1, 0.5)
            hint = f"{like[0]!r} may be meant; " if like else ""
            raise _wrong(f"unknown key {key[:40]!r}: {hint}nadi knows {', '.join(_OURS)}, each also with {_SUFFIX}")
    return settings


def _choice(key: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise _wrong(f"{key} must be one of {', '.join(choices)}, not {value[:40]!r}")
    return value


def _name(kind: str, key: str, value: str) -> str:
    try:
        return check_name(kind, value)
    except InvalidArgumentError as error:
        raise _wrong(f"{key}: {error}") from error


def _stream(settings: Mapping[str, str]) -> StreamName:
    for key in ("scope", "stream"):
        if not settings.get(key):
            raise _wrong(f"it needs a {key}")
    return StreamName(_name("scope", "scope", settings["scope"]), _name("stream", "stream", settings["stream"]))


def _group(settings: Mapping[str, str]) -> GroupName | None:
    """Return the reader group; "group" is in the stream's scope, "scope/group" in any."""
    if "readerGroup" not in settings:
        return None
    scope, slash, group = settings["readerGroup"].rpartition("/")
    if not slash:
        scope = _stream(settings).scope
    return GroupName(_name("scope", "readerGroup", scope), _name("reader group", "readerGroup", group))


def _number(settings: Mapping[str, str], key: str, default: float, least: float) -> float:
    text = settings.get(key)
    if text is None:
        return default
    try:
        number = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        number = math.nan
    if not least <= number <= _MOST:
        raise _wrong(
            f"{key} must be a number from {least:g} to {_MOST:g}, such as {default or 10:g}, not {text[:40]!r}"
        )
    return number


async def unread(flow: Workflows, name: GroupName, stream: StreamName) -> int:
    """Return the bytes of the stream's events that the group has yet to read. Raises ReaderGroupNotFoundError,
    StreamNotFoundError, or ConflictError with the reason if that is unknown. A group that holds retention back but has
    published no position yet counts from its start."""
    group = (await flow.metadata.group(name)).value
    await flow.metadata.stream(stream)
    if stream.key not in group.config.starts:
        raise ConflictError(f"the reader group {name} does not read {stream}: name a group that does")
    standings = (await standing(flow, name, group)).standings
    own = next((position for position in standings if position.stream == stream), None)
    cut, end = (own.cut, own.end) if own is not None else (None, None)
    if cut is None and group.config.retention_type is not GroupRetention.NONE:
        cut = group.config.starts[stream.key]
    why = own.why if own is not None else "it has no position in this stream"
    if cut is not None:
        lag = await measure_lag(flow, await measure(flow, stream), cut, end)
        if lag.size is not None:
            return lag.size
        why = lag.why
    raise ConflictError(
        f"the lag of the reader group {name} in {stream} is unknown: {why}; configure the group to hold "
        "retention back, or choose another metric"
    )


class Demand:
    def __init__(self, flow: Workflows, rates: Rates) -> None:
        self._flow, self._rates, self._permits = flow, rates, asyncio.Semaphore(SCALER_AT_ONCE)
        self._lags = Shared(flow.clock, self._unread, age_s=SCALER_POLL_S, most=SCALER_CACHED)

    async def value(self, trigger: Trigger) -> float:
        """Return the metric in its unit; StreamNotFoundError, and for a lag the errors of `unread`."""
        stream = (await self._flow.metadata.stream(trigger.stream)).value
        if trigger.metric is Metric.SEGMENTS:
            return 0.0 if stream.state is StreamState.SEALED else float(len(stream.segments))
        if trigger.metric is Metric.RATE:
            return rate(await self._loads(trigger.stream), events=trigger.unit == "events")
        assert trigger.group is not None
        return float(await self._lags.get((trigger.group, trigger.stream)))

    async def is_active(self, trigger: Trigger) -> bool:
        """Return whether there is work; raises the errors of `value`."""
        value = await self.value(trigger)
        if trigger.metric is Metric.LAG:
            return value > trigger.activation
        flowing = is_flowing(await self._loads(trigger.stream))
        if flowing and (trigger.metric is Metric.SEGMENTS or value > trigger.activation):
            return True
        return trigger.group is not None and await self._lags.get((trigger.group, trigger.stream)) > 0

    async def watch(self, trigger: Trigger) -> AsyncGenerator[bool, None]:
        """Yield the current activity, then each change, endlessly; raises the errors of `value`."""
        previous: bool | None = None
        while True:
            active = await self.is_active(trigger)
            if active is not previous:
                yield active
            previous = active
            await self._flow.clock.sleep(SCALER_POLL_S)

    async def _loads(self, name: StreamName) -> Collection[SegmentLoad]:
        return (await self._rates.loads()).get(name, {}).values()

    async def _unread(self, subject: tuple[GroupName, StreamName]) -> int:
        """Measure a group's lag. Each measurement is followed by a pause of four times its duration, so an excess of
        them is delayed rather than loading the server."""
        await self._permits.acquire()
        began_s = self._flow.clock.monotonic()
        try:
            return await unread(self._flow, *subject)
        finally:
            pause_s = 4 * (self._flow.clock.monotonic() - began_s)
            asyncio.get_running_loop().call_later(pause_s, self._permits.release)
