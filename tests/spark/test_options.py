"""Each option: its values, its default in both formats, conflicts, and rejection of invalid values."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from typer.testing import CliRunner

import nadi
from nadi.cli.app import app
from nadi.client import RetentionPolicy, ScalingPolicy
from nadi.errors import InvalidArgumentError
from nadi.spark.options.parsed import Admission, ReadOptions, WriteOptions
from nadi.spark.options.table import BY_KEY, OPTIONS, SparkFormat, Use, markdown

HOME = {"scope": "home", "stream": "meters"}
CUT = nadi.StreamCut("home", "meters", {0: 30})
PRAVEGAS = [option for option in OPTIONS if option.is_pravegas]


def of(use: Use, format_: SparkFormat = SparkFormat.NADI, **given: Any) -> Any:
    parsed = ReadOptions if use in (Use.READ, Use.READ_STREAM) else WriteOptions
    return parsed.from_spark(HOME | given, use, format_)


def use_of(given: dict[str, Any]) -> Use:
    """Return a use in which all given options have an effect."""
    return next(use for use in Use if all(use in BY_KEY[name.lower()].uses for name in given))


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"start_stream_cut": "earliest"}, "start", "head"),
        ({"start_stream_cut": "unbounded"}, "start", None),
        ({"start_stream_cut": " Latest "}, "start", "tail"),
        ({"start_stream_cut": "HEAD"}, "start", "head"),
        ({"start_stream_cut": CUT.as_text()}, "start", CUT),
        ({"end_stream_cut": "latest"}, "end", "tail"),
        ({"end_stream_cut": "unbounded"}, "end", None),
        ({"approx_bytes_per_trigger": "5000"}, "admission", Admission(5000)),
        ({"max_bytes_per_trigger": "5000"}, "admission", Admission(5000)),
        ({"maxBytesPerTrigger": "5000"}, "admission", Admission(5000)),
        ({"maxOffsetsPerTrigger": "5"}, "admission", Admission(max_events=5)),
        ({"maxBytesPerSegment": "5"}, "admission", Admission(max_segment_bytes=5)),
        ({"minOffsetsPerTrigger": "5"}, "admission", Admission(min_events=5, max_delay_s=900)),
        (
            {"minOffsetsPerTrigger": "5", "maxTriggerDelay": "250ms"},
            "admission",
            Admission(min_events=5, max_delay_s=0.25),
        ),
        ({"transaction_timeout_ms": "60000"}, "transaction_timeout_ms", 60_000),
        ({"transaction_timeout_time": "60000"}, "transaction_timeout_ms", 60_000),
        ({"transaction_status_poll_interval_ms": "50"}, "poll_s", 0.05),
        ({"read_after_write_consistency": "false"}, "waits_for_readers", False),
        ({"exactly_once": "False"}, "delivery", "at-least-once"),
        ({"failOnDataLoss": "false"}, "skip_truncated", True),
        ({"failOnDataLoss": "true"}, "skip_truncated", False),
        ({"metadata": "StreamInfo"}, "metadata", "StreamInfo"),
        ({"on_damage": "Skip"}, "on_damage", "skip"),
        ({"routing_keys": '[""]'}, "routing_keys", ("",)),
        ({"Start_Stream_Cut": CUT.as_text()}, "start", CUT),
        ({}, "transaction_timeout_ms", 86_400_000),
        ({}, "poll_s", 0.005),
        ({}, "delivery", "exactly-once"),
        ({}, "waits_for_readers", True),
    ],
)
def test_option_value_is_parsed(given: dict[str, Any], field: str, value: Any) -> None:
    use = use_of(given) if given else Use.WRITE
    assert getattr(of(use, **given), field) == value


MADE = {"allow_create_stream": "true"}
BY_BYTES, BY_EVENTS = (f"default_segment_target_rate_{what}_per_sec" for what in ("bytes", "events"))


@pytest.mark.parametrize(
    "given",
    [
        {"start_stream_cut": "noon"},
        {"start_stream_cut": nadi.StreamCut("home", "other", {0: 0}).as_text()},
        {"start": "head", "startingTimestamp": "1"},
        {"startingTimestamp": "9" * 5000},
        {"startingTimestamp": "yesterday"},
        {"endingTimestamp": "2026-11-14T00:00"},
        {"startingEventTime": "soon"},
        {"startingEventTime": "2027-03-01T00:00"},
        {"startingEventTime": "2027-03-01", "start": "head"},
        {"endingEventTime": "2027-03-01", "slice": "s"},
        {"slice": "week-0", "end": "tail"},
        {"slice": "week-0", "endingTimestamp": "1"},
        {"routing_keys": "k1"},
        {"routing_keys": " [ ] "},
        {"controller": "localhost"},
        {"scope": "no_scope"},
        {"on_damage": "ignore"},
        {"auth_user": "ann"},
        {"auth_certificate": "ann.pem"},
        {"auth_user": "ann", "auth_password": "x", "auth_token": "y"},
        {"validate_host_name": "maybe"},
        # how much a batch has
        {"approx_bytes_per_trigger": "0"},
        {"approx_bytes_per_trigger": "1", "max_bytes_per_trigger": "1"},
        {"maxOffsetsPerTrigger": "x"},
        {"maxTriggerDelay": "15m"},
        {"minOffsetsPerTrigger": "5", "maxTriggerDelay": "soon"},
        {"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"},
        {"max_partitions": "9" * 5000},
        {"max_partitions": "٣"},
        # what a query keeps
        {"groupId": "a b"},
        {"startAt": "last-committed"},
        {"startAt": "noon", "groupId": "g"},
        {"startAt": "last-committed", "groupId": "g", "start": "head"},
        {"failOnDataLoss": "true", "skip_truncated": "true"},
        {"delivery": "twice"},
        {"delivery": "at-most-once", "groupId": "g", "output": "o"},
        {"delivery": "at-most-once", "groupId": "g", "cutover": "h"},
        {"cutover": "x", "replay_of": "y"},
        {"replay_of": "no/name"},
        {"mirror_checkpoint": "/x"},
        {"mirror_name": "x"},
        {"mirror_checkpoint": "s3a://b/x", "mirror_name": "x"},
        {"metadata": "streams"},
        {"metadata": "StreamInfo", "start": "head"},
        {"metadata": "StreamInfo", "endingTimestamp": "5"},
        {"metadata": "StreamInfo", "direct": "always"},
        # writing
        {"transaction_timeout_ms": "1"},
        {"transaction_status_poll_interval_ms": "0"},
        {"read_after_write_consistency": "yes"},
        {"exactly_once": "no"},
        {"save_mode": "overwrite"},
        {"txnAppId": "a"},
        {"txnVersion": "1"},
        {"txnAppId": "a", "txnVersion": "-1"},
        {"txnAppId": "a" * 300, "txnVersion": "1"},
        {"txnAppId": "a", "txnVersion": "1", "exactly_once": "false"},
        {"txnAppId": "a", "txnVersion": "1", "delivery": "at-least-once"},
        {"delivery": "at-most-once", "exactly_once": "true"},
        {"allow_create_stream": "1"},
        {"default_num_segments": "2"},
        MADE | {"default_num_segments": "0"},
        MADE | {"default_scale_factor": "1"},
        MADE | {"default_scale_factor": "2"},
        MADE | {BY_BYTES: "1023"},
        MADE | {BY_EVENTS: "0"},
        MADE | {BY_BYTES: "1024", BY_EVENTS: "1"},
        MADE | {"default_retention_size_bytes": "x"},
        MADE | {"default_retention_size_bytes": "1", "default_retention_duration_milliseconds": "1"},
        # values
        {"value_format": "avro", "value_schema": "a int"},
        {"value_format": "json", "value_schema": "a int", "value_version": "1"},
        {"value_format": "json", "value_schema": "a int", "value_mode": "fail"},
        {"value_format": "json", "value_version": "0"},
        {"value_format": "json", "columns": "event"},
        {"columns": "value"},
        {"value_mode": "FAILFAST"},
        {"value_schema": "a int"},
        {"value_version": "1"},
        {"value_format": "json", "metadata": "StreamInfo"},
    ],
)
def test_invalid_options_are_rejected(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        of(use_of(given), **given)
    named = (*given, *(value for value in given.values() if len(value) > 2), "home/other")
    assert any(text.lower()[:40] in str(refused.value).lower() for text in named)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"stream": "a", "streams": "b"},
        {"stream_pattern": "a", "stream_tag": "b"},
        {"stream_pattern": "["},
        {"stream_pattern": "a{99999999999}"},
        {"streams": " "},
        {"streams": "a,a"},
        {"streams": "[1]"},
        {"streams": ",".join(f"s{n}" for n in range(1001))},
        {"streams": "a,b", "slice": "x"},
        {"stream_tag": "b", "metadata": "StreamInfo"},
        {"streams": "a,b", "start": "noon"},
        {"streams": "a,b", "start": '{"c": "tail"}'},
        {"streams": "a,b", "cutover": "x"},
    ],
)
def test_invalid_stream_selection_is_rejected(given: dict[str, str]) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        ReadOptions.from_spark({"scope": "home", **given}, use_of(given) if given else Use.READ)
    assert any(f"'{name}'" in str(refused.value) for name in (*given, "stream"))


@pytest.mark.parametrize(
    ("use", "option"),
    [
        (Use.READ_STREAM, "startingOffsets"),
        (Use.READ_STREAM, "maxFilesPerTrigger"),
        *((use, "path") for use in (Use.READ_STREAM, Use.WRITE_STREAM, Use.WRITE)),
        *((use, "checkpointLocation") for use in (Use.READ_STREAM, Use.WRITE)),
        *((Use.READ, option) for option in ("failOnDataLoss", "max_bytes_per_trigger")),
        (Use.READ_STREAM, "metadata"),
        (Use.READ_STREAM, "endingTimestamp"),
        (Use.READ, "transaction_timeout_time"),
        (Use.READ_STREAM, "event_attribute_name"),
        (Use.WRITE, "start"),
        (Use.WRITE_STREAM, "max_partitions"),
        (Use.READ, "strt_stream_cut"),
        (Use.READ, "startingTimestmp"),
        (Use.READ, "zzz"),
    ],
)
def test_option_without_effect_is_rejected(use: Use, option: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"'{option.lower()}'"):
        of(use, SparkFormat.NADI, **{option: "1"})


@pytest.mark.parametrize(
    ("use", "delivery"),
    [
        (Use.READ, "at-most-once"),
        (Use.READ_STREAM, "at-most-once"),
        (Use.READ_STREAM, "at-least-once"),
        (Use.WRITE, "at-most-once"),
    ],
)
def test_unsupported_delivery_is_rejected(use: Use, delivery: str) -> None:
    with pytest.raises(InvalidArgumentError, match="'delivery'"):
        of(use, delivery=delivery)


def test_options_of_spark_itself_are_ignored() -> None:
    for use, given in (
        (Use.WRITE_STREAM, {"checkpointLocation": "/x", "queryName": "q", "asyncProgressTrackingEnabled": "false"}),
        (Use.READ, {"owner": "ann", "provider": "nadi", "option.scope": "home"}),
    ):
        assert of(use, SparkFormat.NADI, **given).stream == "meters"


def test_policies_of_created_stream() -> None:
    made = of(
        Use.WRITE,
        allow_create_scope="true",
        allow_create_stream="true",
        default_num_segments="3",
        default_scale_factor="4",
        default_segment_target_rate_bytes_per_sec="10240",
        default_retention_duration_milliseconds="60000",
    )
    assert (made.creates_scope, made.creates_stream) == (True, True)
    assert made.scaling == ScalingPolicy.by_data_rate(10, 4, 3)
    assert made.retention == RetentionPolicy.by_time(60_000)
    by_events = of(Use.WRITE, allow_create_stream="true", default_segment_target_rate_events_per_sec="7")
    assert (by_events.creates_scope, by_events.scaling, by_events.retention) == (
        False,
        ScalingPolicy.by_event_rate(7),
        None,
    )
    by_size = of(Use.WRITE, allow_create_stream="true", default_retention_size_bytes="9")
    assert (by_size.scaling, by_size.retention) == (ScalingPolicy.fixed(1), RetentionPolicy.by_size(9))


def test_defaults_of_both_formats() -> None:
    assert of(Use.READ_STREAM).start is None
    assert of(Use.READ_STREAM, SparkFormat.PRAVEGA).start == "tail"
    assert of(Use.READ_STREAM, SparkFormat.PRAVEGA, start_stream_cut="unbounded").start is None
    assert of(Use.READ_STREAM, SparkFormat.PRAVEGA, start_stream_cut="earliest").start == "head"
    assert of(Use.READ, SparkFormat.PRAVEGA).start is None
    for use in (Use.WRITE, Use.WRITE_STREAM):
        assert (of(use).creates_scope, of(use).creates_stream) == (False, False)
        pravegas = of(use, SparkFormat.PRAVEGA)
        assert (pravegas.creates_scope, pravegas.creates_stream, pravegas.scaling) == (
            True,
            True,
            ScalingPolicy.fixed(1),
        )


@pytest.mark.parametrize("option", PRAVEGAS, ids=lambda option: option.name)
@pytest.mark.parametrize("use", Use)
def test_pravega_option_is_accepted_in_any_use(option: Any, use: Use) -> None:
    """That format ignores options without effect; nadi's own rejects them."""
    value = {"controller": "tcp://h:1", "metadata": "StreamInfo", "start_stream_cut": "latest"}
    value |= {"end_stream_cut": "latest", "scope": "home", "stream": "meters"}
    given: dict[str, Any] = {
        option.name: value.get(option.name, "true" if option.default in ("true", "false") else "10000")
    }
    assert of(use, SparkFormat.PRAVEGA, **given)
    if use not in option.uses:
        with pytest.raises(InvalidArgumentError):
            of(use, **given)
    with pytest.raises(InvalidArgumentError, match="'colour'"):
        of(use, SparkFormat.PRAVEGA, colour="red")


