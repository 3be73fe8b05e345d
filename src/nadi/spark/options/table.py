"""All options of `format("nadi")` and `format("pravega")` in one table: their uses, defaults and meanings. It defines
the accepted options, the output of `nadi spark options`, and the guide.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial

from nadi.errors import InvalidArgumentError
from nadi.limits import SCHEMA_MAX_VERSIONS, STREAM_MAX_SEGMENTS, TXN_LEASE_MAX_MS, TXN_LEASE_MIN_MS


class Use(Enum):
    """The operation that options are given to; the values are Spark's names."""

    READ = "spark.read"
    READ_STREAM = "spark.readStream"
    WRITE = "write"
    WRITE_STREAM = "writeStream"


class SparkFormat(Enum):
    """The two formats that Spark knows. `pravega` has the defaults of Pravega's connector."""

    NADI = "nadi"
    PRAVEGA = "pravega"


_READS, _WRITES = frozenset({Use.READ, Use.READ_STREAM}), frozenset({Use.WRITE, Use.WRITE_STREAM})
_ALL = _READS | _WRITES


@dataclass(frozen=True, slots=True)
class SparkOption:
    """An option of the formats.

    default: as text, empty if there is none; pravega_default: that of `format("pravega")`, if different. is_pravegas:
    Pravega's connector has this option. also: aliases.
    """

    name: str
    uses: frozenset[Use]
    meaning: str
    default: str = ""
    pravega_default: str | None = None
    is_pravegas: bool = False
    also: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The name in the form that Spark passes: case doesn't matter."""
        return self.name.lower()


