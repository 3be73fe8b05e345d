"""Parse and check the options of one read or write. Mistakes are reported at once, naming the option: options without
effect are rejected with alternatives, and so are contradictory ones. `table` defines the values of each.

Spark passes everything the user set, including its own settings of a sink's query, which are ignored, and a path if one
was given to load, save or start. Programs written for Pravega's connector pass any of its options anywhere, so
`format("pravega")` ignores those too.

`StreamSelection` describes the streams of a read of more than one: by name, by pattern or by tag.

>>> from nadi.spark.options.parsed import several_of
>>> several_of({"streams": "meters, doors"})
StreamSelection(names=('doors', 'meters'), pattern=None, tag=None)
>>> several_of({"stream_pattern": "meters-.*"}).takes("meters-7")
True
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import msgspec

from nadi.client.control.policy import RetentionPolicy, ScalingPolicy
from nadi.client.control.security import Basic, Bearer, ClientCertificate, Credentials, split_uri
from nadi.client.reading.boundary import check_cut
from nadi.client.reading.damage import RAISE, SKIP, OnDamage
from nadi.client.scan.connection import ConnectionSettings
from nadi.client.stream_cuts.timestamps import BY_EVENT_TIME, HEAD, TAIL, event_moment, is_moment, moment_ms, moment_of
from nadi.client.values.options import ReadTarget, ValueOptions, value_options
from nadi.defaults import DEFAULT_URI
from nadi.errors import InvalidArgumentError, InvalidStreamCutError
from nadi.limits import MIB, NAME_MAX_CHARS, PREFIXED_NAME_MAX_CHARS, SPARK_STREAMS
from nadi.model.delivery import AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE, Guarantee, check_delivery
from nadi.model.streamcut import StreamCut
from nadi.naming import USUAL, USUAL_UNIT, check_name, is_number
from nadi.spark.columns import columns_of, event_time_unit
from nadi.spark.options.table import BY_KEY, CHOICES, NUMBERS, SparkFormat, Use, checked, default_in


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamAddress:
    controller: ConnectionSettings
    scope: str
    stream: str


class SparkOptions(dict[str, str]):
    """The given options by their primary names in lower case. format_: supplies the defaults."""

    def __init__(self, options: Mapping[str, str], format_: SparkFormat = SparkFormat.NADI) -> None:
        super().__init__(options)
        self.format = format_

    @classmethod
    def checked(cls, given: Mapping[str, str], use: Use, format_: SparkFormat) -> SparkOptions:
        """Check the options and drop Spark's own; InvalidArgumentError for options without effect or in conflict."""
        return cls(checked(given, use, format_), format_)

    def needed(self, name: str) -> str:
        if name not in self:
            raise InvalidArgumentError(f"the option {name!r} is missing: add .option({name!r}, ...)")
        return check_name(name, self[name])

    def _text(self, name: str) -> str:
        option = BY_KEY[name.lower()]
        return self.get(option.key) or default_in(option, self.format)

    def flag(self, name: str) -> bool:
        text = self._text(name).lower()
        if text not in ("true", "false"):
            raise InvalidArgumentError(f"the option {name!r} is {text!r}: it must be true or false")
        return text == "true"

    def number(self, name: str) -> int | None:
        """Return the option's number; None if neither it nor a default is given."""
        if name.lower() not in self and not is_number(self._text(name)):
            return None
        text, (low, high) = self._text(name), NUMBERS[name]
        if not is_number(text) or not low <= int(text) <= high:
            raise InvalidArgumentError(
                f"the option {name!r} is {text[:40]!r}: it must be a number from {low:,} to {high:,}"
            )
        return int(text)

    def count(self, name: str) -> int:
        number = self.number(name)
        assert number is not None, "the option has a default"
        return number

    def choice(self, name: str) -> str:
        """Return the chosen value of the option, or "" if neither it nor a default is given."""
        text, choices = self._text(name), CHOICES[name]
        for spelt in (text, text.lower()):
            if spelt in choices or not spelt:
                return spelt
        raise InvalidArgumentError(f"the option {name!r} is {text[:40]!r}: it must be {', '.join(choices)}")

    # --- common to reads and writes ---------------------------------------------------

    def connection(self) -> ConnectionSettings:
        uri = self.get("controller", DEFAULT_URI)
        split_uri(uri)  # raises if it isn't valid
        login: Basic | Bearer | None = None
        if "auth_user" in self:
            login = Basic(self["auth_user"], self["auth_password"])
        elif "auth_token" in self:
            login = Bearer(self["auth_token"])
        credentials: Credentials | None = login
        if "auth_certificate" in self:
            credentials = ClientCertificate(self["auth_certificate"], self["auth_key"], login)
        return ConnectionSettings(uri, credentials, self.get("trust_store"), self.flag("validate_host_name"))

    def value(self) -> ValueOptions | None:
        """Return the encoding of values; None if events aren't parsed or encoded."""
        version = self.number("value_version")
        return value_options(self.get("value_format"), self.get("value_schema"), version, self.get("value_mode"))

    def delivery(self) -> Guarantee:
        try:
            return check_delivery(self.get("delivery", EXACTLY_ONCE).lower())
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"the option 'delivery': {error}") from None


