"""The options of a write, parsed and checked. Mistakes are reported at once, with the option's name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nadi.client.control.policy import RetentionPolicy, ScalingPolicy
from nadi.client.values.options import Target, ValueOptions
from nadi.errors import InvalidArgumentError
from nadi.model.delivery import AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE, Guarantee
from nadi.naming import check_name
from nadi.spark.options.given import Given, Where
from nadi.spark.options.table import Format, Use

DAY_MS = 24 * 3600 * 1000
_APP_ID_MAX_BYTES = 256


@dataclass(frozen=True, slots=True)
class Creation:
    """scope, stream: whether they are made if they are missing; the stream with these policies."""

    scope: bool
    stream: bool
    scaling: ScalingPolicy
    retention: RetentionPolicy | None


NO_CREATION = Creation(False, False, ScalingPolicy.fixed(1), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions(Where):
    """What a write was given.

    routing_key_column: None means "routing_key" if there is such a column. delivery: exactly once writes in
    transactions. waits_for_readers: a write ends once its events can be read, which is asked for every poll_s.
    creation: what to do if the stream to be written doesn't exist. save_mode: what to do if it has events. value,
    target: what the rows' values are encoded as, the second once that is planned. truncates: what it had is dropped.
    application: the job and the number of its write, which count once. takes_other_columns: the rows may have some that
    mean nothing, as with Pravega's connector.
    """

    event_column: str = "event"
    value: ValueOptions | None = None
    target: Target | None = None
    routing_key_column: str | None = None
    delivery: Guarantee = EXACTLY_ONCE
    transaction_timeout_ms: int = DAY_MS
    waits_for_readers: bool = True
    poll_s: float = 0.005
    creation: Creation = NO_CREATION
    save_mode: str = "append"
    truncates: bool = False
    application: tuple[str, int] | None = None
    takes_other_columns: bool = False

    @classmethod
    def from_spark(cls, given: Mapping[str, str], use: Use = Use.WRITE, format_: Format = Format.NADI) -> WriteOptions:
        """Parse options; InvalidArgumentError for invalid ones, and for those that would have no effect."""
        options = Given.checked(given, use, format_)
        delivery = _delivery(options)
        value = options.value()
        return cls(
            controller=options.connection(),
            scope=check_name("scope", options.needed("scope")),
            stream=check_name("stream", options.needed("stream")),
            event_column=options.get("event_attribute_name", "event" if value is None else "value"),
            value=value,
            routing_key_column=options.get("routing_key_attribute_name"),
            delivery=delivery,
            transaction_timeout_ms=options.count("transaction_timeout_ms"),
            waits_for_readers=options.flag("read_after_write_consistency"),
            poll_s=options.count("transaction_status_poll_interval_ms") / 1000,
            creation=_creation(options),
            save_mode=options.choice("save_mode"),
            truncates=options.flag("truncate"),
            application=_application(options, delivery, use),
            takes_other_columns=format_ is Format.PRAVEGA,
        )


def _delivery(options: Given) -> Guarantee:
    return options.delivery() if options.flag("exactly_once") else AT_LEAST_ONCE


def _application(options: Given, delivery: Guarantee, use: Use) -> tuple[str, int] | None:
    if "txnappid" not in options:
        if delivery == AT_MOST_ONCE and use is Use.WRITE:
            raise InvalidArgumentError(
                "the option 'delivery' as at-most-once needs 'txnAppId' and 'txnVersion', by which a write is known to "
                "have begun before. As exactly-once, the default, all rows are written or none"
            )
        return None
    name, version = options["txnappid"], options.count("txnVersion")
    if len(name.encode()) > _APP_ID_MAX_BYTES:
        raise InvalidArgumentError(f"the option 'txnAppId' has over {_APP_ID_MAX_BYTES} bytes")
    if delivery == AT_LEAST_ONCE:
        raise InvalidArgumentError("the option 'txnAppId' has no effect with 'delivery' as at-least-once")
    return name, version


def _creation(options: Given) -> Creation:
    is_pravegas, makes_stream = options.format is Format.PRAVEGA, options.flag("allow_create_stream")
    for name in options:
        if name.startswith("default_") and not makes_stream and not is_pravegas:
            raise InvalidArgumentError(
                f"the option {name!r} has no effect: it is for streams that are created; say "
                ".option('allow_create_stream', 'true')"
            )
    return Creation(
        options.flag("allow_create_scope"),
        makes_stream,
        _scaling(options, is_pravegas=is_pravegas),
        _retention(options),
    )


def _scaling(options: Given, *, is_pravegas: bool) -> ScalingPolicy:
    segments, factor = options.count("default_num_segments"), options.count("default_scale_factor")
    by_bytes = options.number("default_segment_target_rate_bytes_per_sec")
    by_events = options.number("default_segment_target_rate_events_per_sec")
    if by_bytes is not None:
        return ScalingPolicy.by_data_rate(by_bytes // 1024, factor, segments)
    if by_events is not None:
        return ScalingPolicy.by_event_rate(by_events, factor, segments)
    if "default_scale_factor" in options and not is_pravegas:
        raise InvalidArgumentError("the option 'default_scale_factor' has no effect without a target rate: give one")
    return ScalingPolicy.fixed(segments)


def _retention(options: Given) -> RetentionPolicy | None:
    by_time = options.number("default_retention_duration_milliseconds")
    by_size = options.number("default_retention_size_bytes")
    if by_time is not None:
        return RetentionPolicy.by_time(by_time)
    return RetentionPolicy.by_size(by_size) if by_size is not None else None