_pravegas = partial(SparkOption, is_pravegas=True)
_STREAMING, _BATCH, _BATCH_WRITE = frozenset({Use.READ_STREAM}), frozenset({Use.READ}), frozenset({Use.WRITE})
OPTIONS: tuple[SparkOption, ...] = (
    # connection and stream
    _pravegas("controller", _ALL, "the controller's address", "tcp://127.0.0.1:9090"),
    _pravegas("scope", _ALL, "the stream's scope", "required"),
    _pravegas("stream", _ALL, "the stream's name", "required; reads may use one of the next three instead"),
    SparkOption("streams", _READS, "several streams of the scope: comma-separated names, or a JSON list"),
    SparkOption("stream_pattern", _READS, "all streams of the scope whose whole name matches this regular expression"),
    SparkOption("stream_tag", _READS, "all streams of the scope that have this tag"),
    SparkOption("auth_user", _ALL, "the user to log in as, with `auth_password`", "from the environment"),
    SparkOption("auth_password", _ALL, "the password of `auth_user`", "from the environment"),
    SparkOption("auth_token", _ALL, "a bearer token, instead of user and password", "from the environment"),
    SparkOption(
        "auth_certificate", _ALL, "PEM file of the client's certificate, with `auth_key`", "from the environment"
    ),
    SparkOption("auth_key", _ALL, "PEM file of the private key of `auth_certificate`", "from the environment"),
    SparkOption("trust_store", _ALL, "PEM file of trusted certificates for a `tls://` address", "the system's"),
    SparkOption("validate_host_name", _ALL, "whether the certificate must match the host name", "true"),
    # range and contents of a read
    _pravegas(
        "start_stream_cut",
        _READS,
        "the start: `earliest` (or `head`, `unbounded`), `latest` (or `tail`), or a cut's text",
        "earliest",
        "earliest (batch), latest (streaming)",
    ),
    _pravegas(
        "end_stream_cut",
        _READS,
        "the end: `latest` (or `tail`) when the query starts, `unbounded`, or a cut's text",
        "latest (batch), unbounded (streaming)",
    ),
    SparkOption("start", _READS, "the start: `head`, `tail`, a bookmark, a time or a cut's text"),
    SparkOption("end", _READS, "the end: `head`, `tail`, a bookmark, a cut's text or, in a batch, a time"),
    SparkOption("startingTimestamp", _READS, "the time to start at: ISO 8601 with a zone, or ms since 1970"),
    SparkOption("endingTimestamp", _BATCH, "the time to end at: ISO 8601 with a zone, or ms since 1970"),
    SparkOption("startingEventTime", _READS, "the event time to start at; a date means midnight in UTC"),
    SparkOption("endingEventTime", _READS, "the event time to end before, resolved when the query starts"),
    SparkOption("slice", _READS, "a named slice, instead of a start and an end"),
    SparkOption("routing_keys", _READS, "JSON list of keys: read only segments that can contain one of them", "all"),
    _pravegas(
        "metadata",
        _BATCH,
        "instead of events: `Streams` of the scope, `StreamInfo` (head, tail), `StreamCuts` (bookmarks, slices)",
    ),
    SparkOption(
        "source",
        _BATCH,
        "`stream`, or `union`: the stream's lake up to its table's cut, and the stream from there",
        "stream",
    ),
    SparkOption("lake", _BATCH, "the name of the lake, with `source` = union", "STREAM-lake"),
    # reading
    SparkOption(
        "direct",
        _READS,
        "whether tasks read tier 2 without the server: `auto` (if possible and worthwhile), `always`, `never`",
        "auto",
    ),
    SparkOption(
        "on_damage", _READS, "data damaged on the server's disk: `raise` fails the task, `skip` continues", "raise"
    ),
    SparkOption(
        "groupId",
        _STREAMING,
        "a reader group, created if needed, that follows the query's commits and protects unread events from retention",
    ),
    SparkOption(
        "startAt", _STREAMING, "`last-committed`: a new query starts at the position of its `groupId`, if that exists"
    ),
    SparkOption(
        "output",
        _STREAMING,
        "with `groupId`: the stream (or `scope/stream`) that the query writes; then `startAt` is exact",
    ),
    SparkOption("failOnDataLoss", _STREAMING, "whether a query fails if unread events were truncated", "true"),
    SparkOption("skip_truncated", _STREAMING, "the opposite of `failOnDataLoss`", "false"),
    _pravegas(
        "approx_bytes_per_trigger",
        _STREAMING,
        "approximate maximum bytes per micro-batch",
        also=("max_bytes_per_trigger", "maxBytesPerTrigger"),
    ),
    SparkOption("maxBytesPerSegment", _STREAMING, "approximate maximum bytes of one segment per micro-batch"),
    SparkOption("maxOffsetsPerTrigger", _STREAMING, "maximum events per micro-batch"),
    SparkOption("minOffsetsPerTrigger", _STREAMING, "minimum events per micro-batch"),
    SparkOption(
        "maxTriggerDelay", _STREAMING, "maximum wait for `minOffsetsPerTrigger`: `500ms`, `30s`, `15m`, `2h`", "15m"
    ),
    SparkOption(
        "columns",
        _READS,
        "comma-separated columns to read: also `position_before` and `position`, the cuts around a row, `append_time` "
        "and `event_time`; with `source` = union, columns of the lake, by default all",
        "event, scope, stream, segment_id, offset",
    ),
    SparkOption(
        "eventTimeUnit",
        _READS,
        "unit of the times that writers note, in the column `event_time`: `s`, `ms`, `us` or `ns` since 1970; `none` "
        "makes the column a long",
        "ms",
    ),
    SparkOption(
        "value_format",
        _ALL,
        "encoding of events, parsed into or written from the column `value`: `json`, `msgpack`, `avro`, `protobuf`, "
        "`arrow`",
    ),
    SparkOption(
        "value_schema",
        _READS,
        "for json and msgpack: the fields to read, in Spark's DDL (`time timestamp, value double`)",
        "the stream's schema",
    ),
    SparkOption("value_version", _ALL, "version of the stream's schema to read or write values with", "the newest"),
    SparkOption(
        "value_mode",
        _READS,
        "events that can't be decoded: `PERMISSIVE` makes the value null, `DROPMALFORMED` drops the row, `FAILFAST` "
        "fails",
        "PERMISSIVE",
    ),
    SparkOption(
        "ordered",
        _READS,
        "`true`: one task reads all segments of a key, in order; `false`: several tasks may read a large segment",
        "false (batch); one task per segment (streaming)",
    ),
    SparkOption("max_partitions", _READS, "maximum tasks of a read", "16"),
    SparkOption("min_partition_bytes", _READS, "minimum bytes per task, so a small read has fewer tasks", "1048576"),
    SparkOption("cutover", _STREAMING, "a name under which a new version of the query can take over (`replay.md`)"),
    SparkOption("mirror_checkpoint", _STREAMING, "the query's checkpoint folder, to mirror into the scope"),
    SparkOption("mirror_name", _STREAMING, "the name of the mirror", "required with it"),
    SparkOption(
        "replay_of", _STREAMING, "the `cutover` of a running query: this query follows it without overtaking it"
    ),
    # writing
    SparkOption(
        "event_attribute_name",
        _WRITES,
        "the column with the events, binary or string; with `value_format`, the column with the values",
        "event (value)",
    ),
    SparkOption(
        "routing_key_attribute_name", _WRITES, "the string column with the routing keys", "routing_key, if it exists"
    ),
    SparkOption(
        "save_mode",
        _BATCH_WRITE,
        'effect of `mode("append")` on a stream with events: `append`, `errorifexists` (fail), `ignore` (do nothing)',
        "append",
    ),
    SparkOption(
        "truncate", _BATCH_WRITE, '`true` lets `mode("overwrite")` drop all previous events of the stream', "false"
    ),
    SparkOption("txnAppId", _BATCH_WRITE, "with `txnVersion`: the job, each of whose writes takes effect once"),
    SparkOption(
        "txnVersion", _BATCH_WRITE, "the number of the write, such as a batch's id; numbers up to the last are skipped"
    ),
    SparkOption(
        "delivery",
        _WRITES | _STREAMING,
        "`exactly-once`; `at-most-once`: an attempt is never repeated (a read needs `groupId`, `write` needs "
        "`txnAppId`); `at-least-once`: without transactions, readable at once, but duplicated after failures",
        "exactly-once",
    ),
    _pravegas("exactly_once", _WRITES, "`false` means `delivery` = `at-least-once`", "true"),
    _pravegas(
        "transaction_timeout_ms",
        _WRITES,
        "maximum downtime of a query between writing a batch and committing it",
        "86400000",
        also=("transaction_timeout_time",),
    ),
    _pravegas("read_after_write_consistency", _WRITES, "whether a write waits until its events are readable", "true"),
    _pravegas("transaction_status_poll_interval_ms", _WRITES, "interval of checking whether they are", "5"),
    # creating streams
    _pravegas("allow_create_scope", _WRITES, "create the scope if it doesn't exist", "false", "true"),
    _pravegas("allow_create_stream", _WRITES, "create the stream if it doesn't exist", "false", "true"),
    _pravegas("default_num_segments", _WRITES, "minimum segments of a created stream", "1"),
    _pravegas("default_scale_factor", _WRITES, "segments that one split creates; with a target rate", "2"),
    _pravegas("default_segment_target_rate_bytes_per_sec", _WRITES, "target rate of one segment, 1,024 or more"),
    _pravegas("default_segment_target_rate_events_per_sec", _WRITES, "target rate of one segment"),
    _pravegas("default_retention_duration_milliseconds", _WRITES, "how long it retains events", "forever"),
    _pravegas("default_retention_size_bytes", _WRITES, "how much it retains", "everything"),
)
_START = ("start", "start_stream_cut", "startingTimestamp", "startingEventTime")
_END = ("end", "end_stream_cut", "endingTimestamp", "endingEventTime")
_SEVERAL = ("streams", "stream_pattern", "stream_tag")
_BY_BYTES, _BY_EVENTS = (f"default_segment_target_rate_{unit}_per_sec" for unit in ("bytes", "events"))
_OF_EVENTS = ("slice", "routing_keys", "direct", "on_damage", "ordered", "max_partitions", "min_partition_bytes")
EXCLUDED = {  # the options that can't be combined with an option
    "stream": _SEVERAL,
    "streams": ("stream_pattern", "stream_tag", "slice", "metadata"),
    "stream_pattern": ("stream_tag", "slice", "metadata"),
    "stream_tag": ("slice", "metadata"),
    "auth_user": ("auth_token",),
    "start": ("start_stream_cut",),
    "end": ("end_stream_cut",),
    "startingTimestamp": ("start", "start_stream_cut", "startingEventTime"),
    "endingTimestamp": ("end", "end_stream_cut", "endingEventTime"),
    "startingEventTime": ("start", "start_stream_cut"),
    "endingEventTime": ("end", "end_stream_cut"),
    "slice": (*_START, *_END),
    "metadata": (*_START, *_END, *_OF_EVENTS, "columns", "value_format"),  # reads no events
    "groupId": ("stream_pattern", "stream_tag"),
    "startAt": ("slice", *_START),
    "skip_truncated": ("failOnDataLoss",),
    "cutover": ("replay_of", *_SEVERAL),
    "replay_of": _SEVERAL,
    "delivery": ("exactly_once",),
    _BY_BYTES: (_BY_EVENTS,),
    "default_retention_duration_milliseconds": ("default_retention_size_bytes",),
}
NEEDED = {  # the option required by an option
    "auth_certificate": "auth_key",
    "auth_key": "auth_certificate",
    "auth_user": "auth_password",
    "auth_password": "auth_user",
    "startAt": "groupId",
    "output": "groupId",
    "maxTriggerDelay": "minOffsetsPerTrigger",
    "mirror_checkpoint": "mirror_name",
    "mirror_name": "mirror_checkpoint",
    "txnAppId": "txnVersion",
    "txnVersion": "txnAppId",
}
CHOICES = {
    "metadata": ("Streams", "StreamInfo", "StreamCuts"),
    "direct": ("auto", "always", "never"),
    "on_damage": ("raise", "skip"),
    "startAt": ("last-committed",),
    "save_mode": ("append", "errorifexists", "ignore"),
}
NUMBERS = {  # minimum and maximum
    "approx_bytes_per_trigger": (1, 1 << 50),
    "maxBytesPerSegment": (1, 1 << 50),
    "maxOffsetsPerTrigger": (1, 1 << 40),
    "minOffsetsPerTrigger": (1, 1 << 40),
    "value_version": (1, SCHEMA_MAX_VERSIONS),
    "max_partitions": (1, 10_000),
    "min_partition_bytes": (1, 1 << 40),
    "txnVersion": (0, (1 << 63) - 1),
    "transaction_timeout_ms": (TXN_LEASE_MIN_MS, TXN_LEASE_MAX_MS),
    "transaction_status_poll_interval_ms": (1, 60_000),
    "default_num_segments": (1, STREAM_MAX_SEGMENTS),
    "default_scale_factor": (2, STREAM_MAX_SEGMENTS),
    _BY_BYTES: (1024, 1 << 40),
    _BY_EVENTS: (1, (1 << 31) - 1),
    "default_retention_duration_milliseconds": (1, 1 << 50),
    "default_retention_size_bytes": (1, 1 << 60),
}
BY_KEY = {name.lower(): option for option in OPTIONS for name in (option.name, *option.also)}


