"""All options of `format("nadi")` and `format("pravega")`, in one table: where each has an effect, its default, its
meaning. What is accepted, what `nadi spark options` prints and the guide all come from here.
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
    """What options are given to; the values are Spark's names for it."""

    READ = "spark.read"
    READ_STREAM = "spark.readStream"
    WRITE = "write"
    WRITE_STREAM = "writeStream"


class SparkFormat(Enum):
    """The two names that Spark knows nadi by. `pravega` has the defaults of Pravega's connector."""

    NADI = "nadi"
    PRAVEGA = "pravega"


_READS, _WRITES = frozenset({Use.READ, Use.READ_STREAM}), frozenset({Use.WRITE, Use.WRITE_STREAM})
_ALL = _READS | _WRITES


@dataclass(frozen=True, slots=True)
class SparkOption:
    """default: in words, empty if there is none; pravega_default: that of `format("pravega")`, if it is another.
    is_pravegas: Pravega's connector has it, too. also: other names for the same."""

    name: str
    uses: frozenset[Use]
    meaning: str
    default: str = ""
    pravega_default: str | None = None
    is_pravegas: bool = False
    also: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The name as Spark hands it over: case doesn't matter."""
        return self.name.lower()


_pravegas = partial(SparkOption, is_pravegas=True)
_STREAMING, _BATCH, _BATCH_WRITE = frozenset({Use.READ_STREAM}), frozenset({Use.READ}), frozenset({Use.WRITE})
OPTIONS: tuple[SparkOption, ...] = (
    # where
    _pravegas("controller", _ALL, "the controller's address", "tcp://127.0.0.1:9090"),
    _pravegas("scope", _ALL, "the stream's scope", "needed"),
    _pravegas("stream", _ALL, "the stream's name", "needed; a read may have one of the next three instead"),
    SparkOption(
        "streams", _READS, "several streams of the scope: their names with commas between them, or a JSON list"
    ),
    SparkOption("stream_pattern", _READS, "all streams of the scope whose whole name matches this regular expression"),
    SparkOption("stream_tag", _READS, "all streams of the scope that have this tag"),
    SparkOption("auth_user", _ALL, "who logs in, with `auth_password`", "from the environment"),
    SparkOption("auth_password", _ALL, "the password of `auth_user`", "from the environment"),
    SparkOption("auth_token", _ALL, "a bearer token, instead of user and password", "from the environment"),
    SparkOption("trust_store", _ALL, "PEM file of the certificates to trust at a `tls://` address", "the system's"),
    SparkOption("validate_host_name", _ALL, "whether the certificate must be the host's", "true"),
    # what is read
    _pravegas(
        "start_stream_cut",
        _READS,
        "where to start: `earliest` (or `head`, `unbounded`), `latest` (or `tail`), or a cut's text",
        "earliest",
        "earliest (batch), latest (streaming)",
    ),
    _pravegas(
        "end_stream_cut",
        _READS,
        "where to end: `latest` (or `tail`) as of the query's start, `unbounded`, or a cut's text",
        "latest (batch), unbounded (streaming)",
    ),
    SparkOption("start", _READS, "where to start: `head`, `tail`, a bookmark, a time or a cut's text"),
    SparkOption("end", _READS, "where to end: `head`, `tail`, a bookmark, a cut's text or, in a batch, a time"),
    SparkOption("startingTimestamp", _READS, "the time to start at: ISO 8601 with a zone, or ms since 1970"),
    SparkOption("endingTimestamp", _BATCH, "the time to end at: ISO 8601 with a zone, or ms since 1970"),
    SparkOption("startingEventTime", _READS, "the events' own time to start at; a date means its midnight in UTC"),
    SparkOption("endingEventTime", _READS, "the events' own time to end before, as of the query's start"),
    SparkOption("slice", _READS, "a named slice, instead of a start and an end"),
    SparkOption("routing_keys", _READS, "JSON list of keys: only segments that can hold one of them are read", "all"),
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
    # how it is read
    SparkOption(
        "direct",
        _READS,
        "whether tasks read tier 2 without the server: `auto` (where they can, and it is worth it), `always`, `never`",
        "auto",
    ),
    SparkOption(
        "on_damage", _READS, "data damaged on the server's disk: `raise` fails the task, `skip` goes on", "raise"
    ),
    SparkOption(
        "groupId",
        _STREAMING,
        "a reader group, made if needed: its position is what the query has committed, and retention waits for it",
    ),
    SparkOption(
        "startAt", _STREAMING, "`last-committed`: a new query starts where its `groupId` stands, if that exists"
    ),
    SparkOption(
        "output",
        _STREAMING,
        "with `groupId`: the stream (or `scope/stream`) that the query writes; then `startAt` is exact",
    ),
    SparkOption("failOnDataLoss", _STREAMING, "whether a query fails at events truncated before it read them", "true"),
    SparkOption("skip_truncated", _STREAMING, "the opposite of `failOnDataLoss`", "false"),
    _pravegas(
        "approx_bytes_per_trigger",
        _STREAMING,
        "about so many bytes are read at once",
        also=("max_bytes_per_trigger", "maxBytesPerTrigger"),
    ),
    SparkOption("maxBytesPerSegment", _STREAMING, "about so many bytes of one segment are read at once"),
    SparkOption("maxOffsetsPerTrigger", _STREAMING, "so many events are read at once, at most"),
    SparkOption("minOffsetsPerTrigger", _STREAMING, "a batch waits until there are so many events"),
    SparkOption("maxTriggerDelay", _STREAMING, "but not for longer than this: `500ms`, `30s`, `15m`, `2h`", "15m"),
    SparkOption(
        "columns",
        _READS,
        "those that are read, with commas between: also `position_before` and `position`, the cuts around a row, "
        "`append_time` and `event_time`; with `source` = union of the lake's columns, all of them if none are named",
        "event, scope, stream, segment_id, offset",
    ),
    SparkOption(
        "eventTimeUnit",
        _READS,
        "of the times that writers noted, in the column `event_time`: `s`, `ms`, `us` or `ns` since 1970; `none`: the "
        "column is a long",
        "ms",
    ),
    SparkOption(
        "value_format",
        _ALL,
        "events are parsed into the column `value`, or encoded from it: `json`, `msgpack`, `avro`, `protobuf`, `arrow`",
    ),
    SparkOption(
        "value_schema",
        _READS,
        "of json and msgpack: the fields to read, as Spark writes them (`time timestamp, value double`)",
        "the stream's schema",
    ),
    SparkOption(
        "value_version", _ALL, "which version of the stream's schema values are read or written as", "the newest"
    ),
    SparkOption(
        "value_mode",
        _READS,
        "events that can't be read: `PERMISSIVE` gives null for the value, `DROPMALFORMED` no row, `FAILFAST` an error",
        "PERMISSIVE",
    ),
    SparkOption(
        "ordered",
        _READS,
        "`true`: one task reads all segments of a key, in order; `false`: several read a large segment",
        "false (batch); a segment to a task (streaming)",
    ),
    SparkOption("max_partitions", _READS, "tasks of a read, at most", "16"),
    SparkOption("min_partition_bytes", _READS, "fewer tasks if there is less to read than this for each", "1048576"),
    SparkOption(
        "cutover", _STREAMING, "a name by which a new version of the query can take over from it (`replay.md`)"
    ),
    SparkOption("mirror_checkpoint", _STREAMING, "the query's checkpoint folder: it is mirrored into the scope"),
    SparkOption("mirror_name", _STREAMING, "the name that `mirror_checkpoint` is kept under", "needed with it"),
    SparkOption(
        "replay_of", _STREAMING, "the `cutover` of a running query: this one follows it and never overtakes it"
    ),
    # what is written
    SparkOption(
        "event_attribute_name",
        _WRITES,
        "the column with the events, binary or string; with `value_format`, with their values",
        "event (value)",
    ),
    SparkOption(
        "routing_key_attribute_name", _WRITES, "the string column with their keys", "routing_key, if there is one"
    ),
    SparkOption(
        "save_mode",
        _BATCH_WRITE,
        'what `mode("append")` does in a stream with events: `append`; `errorifexists` fails; `ignore` does nothing',
        "append",
    ),
    SparkOption(
        "truncate", _BATCH_WRITE, '`true` lets `mode("overwrite")` drop all that was in the stream before', "false"
    ),
    SparkOption(
        "txnAppId", _BATCH_WRITE, "with `txnVersion`: the job whose writes count once each, whatever is run again"
    ),
    SparkOption(
        "txnVersion", _BATCH_WRITE, "the number of the write, as a batch's id; one up to the last is not written again"
    ),
    SparkOption(
        "delivery",
        _WRITES | _STREAMING,
        "`exactly-once`; `at-most-once`: what may have begun is not repeated (a read needs `groupId`, `write` "
        "`txnAppId`); `at-least-once`: writes without transactions, readable at once, but twice after a failure",
        "exactly-once",
    ),
    _pravegas("exactly_once", _WRITES, "`false` is `delivery` as `at-least-once`", "true"),
    _pravegas(
        "transaction_timeout_ms",
        _WRITES,
        "how long a query may be down between writing a batch and committing it",
        "86400000",
        also=("transaction_timeout_time",),
    ),
    _pravegas(
        "read_after_write_consistency", _WRITES, "whether a write ends only when readers can see its events", "true"
    ),
    _pravegas("transaction_status_poll_interval_ms", _WRITES, "how often it asks whether they can", "5"),
    # streams that aren't there yet
    _pravegas("allow_create_scope", _WRITES, "create the scope if there is none", "false", "true"),
    _pravegas("allow_create_stream", _WRITES, "create the stream if there is none", "false", "true"),
    _pravegas("default_num_segments", _WRITES, "segments of a stream that is created, at least", "1"),
    _pravegas("default_scale_factor", _WRITES, "pieces that one split of it may make; with a target rate", "2"),
    _pravegas("default_segment_target_rate_bytes_per_sec", _WRITES, "what one of its segments may get, 1,024 or more"),
    _pravegas("default_segment_target_rate_events_per_sec", _WRITES, "what one of its segments may get"),
    _pravegas("default_retention_duration_milliseconds", _WRITES, "for how long it keeps events", "forever"),
    _pravegas("default_retention_size_bytes", _WRITES, "how much it keeps", "everything"),
)
_START = ("start", "start_stream_cut", "startingTimestamp", "startingEventTime")
_END = ("end", "end_stream_cut", "endingTimestamp", "endingEventTime")
_SEVERAL = ("streams", "stream_pattern", "stream_tag")
_BY_BYTES, _BY_EVENTS = (f"default_segment_target_rate_{what}_per_sec" for what in ("bytes", "events"))
_OF_EVENTS = ("slice", "routing_keys", "direct", "on_damage", "ordered", "max_partitions", "min_partition_bytes")
EXCLUDED = {  # beside an option
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
    "metadata": (*_START, *_END, *_OF_EVENTS, "columns", "value_format"),  # which has no events
    "groupId": ("stream_pattern", "stream_tag"),
    "startAt": ("slice", *_START),
    "skip_truncated": ("failOnDataLoss",),
    "cutover": ("replay_of", *_SEVERAL),
    "replay_of": _SEVERAL,
    "delivery": ("exactly_once",),
    _BY_BYTES: (_BY_EVENTS,),
    "default_retention_duration_milliseconds": ("default_retention_size_bytes",),
}
NEEDED = {  # by an option
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
NUMBERS = {  # the least and the most
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
    "a restarted query would find another cut for a moment still to come: end it at a cut or a bookmark with 'end', or "
    "read the slice as a batch"
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
    "subscribe": "name streams with 'scope' and 'stream' or 'streams'",
    "subscribepattern": "give 'scope' and 'stream_pattern'",
    "assign": "name streams with 'scope' and 'stream' or 'streams'",
    "kafka.bootstrap.servers": "give 'controller'",
    "path": "a stream is named by 'scope' and 'stream': leave out the path",
    "checkpointlocation": "it belongs to writeStream",
    "queryname": "it belongs to writeStream",
}
# what Spark's own engine reads from the options of a streaming query, which it hands on
_SPARKS = {Use.WRITE_STREAM: ("checkpointlocation", "queryname", "asyncprogresstracking")}
# what CREATE TABLE adds to its options
_TABLES = ("owner", "provider", "option.", "external", "location", "is_managed_location")


def checked(given: Mapping[str, str], use: Use, format_: SparkFormat) -> dict[str, str]:
    """The options by their first names in small letters, without Spark's own; InvalidArgumentError unless each has an
    effect in this use, beside the others."""
    found: dict[str, str] = {}
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
        if option.key in found:
            both = " and ".join(repr(other) for other in (option.name, *option.also))
            raise InvalidArgumentError(f"the options {both} mean the same: give one of them")
        if not value.strip():
            raise InvalidArgumentError(f"the option {name!r} is empty: give it a value, or leave it out")
        found[option.key] = value
    for name, others in EXCLUDED.items():
        for other in others if name.lower() in found else ():
            is_ignored = format_ is SparkFormat.PRAVEGA and BY_KEY[other.lower()].is_pravegas
            if other.lower() in found and not is_ignored:
                raise InvalidArgumentError(f"the options {name!r} and {other!r} exclude each other")
    for name, other in NEEDED.items():
        if name.lower() in found and other.lower() not in found:
            raise InvalidArgumentError(f"the option {name!r} needs {other!r}: say .option({other!r}, ...)")
    return found


def _without_effect(name: str, use: Use) -> str:
    where = " and ".join(sorted(other.value for other in BY_KEY[name].uses))
    more = f". {_INSTEAD[name]}" if name in _INSTEAD else ""
    return f"the option {name!r} has no effect with {use.value}: it is one of {where}{more}"


def _unknown(name: str) -> str:
    if name in _INSTEAD:
        return f"the option {name!r} has no effect: {_INSTEAD[name]}"
    near = difflib.get_close_matches(name, BY_KEY, 1, 0.7)
    if near:
        return f"there is no option {name!r}: did you mean {near[0]!r}?"
    return f"there is no option {name!r}: there are {', '.join(option.name for option in OPTIONS)}"


def default_in(option: SparkOption, format_: SparkFormat) -> str:
    if format_ is SparkFormat.PRAVEGA and option.pravega_default is not None:
        return option.pravega_default
    return option.default


def uses_text(option: SparkOption) -> str:
    """Where it has an effect: `read, readStream`.

    >>> uses_text(BY_KEY["slice"])
    'read, readStream'
    """
    return ", ".join(use.value.removeprefix("spark.") for use in Use if use in option.uses)


def markdown() -> str:
    lines = ['| option | in | default | `format("pravega")` | meaning |', "|---|---|---|---|---|"]
    for option in OPTIONS:
        names = ", ".join(f"`{name}`" for name in (option.name, *option.also))
        other = option.pravega_default or ("the same" if option.is_pravegas else "nadi's own")
        lines.append(f"| {names} | {uses_text(option)} | {option.default or '–'} | {other} | {option.meaning} |")
    return "\n".join(lines) + "\n"