@dataclass(frozen=True, slots=True)
class StreamSelection:
    """Several streams of a scope: by name, or all whose whole name matches a regular expression or that have a tag,
    including those created later."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    tag: str | None = None

    def takes(self, name: str) -> bool:
        """Return whether the stream may belong to it, judging by its name."""
        if self.names:
            return name in self.names
        return self.pattern is None or re.fullmatch(self.pattern, name) is not None

    def __str__(self) -> str:
        if self.names:
            return f"'streams' = {', '.join(self.names)}"
        return f"'stream_pattern' = {self.pattern}" if self.pattern is not None else f"'stream_tag' = {self.tag}"


def several_of(options: Mapping[str, str]) -> StreamSelection | None:
    """Return the streams that the options select; None if they name a single one."""
    if "streams" in options:
        return StreamSelection(names=_names(options["streams"]))
    if "stream_tag" in options:
        return StreamSelection(tag=options["stream_tag"])
    pattern = options.get("stream_pattern")
    if pattern is None:
        return None
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidArgumentError(
            f"the option 'stream_pattern' is {pattern[:60]!r}, which isn't a regular expression: {error}"
        ) from None
    return StreamSelection(pattern=pattern)


def _names(text: str) -> tuple[str, ...]:
    if text.lstrip().startswith("["):
        try:
            names = msgspec.json.decode(text, type=list[str])
        except msgspec.DecodeError:
            raise InvalidArgumentError(
                f"the option 'streams' is {text[:60]!r}: it must be comma-separated names, or a JSON list"
            ) from None
    else:
        names = [name.strip() for name in text.split(",")]
    for name in names:
        check_name("stream", name)
    if not names or len(set(names)) != len(names):
        raise InvalidArgumentError(
            f"the option 'streams' is {text[:60]!r}: it must list one or more streams, each once"
        )
    if len(names) > SPARK_STREAMS:
        raise InvalidArgumentError(
            f"the option 'streams' lists {len(names):,} streams, more than the limit of {SPARK_STREAMS:,}"
        )
    return tuple(sorted(names))


_DELAY = re.compile(r"([0-9]{1,9}) ?(ms|s|m|min|h|d)", re.ASCII)
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_NAMED_CUTS = {"earliest": HEAD, "unbounded": None, "latest": TAIL, HEAD: HEAD, TAIL: TAIL}  # keywords for cuts
AUTO, ALWAYS, NEVER = CHOICES["direct"]
Place = StreamCut | str | int
_EVENT_TIMES = {"start": "startingEventTime", "end": "endingEventTime"}
_MS = re.compile(r"-?\d{5,18}")
_TIMESTAMPS = {"start": "startingTimestamp", "end": "endingTimestamp"}  # named as in Spark's Kafka source


@dataclass(frozen=True, slots=True)
class Admission:
    """Limits of a batch; None means no limit.

    max_bytes, max_events: in total; max_segment_bytes: of one segment. min_events: the batch waits until that many
    events are available, or max_delay_s have passed since the previous batch.
    """

    max_bytes: int | None = None
    max_events: int | None = None
    max_segment_bytes: int | None = None
    min_events: int | None = None
    max_delay_s: float = 900.0


NO_LIMITS = Admission()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions(StreamAddress):
    """The options of a read.

    start, end: a cut, text for `StreamCuts.named`, or a time in ms since 1970; None if not given. several: the streams,
    where `stream` is "", and starts, ends: the positions of individual streams. slice_name: the slice to read, instead
    of start and end. routing_keys: read only segments that can contain them. admission: limits of a query's batches.
    group_id: the reader group whose position follows a query's commits; starts_at_group: a new query starts at it.
    output: scope and name of the stream that the query writes. cutover: the name under which another query can take
    over; replay_of: that of the query to take over from. mirror: a name, and the checkpoint folder mirrored under it.
    delivery: with at most once, the group's position moves past a batch before its events are handed out.
    skip_truncated: a streaming query continues after truncated events. on_damage: damaged data fails its task, or is
    skipped. direct: whether tasks read tier 2. metadata: read this instead of events. value, target: the encoding of
    values, the latter after planning. ordered: whether one task reads all segments of a key; None: in a streaming query
    one task reads a segment, in a batch any number. event_time_unit: of the times that writers note.
    """

    start: Place | None = None
    end: Place | None = None
    several: StreamSelection | None = None
    starts: Mapping[str, Place] = field(default_factory=dict)
    ends: Mapping[str, Place] = field(default_factory=dict)
    slice_name: str | None = None
    routing_keys: tuple[str, ...] | None = None
    metadata: str | None = None
    on_damage: OnDamage = RAISE
    skip_truncated: bool = False
    admission: Admission = NO_LIMITS
    group_id: str | None = None
    starts_at_group: bool = False
    output: tuple[str, str] | None = None
    cutover: str | None = None
    replay_of: str | None = None
    mirror: tuple[str, str] | None = None
    delivery: Guarantee = EXACTLY_ONCE
    direct: str = AUTO
    columns: tuple[str, ...] = USUAL
    event_time_unit: str = USUAL_UNIT
    value: ValueOptions | None = None
    target: ReadTarget | None = None
    ordered: bool | None = None
    max_partitions: int = 16
    min_partition_bytes: int = MIB

    @classmethod
    def from_spark(
        cls, given: Mapping[str, str], use: Use = Use.READ, format_: SparkFormat = SparkFormat.NADI
    ) -> ReadOptions:
        """Parse options; InvalidArgumentError for invalid ones, and for those without effect."""
        options = SparkOptions.checked(given, use, format_)
        metadata = options.choice("metadata") or None
        scope, several = options.needed("scope"), several_of(options)
        if several is not None:
            stream = ""
        else:
            stream = options.get("stream", "") if metadata == "Streams" else options.needed("stream")
        starts, ends = (_of_each(options, name, scope, several) for name in ("start", "end"))
        start = None if starts else _position(options, "start", scope, stream)
        is_default = start is None and not starts and "start_stream_cut" not in options
        if is_default and format_ is SparkFormat.PRAVEGA and use is Use.READ_STREAM:
            start = TAIL
        columns = USUAL if metadata else columns_of(options)
        return cls(
            controller=options.connection(),
            scope=scope,
            stream=stream,
            start=start,
            end=None if ends else _position(options, "end", scope, stream),
            several=several,
            starts=starts,
            ends=ends,
            slice_name=_name(options, "slice"),
            routing_keys=_routing_keys(options),
            metadata=metadata,
            on_damage=SKIP if options.choice("on_damage") == SKIP else RAISE,
            direct=options.choice("direct"),
            skip_truncated=options.flag("skip_truncated") or not options.flag("failOnDataLoss"),
            admission=_admission(options),
            group_id=_name(options, "groupid", "reader group", PREFIXED_NAME_MAX_CHARS),
            starts_at_group=bool(options.choice("startAt")),
            output=_output(options, scope),
            columns=columns,
            event_time_unit=event_time_unit(options, columns),
            value=options.value(),
            ordered=options.flag("ordered") if "ordered" in options else None,
            cutover=_name(options, "cutover", "query"),
            replay_of=_name(options, "replay_of", "query"),
            mirror=_mirror(options),
            delivery=_read_delivery(options),
            max_partitions=options.count("max_partitions"),
            min_partition_bytes=options.count("min_partition_bytes"),
        )

    def of_stream(self, stream: str) -> ReadOptions:
        """Return the options of one of several streams."""
        if self.several is None:
            return self
        start, end = self.starts.get(stream, self.start), self.ends.get(stream, self.end)
        return replace(self, stream=stream, several=None, start=start, end=end, starts={}, ends={})


def _of_each(options: Mapping[str, str], name: str, scope: str, several: StreamSelection | None) -> dict[str, Place]:
    """Return the positions of individual streams, if `start` or `start_stream_cut` (or `end`, `end_stream_cut`) is a
    JSON object."""
    for given in (name, f"{name}_stream_cut"):
        text = options.get(given, "")
        is_object = text.lstrip().startswith("{")
        if several is None or (not is_object and (text.lower() in (*_NAMED_CUTS, "") or is_moment(text))):
            continue
        try:
            positions = msgspec.json.decode(text, type=dict[str, str])
        except msgspec.DecodeError:
            raise InvalidArgumentError(
                f"the option {given!r} is {text[:60]!r}, a position in one stream: for several streams it must be "
                f'{HEAD}, {TAIL}, a time, or a JSON object with a position for each, such as {{"meters": "{TAIL}"}}'
            ) from None
        values: dict[str, Place] = {}
        for stream, position in positions.items():
            if not several.takes(check_name("stream", stream)):
                raise InvalidArgumentError(
                    f"the option {given!r} has a position for {stream}, which {several} doesn't select"
                )
            value = _position({given: position}, name, scope, stream)
            if value is not None:
                values[stream] = value
        return values
    return {}


def _name(options: SparkOptions, option: str, kind: str = "", most_chars: int = NAME_MAX_CHARS) -> str | None:
    return check_name(kind or option, options[option], max_chars=most_chars) if option in options else None


def _output(options: Mapping[str, str], scope: str) -> tuple[str, str] | None:
    text = options.get("output")
    if text is None:
        return None
    before, slash, name = text.rpartition("/")
    return check_name("scope", before) if slash else scope, check_name("stream", name)


def _mirror(options: Mapping[str, str]) -> tuple[str, str] | None:
    if "mirror_checkpoint" not in options:
        return None
    folder, name = options["mirror_checkpoint"], options["mirror_name"]
    scheme, colon, _ = folder.partition(":")
    if colon and scheme != "file":
        raise InvalidArgumentError(
            f"the option 'mirror_checkpoint' is {folder[:60]!r}: use a folder of the driver's machine, as no other can "
            "be mirrored"
        )
    return check_name("mirror", name), folder


def _read_delivery(options: SparkOptions) -> Guarantee:
    delivery = options.delivery()
    if delivery == AT_LEAST_ONCE:
        raise InvalidArgumentError(
            "the option 'delivery' of a read must be exactly-once (each event is in one batch) or at-most-once (no "
            "batch is repeated): choose at-least-once for the write"
        )
    if delivery == AT_MOST_ONCE:
        if "groupid" not in options:
            raise InvalidArgumentError(
                "the option 'delivery' = at-most-once needs 'groupId', which stores the position"
            )
        for other in ("output", "cutover", "replay_of"):
            if other in options:
                raise InvalidArgumentError(f"the option 'delivery' = at-most-once can't be combined with {other!r}")
    return delivery


def _routing_keys(options: Mapping[str, str]) -> tuple[str, ...] | None:
    text = options.get("routing_keys")
    if text is None:
        return None
    try:
        keys = msgspec.json.decode(text, type=list[str])
    except msgspec.DecodeError:
        raise InvalidArgumentError(
            f"the option 'routing_keys' is {text[:60]!r}: it must be a JSON list of strings"
        ) from None
    if not keys:
        raise InvalidArgumentError(
            "the option 'routing_keys' is an empty list: add a key, or remove the option to read all"
        )
    return tuple(keys)


def _position(options: Mapping[str, str], name: str, scope: str, stream: str) -> Place | None:
    """Return the position given by `start` (or `end`), `start_stream_cut` or `startingTimestamp`."""
    timestamp, by_event_time = _TIMESTAMPS[name], _EVENT_TIMES[name]
    if timestamp.lower() in options:
        return _moment(timestamp, options[timestamp.lower()])
    if by_event_time.lower() in options:
        return _event_place(by_event_time, options[by_event_time.lower()])
    text = options.get(name)
    if text is None:
        return _cut(options, f"{name}_stream_cut", scope, stream)
    return text.lower() if text.lower() in (HEAD, TAIL) else text


def _event_place(name: str, text: str) -> str:
    """Convert an event time to a position: ISO 8601, a date, or ms since 1970."""
    try:
        time = datetime.fromtimestamp(int(text) / 1000, UTC).isoformat() if _MS.fullmatch(text) else text
        event_moment(position := f"{BY_EVENT_TIME}{time}")
    except (InvalidArgumentError, ValueError, OverflowError) as error:
        raise InvalidArgumentError(f"the option {name!r}: {error}; or give milliseconds since 1970") from None
    return position


def _moment(name: str, text: str) -> int:
    try:
        return moment_ms(int(text) if is_number(text) else moment_of(text[:100]))
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"the option {name!r}: {error}; or give milliseconds since 1970") from None


def _cut(options: Mapping[str, str], name: str, scope: str, stream: str) -> StreamCut | str | None:
    text = options.get(name)
    if text is None:
        return None
    if text.strip().lower() in _NAMED_CUTS:
        return _NAMED_CUTS[text.strip().lower()]
    try:
        cut = StreamCut.from_text(text)
    except InvalidStreamCutError as error:
        raise InvalidStreamCutError(
            f"the option {name!r} is not one of {', '.join(_NAMED_CUTS)}, and {error}"
        ) from None
    check_cut(cut, scope, stream)
    return cut


def _admission(options: SparkOptions) -> Admission:
    most, least = options.number("maxOffsetsPerTrigger"), options.number("minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise InvalidArgumentError(
            f"the option 'minOffsetsPerTrigger' is {least:,}, more than 'maxOffsetsPerTrigger', {most:,}"
        )
    size, of_segment = options.number("approx_bytes_per_trigger"), options.number("maxBytesPerSegment")
    text = options.get("maxtriggerdelay", "15m")  # the default of Spark's Kafka source
    delay = _DELAY.fullmatch(text.strip())
    if delay is None:
        raise InvalidArgumentError(
            f"the option 'maxTriggerDelay' is {text[:40]!r}: it must be a duration such as 500ms, 30s, 15m, 2h"
        )
    return Admission(size, most, of_segment, least, int(delay[1]) * _UNITS_S[delay[2]])


_APP_ID_MAX_BYTES = 256
_ONE_SEGMENT = ScalingPolicy.fixed(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions(StreamAddress):
    """The options of a write.

    routing_key_column: None means "routing_key", if that column exists. delivery: exactly once uses transactions.
    waits_for_readers: a write ends once its events are readable, polled every poll_s. creates_scope, creates_stream:
    whether missing ones are created, the stream with scaling and retention. save_mode: what to do if the stream has
    events. value, target: the encoding of values, the latter after planning. truncates: existing events are dropped.
    application: the job and the number of its write, which is written once. takes_other_columns: rows may have columns
    that are ignored, as in Pravega's connector.
    """

    event_column: str = "event"
    value: ValueOptions | None = None
    target: ReadTarget | None = None
    routing_key_column: str | None = None
    delivery: Guarantee = EXACTLY_ONCE
    transaction_timeout_ms: int = 24 * 3600 * 1000
    waits_for_readers: bool = True
    poll_s: float = 0.005
    creates_scope: bool = False
    creates_stream: bool = False
    scaling: ScalingPolicy = _ONE_SEGMENT
    retention: RetentionPolicy | None = None
    save_mode: str = "append"
    truncates: bool = False
    application: tuple[str, int] | None = None
    takes_other_columns: bool = False

    @classmethod
    def from_spark(
        cls, given: Mapping[str, str], use: Use = Use.WRITE, format_: SparkFormat = SparkFormat.NADI
    ) -> WriteOptions:
        """Parse options; InvalidArgumentError for invalid ones, and for those without effect."""
        options = SparkOptions.checked(given, use, format_)
        delivery = options.delivery() if options.flag("exactly_once") else AT_LEAST_ONCE
        value = options.value()
        creates_stream = options.flag("allow_create_stream")
        if not creates_stream and format_ is SparkFormat.NADI:
            for name in options:
                if name.startswith("default_"):
                    raise InvalidArgumentError(
                        f"the option {name!r} only affects new streams: add "
                        ".option('allow_create_stream', 'true') to create the stream"
                    )
        return cls(
            controller=options.connection(),
            scope=options.needed("scope"),
            stream=options.needed("stream"),
            event_column=options.get("event_attribute_name", "event" if value is None else "value"),
            value=value,
            routing_key_column=options.get("routing_key_attribute_name"),
            delivery=delivery,
            transaction_timeout_ms=options.count("transaction_timeout_ms"),
            waits_for_readers=options.flag("read_after_write_consistency"),
            poll_s=options.count("transaction_status_poll_interval_ms") / 1000,
            creates_scope=options.flag("allow_create_scope"),
            creates_stream=creates_stream,
            scaling=_scaling(options),
            retention=_retention(options),
            save_mode=options.choice("save_mode"),
            truncates=options.flag("truncate"),
            application=_application(options, delivery, use),
            takes_other_columns=format_ is SparkFormat.PRAVEGA,
        )


def _application(options: SparkOptions, delivery: Guarantee, use: Use) -> tuple[str, int] | None:
    if "txnappid" not in options:
        if delivery == AT_MOST_ONCE and use is Use.WRITE:
            raise InvalidArgumentError(
                "the option 'delivery' = at-most-once needs 'txnAppId' and 'txnVersion', which identify a repeated "
                "write. With exactly-once, the default, all rows are written or none"
            )
        return None
    name, version = options["txnappid"], options.count("txnVersion")
    if len(name.encode()) > _APP_ID_MAX_BYTES:
        raise InvalidArgumentError(f"the option 'txnAppId' has more than {_APP_ID_MAX_BYTES} bytes: shorten it")
    if delivery == AT_LEAST_ONCE:
        raise InvalidArgumentError("the option 'txnAppId' has no effect with 'delivery' = at-least-once")
    return name, version


def _scaling(options: SparkOptions) -> ScalingPolicy:
    segments, factor = options.count("default_num_segments"), options.count("default_scale_factor")
    by_bytes = options.number("default_segment_target_rate_bytes_per_sec")
    by_events = options.number("default_segment_target_rate_events_per_sec")
    if by_bytes is not None:
        return ScalingPolicy.by_data_rate(by_bytes // 1024, factor, segments)
    if by_events is not None:
        return ScalingPolicy.by_event_rate(by_events, factor, segments)
    if "default_scale_factor" in options and options.format is not SparkFormat.PRAVEGA:
        raise InvalidArgumentError("the option 'default_scale_factor' has no effect without a target rate: give one")
    return ScalingPolicy.fixed(segments)


def _retention(options: SparkOptions) -> RetentionPolicy | None:
    by_time = options.number("default_retention_duration_milliseconds")
    by_size = options.number("default_retention_size_bytes")
    if by_time is not None:
        return RetentionPolicy.by_time(by_time)
    return RetentionPolicy.by_size(by_size) if by_size is not None else None