NO_ENDING_MOMENT = (
    "after a restart, a time in the future could mean another cut: set 'end' to a cut or a bookmark, or read the slice "
    "as a batch"
)
_CUTS = "give 'start' (head, tail, a bookmark, a time or a stream cut)"
_INSTEAD = {
    "endingtimestamp": NO_ENDING_MOMENT,
    "startingoffsets": _CUTS,
    "startingoffsetsbytimestamp": "give 'startingTimestamp'",
    "endingoffsets": "give 'end' (head, tail, a bookmark, a time or a stream cut)",
    "endingoffsetsbytimestamp": "give 'endingTimestamp'",
    "maxfilespertrigger": "give 'approx_bytes_per_trigger'",
    "minpartitions": "give 'min_partition_bytes' and 'max_partitions'",
    "subscribe": "select streams with 'scope' and 'stream' or 'streams'",
    "subscribepattern": "give 'scope' and 'stream_pattern'",
    "assign": "select streams with 'scope' and 'stream' or 'streams'",
    "kafka.bootstrap.servers": "give 'controller'",
    "path": "select a stream with 'scope' and 'stream' instead of a path",
    "checkpointlocation": "set it on writeStream",
    "queryname": "set it on writeStream",
}
# options of a streaming query that Spark itself uses, and passes on
_SPARKS = {Use.WRITE_STREAM: ("checkpointlocation", "queryname", "asyncprogresstracking")}
# options that CREATE TABLE adds
_TABLES = ("owner", "provider", "option.", "external", "location", "is_managed_location")


