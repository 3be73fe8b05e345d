"""Each option: its values, its default in both formats, what it excludes, and the words for what is wrong."""

from __future__ import annotations

import re
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
    """One in which all that is given has an effect."""
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
def test_a_value(given: dict[str, Any], field: str, value: Any) -> None:
    use = use_of(given) if given else Use.WRITE
    assert getattr(of(use, **given), field) == value


MADE = {"allow_create_stream": "true"}
BY_BYTES, BY_EVENTS = (f"default_segment_target_rate_{what}_per_sec" for what in ("bytes", "events"))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"start_stream_cut": "noon"}, "is none of earliest, unbounded, latest, head, tail, and"),
        ({"start_stream_cut": nadi.StreamCut("home", "other", {0: 0}).as_text()}, "belongs to stream home/other"),
        ({"start": "head", "startingTimestamp": "1"}, "'startingTimestamp' and 'start' exclude each other"),
        ({"startingTimestamp": "9" * 5000}, "the option 'startingTimestamp': '99999"),
        ({"startingTimestamp": "yesterday"}, "the option 'startingTimestamp'"),
        ({"endingTimestamp": "2026-11-14T00:00"}, "no time zone"),
        ({"startingEventTime": "soon"}, "startingEventTime"),
        ({"startingEventTime": "2027-03-01T00:00"}, "time zone"),
        ({"startingEventTime": "2027-03-01", "start": "head"}, "exclude each other"),
        ({"endingEventTime": "2027-03-01", "slice": "s"}, "exclude each other"),
        ({"slice": "week-0", "end": "tail"}, "exclude each other"),
        ({"slice": "week-0", "endingTimestamp": "1"}, "'slice' and 'endingTimestamp' exclude each other"),
        ({"routing_keys": "k1"}, "must be a JSON list"),
        ({"routing_keys": " [ ] "}, "'routing_keys' is an empty list"),
        ({"controller": "localhost"}, "is not a controller address"),
        ({"scope": "no_scope"}, "is not a scope name"),
        ({"on_damage": "ignore"}, "on_damage"),
        ({"auth_user": "ann"}, "auth_password"),
        ({"auth_user": "ann", "auth_password": "x", "auth_token": "y"}, "exclude each other"),
        ({"validate_host_name": "maybe"}, "true or false"),
        # how much a batch has
        ({"approx_bytes_per_trigger": "0"}, "must be a number from 1 to"),
        ({"approx_bytes_per_trigger": "1", "max_bytes_per_trigger": "1"}, "mean the same: give one of them"),
        ({"maxOffsetsPerTrigger": "x"}, "'maxOffsetsPerTrigger' is 'x': it must be a number from 1 to"),
        ({"maxTriggerDelay": "15m"}, "'maxTriggerDelay' needs 'minOffsetsPerTrigger'"),
        ({"minOffsetsPerTrigger": "5", "maxTriggerDelay": "soon"}, "'maxTriggerDelay' is 'soon': it must be a time"),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "is 5, more than 'maxOffsetsPerTrigger', 4"),
        ({"max_partitions": "9" * 5000}, "'max_partitions' is '9999999999999999999999999999999999999999': it must be"),
        ({"max_partitions": "٣"}, "'max_partitions' is '٣': it must be a number from 1 to"),
        # what a query keeps
        ({"groupId": "a b"}, "reader group"),
        ({"startAt": "last-committed"}, "'startAt' needs 'groupId'"),
        ({"startAt": "noon", "groupId": "g"}, "it must be last-committed"),
        ({"startAt": "last-committed", "groupId": "g", "start": "head"}, "'startAt' and 'start' exclude each other"),
        ({"failOnDataLoss": "true", "skip_truncated": "true"}, "exclude each other"),
        ({"delivery": "twice"}, "'delivery'"),
        ({"delivery": "at-most-once", "groupId": "g", "output": "o"}, "'output' exclude each other"),
        ({"delivery": "at-most-once", "groupId": "g", "cutover": "h"}, "'cutover' exclude each other"),
        ({"cutover": "x", "replay_of": "y"}, "exclude each other"),
        ({"replay_of": "no/name"}, "query"),
        ({"mirror_checkpoint": "/x"}, "'mirror_checkpoint' needs 'mirror_name'"),
        ({"mirror_name": "x"}, "'mirror_name' needs 'mirror_checkpoint'"),
        ({"mirror_checkpoint": "s3a://b/x", "mirror_name": "x"}, "only a folder of the driver's machine"),
        ({"metadata": "streams"}, "must be Streams, StreamInfo, StreamCuts"),
        ({"metadata": "StreamInfo", "start": "head"}, "'metadata' and 'start' exclude each other"),
        ({"metadata": "StreamInfo", "endingTimestamp": "5"}, "'metadata' and 'endingTimestamp' exclude each other"),
        ({"metadata": "StreamInfo", "direct": "always"}, "'metadata' and 'direct' exclude each other"),
        # what is written
        ({"transaction_timeout_ms": "1"}, "'transaction_timeout_ms' is '1': it must be a number from"),
        ({"transaction_status_poll_interval_ms": "0"}, "must be a number from 1 to 60,000"),
        ({"read_after_write_consistency": "yes"}, "must be true or false"),
        ({"exactly_once": "no"}, "must be true or false"),
        ({"save_mode": "overwrite"}, "must be append, errorifexists, ignore"),
        ({"txnAppId": "a"}, "needs 'txnVersion'"),
        ({"txnVersion": "1"}, "needs 'txnAppId'"),
        ({"txnAppId": "a", "txnVersion": "-1"}, "'txnVersion' is '-1': it must be a number from 0"),
        ({"txnAppId": "a" * 300, "txnVersion": "1"}, "has over 256 bytes"),
        ({"txnAppId": "a", "txnVersion": "1", "exactly_once": "false"}, "no effect with 'delivery'"),
        ({"txnAppId": "a", "txnVersion": "1", "delivery": "at-least-once"}, "no effect with 'delivery'"),
        ({"delivery": "at-most-once", "exactly_once": "true"}, "exclude each other"),
        ({"allow_create_stream": "1"}, "must be true or false"),
        ({"default_num_segments": "2"}, "it is for streams that are created"),
        (MADE | {"default_num_segments": "0"}, "must be a number from 1 to"),
        (MADE | {"default_scale_factor": "1"}, "must be a number from 2 to"),
        (MADE | {"default_scale_factor": "2"}, "no effect without a target rate"),
        (MADE | {BY_BYTES: "1023"}, "from 1,024 to"),
        (MADE | {BY_EVENTS: "0"}, "from 1 to"),
        (MADE | {BY_BYTES: "1024", BY_EVENTS: "1"}, "exclude each other"),
        (MADE | {"default_retention_size_bytes": "x"}, "must be a number"),
        (
            MADE | {"default_retention_size_bytes": "1", "default_retention_duration_milliseconds": "1"},
            "exclude each other",
        ),
        # values
        ({"value_format": "avro", "value_schema": "a int"}, "'value_schema' has no effect with 'value_format' = avro"),
        ({"value_format": "json", "value_schema": "a int", "value_version": "1"}, "exclude each other"),
        ({"value_format": "json", "value_schema": "a int", "value_mode": "fail"}, "'value_mode' is 'FAIL'"),
        ({"value_format": "json", "value_version": "0"}, "'value_version' is '0': it must be a number from 1"),
        ({"value_format": "json", "columns": "event"}, "no effect where 'columns' leaves out"),
        ({"columns": "value"}, "names 'value', which needs 'value_format'"),
        ({"value_mode": "FAILFAST"}, "'value_mode' has no effect without 'value_format'"),
        ({"value_schema": "a int"}, "'value_schema' has no effect without 'value_format'"),
        ({"value_version": "1"}, "'value_version' has no effect without 'value_format'"),
        ({"value_format": "json", "metadata": "StreamInfo"}, "'metadata' and 'value_format' exclude each other"),
    ],
)
def test_a_wrong_value_is_named(given: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidArgumentError, match=re.escape(says)):
        of(use_of(given), **given)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "the option 'stream' is missing"),
        ({"stream": "a", "streams": "b"}, "'stream' and 'streams' exclude each other"),
        ({"stream_pattern": "a", "stream_tag": "b"}, "'stream_pattern' and 'stream_tag' exclude"),
        ({"stream_pattern": "["}, "no regular expression"),
        ({"stream_pattern": "a{99999999999}"}, "no regular expression"),
        ({"streams": " "}, "'streams' is empty"),
        ({"streams": "a,a"}, "each once"),
        ({"streams": "[1]"}, "JSON list"),
        ({"streams": ",".join(f"s{n}" for n in range(1001))}, "at most 1,000"),
        ({"streams": "a,b", "slice": "x"}, "'streams' and 'slice' exclude"),
        ({"stream_tag": "b", "metadata": "StreamInfo"}, "exclude each other"),
        ({"streams": "a,b", "start": "noon"}, "'start' is 'noon', a place in one stream"),
        ({"streams": "a,b", "start": '{"c": "tail"}'}, "has a place for c, which 'streams' = a, b leaves out"),
        ({"streams": "a,b", "cutover": "x"}, "'cutover' and 'streams' exclude each other"),
    ],
)
def test_streams_that_are_not_named_once_are_refused(given: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidArgumentError, match=says):
        ReadOptions.from_spark({"scope": "home", **given}, use_of(given) if given else Use.READ)


