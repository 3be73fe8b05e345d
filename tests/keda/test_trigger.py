"""What a trigger's metadata may say, and what it is told otherwise."""

from __future__ import annotations

import base64

import pytest

from nadi.controller.autoscaler import Metric, Trigger, authorization, trigger
from nadi.controller.state.metadata import GroupName, StreamName
from nadi.errors import InvalidArgumentError
from nadi.limits import SCALER_METADATA_MAX_CHARS

from .support import METERS

NAME = StreamName("home", "meters")
BAD = [
    ({"scope": ""}, "it needs a scope"),
    ({"stream": ""}, "it needs a stream"),
    ({"stream": "me/ters"}, "stream: .*letters, digits"),
    ({"scope": "_system"}, "scope: .*letters, digits"),
    ({"metric": "load"}, "metric is one of segments, lag, rate, not 'load'"),
    ({"metric": "lag"}, "the metric lag needs a readerGroup"),
    ({"metric": "lag", "readerGroup": ""}, "readerGroup: .*letters, digits"),
    ({"metric": "lag", "readerGroup": "a/b/c"}, "readerGroup: .*letters, digits"),
    ({"metric": "lag", "readerGroup": "g", "unit": "events"}, "the unit of lag is one of bytes, not 'events'"),
    ({"metric": "rate", "unit": "KB"}, "the unit of rate is one of events, bytes, not 'KB'"),
    ({"unit": "events"}, "unit means nothing to the metric segments"),
    ({"activationTarget": "1"}, "activationTarget means nothing to the metric segments"),
    (
        {"metric": "rate", "activationTarget": "-1"},
        "activationTarget is a number from 0 to 1e.15, such as 10, not",
    ),
    *(
        ({"target": text}, f"target is a number from 0.001 to 1e.15, such as 1, not '{text}'")
        for text in ("", "0", "-1", "0.0001", "1e16", "nan", "inf", "ten", "1_000", "٣", "0x10")
    ),
    ({"streamFromEnv": "other"}, "it has both stream and streamFromEnv"),
    ({"targetSize": "1"}, "there is no 'targetSize': 'target' may be meant"),
    ({"readergroup": "g"}, "there is no 'readergroup': 'readerGroup' may be meant"),
    ({"zzz": "1"}, "there is no 'zzz': nadi knows scope, stream, metric"),
    ({"x" * SCALER_METADATA_MAX_CHARS: ""}, "it has more than 8,192 characters"),
]


@pytest.mark.parametrize(("more", "message"), BAD)
def test_what_is_wrong_with_a_trigger(more: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^the trigger's metadata: {message}"):
        trigger({**METERS, **more})


def test_what_is_not_given() -> None:
    assert trigger(METERS) == Trigger(NAME, Metric.SEGMENTS, "", 1.0, 0.0, None)
    assert trigger({**METERS, "metric": "rate"}) == Trigger(NAME, Metric.RATE, "events", 1000.0, 0.0, None)
    assert trigger({**METERS, "metric": "rate", "unit": "bytes"}).target == 1 << 20
    lag = trigger({**METERS, "metric": "lag", "readerGroup": "readers"})
    assert lag == Trigger(NAME, Metric.LAG, "bytes", float(1 << 20), 0.0, GroupName("home", "readers"))


def test_what_is_given() -> None:
    told = {
        "metric": "rate",
        "unit": "events",
        "target": "12.5",
        "activationTarget": "3",
        "readerGroup": "yard/g",
    }
    assert trigger({**METERS, **told}) == Trigger(NAME, Metric.RATE, "events", 12.5, 3.0, GroupName("yard", "g"))


def test_what_is_for_keda_alone_means_nothing() -> None:
    own = {"scalerAddress": "nadi:9090", "enableTLS": "true", "unsafeSsl": "false", "caCert": "x"}
    assert trigger({**METERS, **own}) == trigger(METERS)
    assert authorization({**METERS, **own}) is None


def test_any_of_it_from_the_environment() -> None:
    told = {"metric": "rate", "target": "5", "unit": "bytes", "readerGroup": "g", **METERS}
    assert trigger({f"{key}FromEnv": value for key, value in told.items()}) == trigger(told)


def test_credentials() -> None:
    basic = "Basic " + base64.b64encode("ann:pass:wörd".encode()).decode()
    assert authorization({**METERS, "username": "ann", "passwordFromEnv": "pass:wörd"}) == basic
    assert authorization({**METERS, "tokenFromEnv": "a.b.c"}) == "Bearer a.b.c"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"username": "ann"}, "it has a username and no password: .*passwordFromEnv.*environment variable"),
        ({"password": "s3cret"}, "it has a password and no username"),
        ({"token": "s3cret", "username": "ann"}, "it has a token and a username or password"),
        ({"username": "a:nn", "password": "s3cret"}, "no username has a colon"),
        ({"username": "ann", "password": "s3cret", "passwordFromEnv": "s3cret"}, "it has both password and"),
    ],
)
def test_what_is_wrong_with_credentials(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message) as caught:
        authorization({**METERS, **given})
    assert "s3cret" not in str(caught.value)


def test_the_name_of_a_metric_goes_into_an_address() -> None:
    assert trigger({"scope": "my.home", "stream": "Meters.1"}).metric_name == "nadi-segments-my-home-Meters-1"
    assert len(trigger({"scope": "s" * 200, "stream": "t" * 200}).metric_name) == 200
