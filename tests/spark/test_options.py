"""Each option: its values, its default in both formats, what it excludes, and the words for what is wrong."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import nadi
from nadi.cli.app import app
from nadi.client import RetentionPolicy, ScalingPolicy
from nadi.errors import InvalidArgumentError
from nadi.spark.options.read import Admission, ReadOptions
from nadi.spark.options.table import BY_KEY, OPTIONS, Format, Use, markdown
from nadi.spark.options.write import WriteOptions

HOME = {"scope": "home", "stream": "meters"}
CUT = nadi.StreamCut("home", "meters", {0: 30})
PRAVEGAS = [option for option in OPTIONS if option.is_pravegas]


def of(use: Use, format_: Format = Format.NADI, **given: Any) -> Any:
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
        ({}, "poll_s", 0.005),
        ({}, "delivery", "exactly-once"),
        ({}, "waits_for_readers", True),
    ],
)
def test_a_value(given: dict[str, Any], field: str, value: Any) -> None:
    use = use_of(given) if given else Use.WRITE
    assert getattr(of(use, **given), field) == value


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"start_stream_cut": "noon"}, "is none of earliest, unbounded, latest, head, tail, and"),
        ({"approx_bytes_per_trigger": "0"}, "must be a number from 1 to"),
        ({"maxOffsetsPerTrigger": "x"}, "'maxOffsetsPerTrigger' is 'x': it must be a number from 1 to"),
        ({"groupId": "a b"}, "reader group"),
        ({"startAt": "last-committed"}, "'startAt' needs 'groupId'"),
        ({"startAt": "noon", "groupId": "g"}, "it must be last-committed"),
        ({"startAt": "last-committed", "groupId": "g", "start": "head"}, "'startAt' and 'start' exclude each other"),
        ({"maxTriggerDelay": "15m"}, "'maxTriggerDelay' needs 'minOffsetsPerTrigger'"),
        ({"minOffsetsPerTrigger": "5", "maxTriggerDelay": "soon"}, "'maxTriggerDelay' is 'soon': it must be a time"),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "is 5, more than 'maxOffsetsPerTrigger', 4"),
        ({"approx_bytes_per_trigger": "1", "max_bytes_per_trigger": "1"}, "mean the same: give one of them"),
        ({"transaction_timeout_ms": "1"}, "'transaction_timeout_ms' is '1': it must be a number from"),
        ({"transaction_status_poll_interval_ms": "0"}, "must be a number from 1 to 60,000"),
        ({"read_after_write_consistency": "yes"}, "must be true or false"),
        ({"exactly_once": "no"}, "must be true or false"),
        ({"failOnDataLoss": "true", "skip_truncated": "true"}, "exclude each other"),
        ({"metadata": "streams"}, "must be Streams, StreamInfo, StreamCuts"),
        ({"metadata": "StreamInfo", "start": "head"}, "'metadata' and 'start' exclude each other"),
        ({"metadata": "StreamInfo", "endingTimestamp": "5"}, "'metadata' and 'endingTimestamp' exclude each other"),
        ({"metadata": "StreamInfo", "direct": "always"}, "'metadata' and 'direct' exclude each other"),
        ({"max_partitions": "9" * 5000}, "'max_partitions' is '9999999999999999999999999999999999999999': it must be"),
        ({"max_partitions": "٣"}, "'max_partitions' is '٣': it must be a number from 1 to"),
        ({"startingTimestamp": "9" * 5000}, "the option 'startingTimestamp': '99999"),
        ({"allow_create_stream": "1"}, "must be true or false"),
        ({"default_num_segments": "2"}, "it is for streams that are created"),
        ({"allow_create_stream": "true", "default_num_segments": "0"}, "must be a number from 1 to"),
        ({"allow_create_stream": "true", "default_scale_factor": "1"}, "must be a number from 2 to"),
        ({"allow_create_stream": "true", "default_scale_factor": "2"}, "no effect without a target rate"),
        ({"allow_create_stream": "true", "default_segment_target_rate_bytes_per_sec": "1023"}, "from 1,024 to"),
        ({"allow_create_stream": "true", "default_segment_target_rate_events_per_sec": "0"}, "from 1 to"),
        (
            {
                "allow_create_stream": "true",
                "default_segment_target_rate_bytes_per_sec": "1024",
                "default_segment_target_rate_events_per_sec": "1",
            },
            "exclude each other",
        ),
        ({"allow_create_stream": "true", "default_retention_size_bytes": "x"}, "must be a number"),
        (
            {
                "allow_create_stream": "true",
                "default_retention_size_bytes": "1",
                "default_retention_duration_milliseconds": "1",
            },
            "exclude each other",
        ),
    ],
)
def test_a_wrong_value_is_named(given: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidArgumentError, match=re.escape(says)):
        of(use_of(given), **given)


def test_policies_of_a_stream_that_is_created() -> None:
    made = of(
        Use.WRITE,
        allow_create_scope="true",
        allow_create_stream="true",
        default_num_segments="3",
        default_scale_factor="4",
        default_segment_target_rate_bytes_per_sec="10240",
        default_retention_duration_milliseconds="60000",
    ).creation
    assert (made.scope, made.stream) == (True, True)
    assert made.scaling == ScalingPolicy.by_data_rate(10, 4, 3)
    assert made.retention == RetentionPolicy.by_time(60_000)
    by_events = of(Use.WRITE, allow_create_stream="true", default_segment_target_rate_events_per_sec="7").creation
    assert (by_events.scope, by_events.scaling, by_events.retention) == (False, ScalingPolicy.by_event_rate(7), None)
    by_size = of(Use.WRITE, allow_create_stream="true", default_retention_size_bytes="9").creation
    assert (by_size.scaling, by_size.retention) == (ScalingPolicy.fixed(1), RetentionPolicy.by_size(9))


def test_defaults_of_both_formats() -> None:
    assert of(Use.READ_STREAM).start is None
    assert of(Use.READ_STREAM, Format.PRAVEGA).start == "tail"
    assert of(Use.READ_STREAM, Format.PRAVEGA, start_stream_cut="unbounded").start is None
    assert of(Use.READ_STREAM, Format.PRAVEGA, start_stream_cut="earliest").start == "head"
    assert of(Use.READ, Format.PRAVEGA).start is None
    for use in (Use.WRITE, Use.WRITE_STREAM):
        assert (of(use).creation.scope, of(use).creation.stream) == (False, False)
        pravegas = of(use, Format.PRAVEGA).creation
        assert (pravegas.scope, pravegas.stream, pravegas.scaling) == (True, True, ScalingPolicy.fixed(1))


@pytest.mark.parametrize("option", PRAVEGAS, ids=lambda option: option.name)
@pytest.mark.parametrize("use", Use)
def test_an_option_of_pravegas_connector_is_accepted_wherever_that_accepts_it(option: Any, use: Use) -> None:
    """For it ignores there what has no effect; nadi's own format refuses it."""
    value = {"controller": "tcp://h:1", "metadata": "StreamInfo", "start_stream_cut": "latest"}
    value |= {"end_stream_cut": "latest", "scope": "home", "stream": "meters"}
    given: dict[str, Any] = {
        option.name: value.get(option.name, "true" if option.default in ("true", "false") else "10000")
    }
    assert of(use, Format.PRAVEGA, **given)
    if use not in option.uses:
        with pytest.raises(InvalidArgumentError, match="has no effect with"):
            of(use, **given)
    with pytest.raises(InvalidArgumentError, match="there is no option 'colour'"):
        of(use, Format.PRAVEGA, colour="red")


def test_every_option_of_pravegas_connector_is_there() -> None:
    names = """allow_create_scope allow_create_stream controller default_num_segments end_stream_cut exactly_once
    default_retention_duration_milliseconds default_retention_size_bytes default_scale_factor metadata
    default_segment_target_rate_bytes_per_sec default_segment_target_rate_events_per_sec read_after_write_consistency
    scope start_stream_cut stream transaction_timeout_ms transaction_status_poll_interval_ms
    approx_bytes_per_trigger"""
    assert {option.name for option in PRAVEGAS} == set(names.split())


def test_the_guide_has_the_table() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    assert markdown() in guide, "nadi spark options --markdown prints what it should be"
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
    assert "there are nadi and pravega" in run("--format", "kafka", code=1)
    assert "but to read, readStream" in run("--use", "load", code=1)
    assert "leave out" in run("--markdown", "--json", code=1)


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
