"""What a trigger of a ScaledObject asks for, from its metadata: names and texts, as KEDA passes them on.

KEDA passes on what is written in the trigger itself, never what a TriggerAuthentication adds. A key that ends in
`FromEnv` comes with the value that this environment variable has in the container that is scaled, or not at all if it
has none there; so every key may be given like this, and secrets should be.

>>> found = trigger({"scalerAddress": "nadi:9090", "scope": "home", "streamFromEnv": "meters", "metric": "rate"})
>>> str(found.stream), found.metric.value, found.unit, found.target, found.metric_name
('home/meters', 'rate', 'events', 1000.0, 'nadi-rate-home-meters')
"""

from __future__ import annotations

import base64
import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from nadi.controller.state.metadata import GroupName, StreamName
from nadi.errors import InvalidArgumentError
from nadi.limits import SCALER_METADATA_MAX_CHARS
from nadi.naming import check_name

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