def test_all_options_of_pravegas_connector_exist() -> None:
    names = """allow_create_scope allow_create_stream controller default_num_segments end_stream_cut exactly_once
    default_retention_duration_milliseconds default_retention_size_bytes default_scale_factor metadata
    default_segment_target_rate_bytes_per_sec default_segment_target_rate_events_per_sec read_after_write_consistency
    scope start_stream_cut stream transaction_timeout_ms transaction_status_poll_interval_ms
    approx_bytes_per_trigger"""
    assert {option.name for option in PRAVEGAS} == set(names.split())


def test_option_names_are_unique() -> None:
    assert len(BY_KEY) == len({name for option in OPTIONS for name in (option.name, *option.also)})


def test_command_lists_the_options() -> None:
    def run(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, ["spark", "options", *arguments], env={"COLUMNS": "200"})
        assert result.exit_code == code, result.output
        return result.output

    assert "approx_bytes_per_trigger" in run()
    assert "approx_bytes_per_trigger" not in run("--use", "write")
    assert "earliest (batch), latest (streaming)" in run("--format", "pravega", "--json")
    assert run("--markdown") == markdown()
    assert "'kafka'" in run("--format", "kafka", code=2)
    assert "read, readStream" in run("--use", "load", code=2)
    assert "--markdown" in run("--markdown", "--json", code=2)


@pytest.mark.parametrize("module", ["pyspark_nadi", "pyspark_pravega"])
def test_discovery_module_imports_little(module: str) -> None:
    code = (
        "import sys, pyspark.sql.datasource\nbefore = set(sys.modules)\n"
        f"import {module}\nprint(*sorted(set(sys.modules) - before))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert module in loaded
    assert {"pyarrow", "numpy", "grpc", "nadi.client", "nadi.spark.source_requests", "asyncio"}.isdisjoint(loaded)
    assert len(loaded) < 40, loaded  # a dozen of them files of limits