@pytest.mark.parametrize(
    ("use", "option", "says"),
    [
        (Use.READ_STREAM, "startingOffsets", "'startingoffsets' has no effect: give 'start'"),
        (Use.READ_STREAM, "maxFilesPerTrigger", "'approx_bytes_per_trigger'"),
        *((use, "path", "leave out the path") for use in (Use.READ_STREAM, Use.WRITE_STREAM, Use.WRITE)),
        *((use, "checkpointLocation", "belongs to writeStream") for use in (Use.READ_STREAM, Use.WRITE)),
        *(
            (Use.READ, option, "it is one of spark.readStream")
            for option in ("failOnDataLoss", "max_bytes_per_trigger")
        ),
        (Use.READ_STREAM, "metadata", "it is one of spark.read"),
        (Use.READ_STREAM, "endingTimestamp", "end it at a cut or a bookmark with 'end'"),
        (Use.READ, "transaction_timeout_time", "it is one of write and writeStream"),
        (Use.READ_STREAM, "event_attribute_name", "it is one of write and writeStream"),
        (Use.WRITE, "start", "it is one of spark.read and spark.readStream"),
        (Use.WRITE_STREAM, "max_partitions", "it is one of spark.read and spark.readStream"),
        (Use.READ, "strt_stream_cut", "did you mean 'start_stream_cut'"),
        (Use.READ, "startingTimestmp", "did you mean 'startingtimestamp'"),
        (Use.READ, "zzz", "there are controller, scope"),
    ],
)
def test_an_option_without_effect_is_refused(use: Use, option: str, says: str) -> None:
    with pytest.raises(InvalidArgumentError, match=says):
        of(use, SparkFormat.NADI, **{option: "1"})


