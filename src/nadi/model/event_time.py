"""Event time: the field of events that holds their time, as a stream's configuration names it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from nadi.errors import InvalidArgumentError
from nadi.model.field_path import parse_path
from nadi.naming import PER_SECOND

TimeFormat = Literal["json", "msgpack"]
TIME_FORMATS: tuple[TimeFormat, ...] = get_args(TimeFormat)


@dataclass(frozen=True, slots=True)
class EventTime:
    """The field that holds an event's time: ISO 8601 text, or a number of `unit` since 1970.

    path: see `nadi.model.field_path`. unit: s, ms, us or ns. format: the format of events. InvalidArgumentError.

    >>> str(EventTime("meta.read_at", "ms"))
    'json ms meta.read_at'
    """

    path: str
    unit: str = "s"
    format: TimeFormat = "json"

    def __post_init__(self) -> None:
        parse_path(self.path, "the field of the event time")
        for label, value, allowed in (("unit", self.unit, (*PER_SECOND,)), ("format", self.format, TIME_FORMATS)):
            if value not in allowed:
                raise InvalidArgumentError(f"the {label} of an event time can't be {value!r}: use {', '.join(allowed)}")

    def __str__(self) -> str:
        return f"{self.format} {self.unit} {self.path}"

    @classmethod
    def parse(cls, text: str) -> EventTime:
        """Parse the output of `str`; InvalidArgumentError."""
        form, _, unit_and_path = text.partition(" ")
        unit, _, path = unit_and_path.partition(" ")
        return cls(path, unit, form)  # type: ignore[arg-type]
