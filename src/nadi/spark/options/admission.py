"""How much one batch of a streaming query may hold, and how much must be there before there is one.

>>> from nadi.spark.options.admission import admission_of
>>> admission_of({"minoffsetspertrigger": "100", "maxtriggerdelay": "30s"})
Admission(max_bytes=None, max_events=None, max_segment_bytes=None, min_events=100, max_delay_s=30.0)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from nadi.errors import InvalidArgumentError
from nadi.spark.options.values import number

_DELAY = re.compile(r"([0-9]{1,9}) ?(ms|s|m|min|h|d)", re.ASCII)
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_QUARTER_S = 900.0  # as Spark's source for Kafka has it


@dataclass(frozen=True, slots=True)
class Admission:
    """max_bytes, max_events: of a batch; max_segment_bytes: of one segment in a batch; None means no limit. With
    min_events, a batch waits until there are so many, or max_delay_s have passed since the one before."""

    max_bytes: int | None = None
    max_events: int | None = None
    max_segment_bytes: int | None = None
    min_events: int | None = None
    max_delay_s: float = _QUARTER_S


NO_LIMITS = Admission()


def admission_of(options: Mapping[str, str]) -> Admission:
    """What the options say; InvalidArgumentError if they contradict each other."""

    def limit(name: str, high: int) -> int | None:
        return number(options, name, 0, 1, high) if name.lower() in options else None

    most, least = limit("maxOffsetsPerTrigger", 1 << 40), limit("minOffsetsPerTrigger", 1 << 40)
    if most is not None and least is not None and least > most:
        raise InvalidArgumentError(
            f"the option 'minOffsetsPerTrigger' is {least:,}, more than 'maxOffsetsPerTrigger', {most:,}"
        )
    if least is None and "maxtriggerdelay" in options:
        raise InvalidArgumentError("the option 'maxTriggerDelay' has no effect without 'minOffsetsPerTrigger': give it")
    return Admission(
        limit("approx_bytes_per_trigger", 1 << 50), most, limit("maxBytesPerSegment", 1 << 50), least, _delay_s(options)
    )


def _delay_s(options: Mapping[str, str]) -> float:
    text = options.get("maxtriggerdelay")
    if text is None:
        return _QUARTER_S
    match = _DELAY.fullmatch(text.strip())
    if match is None:
        raise InvalidArgumentError(
            f"the option 'maxTriggerDelay' is {text[:40]!r}: it must be a time such as 500ms, 30s, 15m, 2h"
        )
    return int(match[1]) * _UNITS_S[match[2]]
