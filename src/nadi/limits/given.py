"""Limits that somebody sets in the environment: which values are taken."""

from __future__ import annotations

import math
from typing import Any

_BLOCK_BYTES = 4096  # of a disk, as `segmentstore.tier1.layout` has it
_LEAST = {"RUN_LEAST_BYTES": _BLOCK_BYTES, "LOG_FILE_BYTES": 2 * _BLOCK_BYTES, "LOG_FIRST_FILE_BYTES": 2 * _BLOCK_BYTES}
_WHOLE_BLOCKS = frozenset({"LOG_FILE_BYTES", "LOG_FIRST_FILE_BYTES"})


def override(limits: dict[str, Any], text: str) -> None:
    """Set limits from `name=value,...`; ValueError for one that doesn't exist, or a value that it can't have.

    >>> limits = {"QUEUE_MAX_BYTES": 10, "CHUNK_FLUSH_AGE_S": 10.0}
    >>> override(limits, "chunk_flush_age_s=0.5,queue_max_bytes=7")
    >>> limits
    {'QUEUE_MAX_BYTES': 7, 'CHUNK_FLUSH_AGE_S': 0.5}
    """
    for item in filter(None, text.split(",")):
        name, _, value = item.partition("=")
        name = name.strip().upper()
        if not isinstance(limits.get(name), int | float):
            raise ValueError(f"NADI_LIMITS: there is no limit {name}")
        kind = type(limits[name])
        try:
            number = kind(value)
        except ValueError:
            number = kind(0)
        least = _LEAST.get(name, 0)
        unit = _BLOCK_BYTES if name in _WHOLE_BLOCKS else 0
        if not 0 < number < math.inf or number < least or (unit and number % unit):
            what = f"multiple of {unit}" if unit else "whole number" if kind is int else "number"
            bound = f"not below {least}" if least else "above 0"
            raise ValueError(f"NADI_LIMITS: {name} is to be a {what} {bound}, such as {limits[name]}, not {value!r}")
        limits[name] = number