def checked(given: Mapping[str, str], use: Use, format_: SparkFormat) -> dict[str, str]:
    """Return the options by their primary names in lower case, without Spark's own; InvalidArgumentError for options
    without effect in this use, or in conflict."""
    options: dict[str, str] = {}
    for name, value in ((name.lower(), value) for name, value in given.items()):
        option = BY_KEY.get(name)
        if option is None:
            if not name.startswith((*_TABLES, *_SPARKS.get(use, ()))):
                raise InvalidArgumentError(_unknown(name))
            continue
        if use not in option.uses:
            if format_ is SparkFormat.PRAVEGA and option.is_pravegas:
                continue
            raise InvalidArgumentError(_without_effect(name, use))
        if option.key in options:
            both = " and ".join(repr(other) for other in (option.name, *option.also))
            raise InvalidArgumentError(f"the options {both} are aliases: give only one")
        if not value.strip():
            raise InvalidArgumentError(f"the option {name!r} is empty: set a value, or remove it")
        options[option.key] = value
    for name, others in EXCLUDED.items():
        for other in others if name.lower() in options else ():
            is_ignored = format_ is SparkFormat.PRAVEGA and BY_KEY[other.lower()].is_pravegas
            if other.lower() in options and not is_ignored:
                raise InvalidArgumentError(f"the options {name!r} and {other!r} can't be combined: remove one")
    for name, other in NEEDED.items():
        if name.lower() in options and other.lower() not in options:
            raise InvalidArgumentError(f"the option {name!r} needs {other!r}: add .option({other!r}, ...)")
    return options


