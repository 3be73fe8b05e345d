"""Parsing of a trigger's metadata, and the errors for invalid ones."""

from __future__ import annotations

import base64

import pytest

from nadi.controller.external_scaler import Metric, Trigger, authorization, trigger
from nadi.controller.state.metadata import GroupName, StreamName
from nadi.errors import InvalidArgumentError
from nadi.limits import SCALER_METADATA_MAX_CHARS

from .support import METERS

NAME = StreamName("home", "meters")
BAD = [
    ({"scope": ""}, "scope"),
    ({"stream": ""}, "stream"),
    ({"stream": "me/ters"}, "'me/ters'"),
    ({"scope": "_system"}, "'_system'"),
    ({"metric": "load"}, "'load'"),
    ({"metric": "lag"}, "readerGroup"),
    ({"metric": "lag", "readerGroup": ""}, "readerGroup"),
    ({"metric": "lag", "readerGroup": "a/b/c"}, "readerGroup"),
    ({"metric": "lag", "readerGroup": "g", "unit": "events"}, "'events'"),
    ({"metric": "rate", "unit": "KB"}, "'KB'"),
    ({"unit": "events"}, "unit .*segments"),
    ({"activationTarget": "1"}, "activationTarget .*segments"),
    ({"metric": "rate", "activationTarget": "-1"}, "activationTarget .*'-1'"),
    *(
        ({"target": text}, f"target .* 0.001 .* '{text}'")
        for text in ("", "0", "-1", "0.0001", "1e16", "nan", "inf", "ten", "1_000", "٣", "0x10")
    ),
    ({"streamFromEnv": "other"}, "streamFromEnv"),
    ({"targetSize": "1"}, "'targetSize'.* 'target'"),
    ({"readergroup": "g"}, "'readergroup'.* 'readerGroup'"),
    ({"zzz": "1"}, "'zzz'"),
    ({"x" * SCALER_METADATA_MAX_CHARS: ""}, "8,192"),
]


@pytest.mark.parametrize(("more", "message"), BAD)
def test_invalid_trigger_raises_error_with_its_values(more: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        trigger({**METERS, **more})


def test_defaults() -> None:
    assert trigger(METERS) == Trigger(NAME, Metric.SEGMENTS, "", 1.0, 0.0, None)
    assert trigger({**METERS, "metric": "rate"}) == Trigger(NAME, Metric.RATE, "events", 1000.0, 0.0, None)
    assert trigger({**METERS, "metric": "rate", "unit": "bytes"}).target == 1 << 20
    lag = trigger({**METERS, "metric": "lag", "readerGroup": "readers"})
    assert lag == Trigger(NAME, Metric.LAG, "bytes", float(1 << 20), 0.0, GroupName("home", "readers"))


def test_explicit_values() -> None:
    options = {
        "metric": "rate",
        "unit": "events",
        "target": "12.5",
        "activationTarget": "3",
        "readerGroup": "yard/g",
    }
    assert trigger({**METERS, **options}) == Trigger(NAME, Metric.RATE, "events", 12.5, 3.0, GroupName("yard", "g"))


def test_kedas_own_settings_are_ignored() -> None:
    own = {"scalerAddress": "nadi:9090", "enableTLS": "true", "unsafeSsl": "false", "caCert": "x"}
    assert trigger({**METERS, **own}) == trigger(METERS)
    assert authorization({**METERS, **own}) is None


def test_all_settings_may_come_from_the_environment() -> None:
    options = {"metric": "rate", "target": "5", "unit": "bytes", "readerGroup": "g", **METERS}
    assert trigger({f"{key}FromEnv": value for key, value in options.items()}) == trigger(options)


def test_credentials() -> None:
    basic = "Basic " + base64.b64encode("ann:pass:wörd".encode()).decode()
    assert authorization({**METERS, "username": "ann", "passwordFromEnv": "pass:wörd"}) == basic
    assert authorization({**METERS, "tokenFromEnv": "a.b.c"}) == "Bearer a.b.c"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"username": "ann"}, "passwordFromEnv"),
        ({"password": "s3cret"}, "username"),
        ({"token": "s3cret", "username": "ann"}, "token"),
        ({"username": "a:nn", "password": "s3cret"}, "colon"),
        ({"username": "ann", "password": "s3cret", "passwordFromEnv": "s3cret"}, "passwordFromEnv"),
    ],
)
def test_invalid_credentials_raise_error_without_secrets(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message) as caught:
        authorization({**METERS, **options})
    assert "s3cret" not in str(caught.value)


def test_the_name_of_a_metric_goes_into_an_address() -> None:
    assert trigger({"scope": "my.home", "stream": "Meters.1"}).metric_name == "nadi-segments-my-home-Meters-1"
    assert len(trigger({"scope": "s" * 200, "stream": "t" * 200}).metric_name) == 200