@pytest.mark.parametrize(
    ("use", "delivery", "says"),
    [
        (Use.READ, "at-most-once", "no effect with spark.read"),
        (Use.READ_STREAM, "at-most-once", "needs 'groupId'"),
        (Use.READ_STREAM, "at-least-once", "chosen by what writes"),
        (Use.WRITE, "at-most-once", "needs 'txnAppId'"),
    ],
)
def test_a_delivery_that_can_not_be_kept_is_refused(use: Use, delivery: str, says: str) -> None:
    with pytest.raises(InvalidArgumentError, match=says):
        of(use, delivery=delivery)


def test_options_of_spark_itself_are_let_pass() -> None:
    for use, given in (
        (Use.WRITE_STREAM, {"checkpointLocation": "/x", "queryName": "q", "asyncProgressTrackingEnabled": "false"}),
        (Use.READ, {"owner": "ann", "provider": "nadi", "option.scope": "home"}),
    ):
        assert of(use, SparkFormat.NADI, **given).stream == "meters"


def test_policies_of_a_stream_that_is_created() -> None:
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
def test_an_option_of_pravegas_connector_is_accepted_wherever_that_accepts_it(option: Any, use: Use) -> None:
    """For it ignores there what has no effect; nadi's own format refuses it."""
    value = {"controller": "tcp://h:1", "metadata": "StreamInfo", "start_stream_cut": "latest"}
    value |= {"end_stream_cut": "latest", "scope": "home", "stream": "meters"}
    given: dict[str, Any] = {
        option.name: value.get(option.name, "true" if option.default in ("true", "false") else "10000")
    }
    assert of(use, SparkFormat.PRAVEGA, **given)
    if use not in option.uses:
        with pytest.raises(InvalidArgumentError, match="has no effect with"):
            of(use, **given)
    with pytest.raises(InvalidArgumentError, match="there is no option 'colour'"):
        of(use, SparkFormat.PRAVEGA, colour="red")


def test_every_option_of_pravegas_connector_is_there() -> None:
    names = """allow_create_scope allow_create_stream controller default_num_segments end_stream_cut exactly_once
    default_retention_duration_milliseconds default_retention_size_bytes default_scale_factor metadata
    default_segment_target_rate_bytes_per_sec default_segment_target_rate_events_per_sec read_after_write_consistency
    scope start_stream_cut stream transaction_timeout_ms transaction_status_poll_interval_ms
    approx_bytes_per_trigger"""
    assert {option.name for option in PRAVEGAS} == set(names.split())


def test_option_names_are_unique() -> None:
    assert len(BY_KEY) == len({name for option in OPTIONS for name in (option.name, *option.also)})


def test_the_command_lists_them() -> None:
    def run(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, ["spark", "options", *arguments], env={"COLUMNS": "200"})
        assert result.exit_code == code, result.output
        return result.output

    assert "approx_bytes_per_trigger" in run()
    assert "approx_bytes_per_trigger" not in run("--use", "write")
    assert "earliest (batch), latest (streaming)" in run("--format", "pravega", "--json")
    assert run("--markdown") == markdown()
    assert "'kafka'" in run("--format", "kafka", code=1)
    assert "read, readStream" in run("--use", "load", code=1)
    assert "--markdown" in run("--markdown", "--json", code=1)


@pytest.mark.parametrize("module", ["pyspark_nadi", "pyspark_pravega"])
def test_what_spark_looks_for_loads_next_to_nothing(module: str) -> None:
    code = (
        "import sys, pyspark.sql.datasource\nbefore = set(sys.modules)\n"
        f"import {module}\nprint(*sorted(set(sys.modules) - before))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert module in loaded
    assert {"pyarrow", "numpy", "grpc", "nadi.client", "nadi.spark.formats", "asyncio"}.isdisjoint(loaded)
    assert len(loaded) < 40, loaded  # a dozen of them files of limits