def _without_effect(name: str, use: Use) -> str:
    where = " and ".join(sorted(other.value for other in BY_KEY[name].uses))
    more = f". {_INSTEAD[name]}" if name in _INSTEAD else ""
    return f"the option {name!r} has no effect with {use.value}: use it with {where}{more}"


def _unknown(name: str) -> str:
    if name in _INSTEAD:
        return f"the option {name!r} has no effect: {_INSTEAD[name]}"
    near = difflib.get_close_matches(name, BY_KEY, 1, 0.7)
    if near:
        return f"unknown option {name!r}: did you mean {near[0]!r}?"
    return f"unknown option {name!r}: use one of {', '.join(option.name for option in OPTIONS)}"


def default_in(option: SparkOption, format_: SparkFormat) -> str:
    if format_ is SparkFormat.PRAVEGA and option.pravega_default is not None:
        return option.pravega_default
    return option.default


def uses_text(option: SparkOption) -> str:
    """Return the operations in which it has an effect: `read, readStream`.

    >>> uses_text(BY_KEY["slice"])
    'read, readStream'
    """
    return ", ".join(use.value.removeprefix("spark.") for use in Use if use in option.uses)


def markdown() -> str:
    lines = ['| option | in | default | `format("pravega")` | meaning |', "|---|---|---|---|---|"]
    for option in OPTIONS:
        names = ", ".join(f"`{name}`" for name in (option.name, *option.also))
        other = option.pravega_default or ("same" if option.is_pravegas else "nadi only")
        lines.append(f"| {names} | {uses_text(option)} | {option.default or '–'} | {other} | {option.meaning} |")
    return "\n".join(lines) + "\n"
