"""The options of a write, parsed and checked. Mistakes are reported at once, with the option's name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nadi.client.values.options import Target, ValueOptions
from nadi.errors import InvalidArgumentError
from nadi.limits import TXN_LEASE_MAX_MS, TXN_LEASE_MIN_MS
from nadi.model.delivery import AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE, Guarantee
from nadi.naming import check_name
from nadi.spark.options.creation import NO_CREATION, Creation, creation_of
from nadi.spark.options.names import checked
from nadi.spark.options.table import Format, Use
from nadi.spark.options.value_format import value_options_of
from nadi.spark.options.values import delivery_of, flag, needed, number
from nadi.spark.options.where import Where, connection_of

DAY_MS = 24 * 3600 * 1000
SAVE_MODES = ("append", "errorifexists", "ignore")
_APP_ID_MAX_BYTES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions(Where):
    """What a write was given.

    routing_key_column: None means "routing_key" if there is such a column. delivery: exactly once writes in
    transactions. waits_for_readers: a write ends once its events can be read, which is asked for every poll_s.
    creation: what to do if the stream to be written doesn't exist. save_mode: what to do if it has events; one of
    SAVE_MODES. value, target: what the rows' values are encoded as, the second once that is planned. truncates: what it
    had is dropped. application: the job and the number of its write, which count once. takes_other_columns: the rows
    may have some that mean nothing, as with Pravega's connector.
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
        options = checked(given, use, format_)
        delivery = _delivery(options)
        value = value_options_of(options)
        return cls(
            controller=connection_of(options),
            scope=check_name("scope", needed(options, "scope")),
            stream=check_name("stream", needed(options, "stream")),
            event_column=options.get("event_attribute_name", "event" if value is None else "value"),
            value=value,
            routing_key_column=options.get("routing_key_attribute_name"),
            delivery=delivery,
            transaction_timeout_ms=number(
                options, "transaction_timeout_ms", DAY_MS, TXN_LEASE_MIN_MS, TXN_LEASE_MAX_MS
            ),
            waits_for_readers=flag(options, "read_after_write_consistency", True),
            poll_s=number(options, "transaction_status_poll_interval_ms", 5, 1, 60_000) / 1000,
            creation=creation_of(options, format_),
            save_mode=_save_mode(options),
            truncates=flag(options, "truncate", False),
            application=_application(options, delivery, use),
            takes_other_columns=format_ is Format.PRAVEGA,
        )


def _save_mode(options: Mapping[str, str]) -> str:
    mode = options.get("save_mode", "append").lower()
    if mode not in SAVE_MODES:
        raise InvalidArgumentError(f"the option 'save_mode' is {mode[:40]!r}: it must be {', '.join(SAVE_MODES)}")
    return mode


def _delivery(options: Mapping[str, str]) -> Guarantee:
    if "exactly_once" not in options:
        return delivery_of(options)
    if "delivery" in options:
        raise InvalidArgumentError("the options 'delivery' and 'exactly_once' exclude each other: give 'delivery'")
    return EXACTLY_ONCE if flag(options, "exactly_once", True) else AT_LEAST_ONCE


def _application(options: Mapping[str, str], delivery: Guarantee, use: Use) -> tuple[str, int] | None:
    if "txnappid" not in options and "txnversion" not in options:
        if delivery == AT_MOST_ONCE and use is Use.WRITE:
            raise InvalidArgumentError(
                "the option 'delivery' as at-most-once needs 'txnAppId' and 'txnVersion', by which a write is known to "
                "have begun before. As exactly-once, the default, all rows are written or none"
            )
        return None
    name = needed(options, "txnappid", "txnAppId")
    version = number(options, "txnVersion", -1, 0, (1 << 63) - 1)
    if version < 0:
        raise InvalidArgumentError("the option 'txnVersion' is missing: 'txnAppId' needs it beside it")
    if len(name.encode()) > _APP_ID_MAX_BYTES:
        raise InvalidArgumentError(f"the option 'txnAppId' has over {_APP_ID_MAX_BYTES} bytes")
    if delivery == AT_LEAST_ONCE:
        raise InvalidArgumentError("the option 'txnAppId' has no effect with 'delivery' as at-least-once")
    return name, version
