"""Which streams of its scope a read is of, where it isn't of one: named, or found by a pattern or a tag.

>>> from nadi.spark.options.several import several_of
>>> several_of({"streams": "meters, doors"})
Several(names=('doors', 'meters'), pattern=None, tag=None)
>>> several_of({"stream_pattern": "meters-.*"}).takes("meters-7")
True
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from nadi.errors import InvalidArgumentError
from nadi.limits import SPARK_STREAMS
from nadi.naming import check_name

_WAYS = ("stream", "streams", "stream_pattern", "stream_tag")


@dataclass(frozen=True, slots=True)
class Several:
    """Streams by their names; or all of the scope whose whole name matches a regular expression, or that have a tag,
    also those that are created later."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    tag: str | None = None

    def takes(self, name: str) -> bool:
        """Whether the stream may belong to it, as far as its name shows."""
        if self.names:
            return name in self.names
        return self.pattern is None or re.fullmatch(self.pattern, name) is not None

    def __str__(self) -> str:
        if self.names:
            return f"'streams' = {', '.join(self.names)}"
        return f"'stream_pattern' = {self.pattern}" if self.pattern is not None else f"'stream_tag' = {self.tag}"


def several_of(options: Mapping[str, str]) -> Several | None:
    """What the options say of several streams; None if they are about one."""
    given = [name for name in _WAYS if name in options]
    if len(given) > 1:
        raise InvalidArgumentError(f"the options {given[0]!r} and {given[1]!r} exclude each other")
    if not given or given[0] == "stream":
        return None
    way, text = given[0], options[given[0]]
    if not text.strip():
        raise InvalidArgumentError(f"the option {way!r} is empty: it says which streams are read")
    if way == "streams":
        return Several(names=_names(text))
    if way == "stream_tag":
        return Several(tag=text)
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidArgumentError(
            f"the option 'stream_pattern' is {text[:60]!r}, which is no regular expression: {error}"
        ) from None
    return Several(pattern=text)


def _names(text: str) -> tuple[str, ...]:
    if text.lstrip().startswith("["):
        try:
            names = msgspec.json.decode(text, type=list[str])
        except msgspec.DecodeError:
            raise InvalidArgumentError(
                f"the option 'streams' is {text[:60]!r}: it must be names with commas between them, or a JSON list"
            ) from None
    else:
        names = [name.strip() for name in text.split(",")]
    for name in names:
        check_name("stream", name)
    if not names or len(set(names)) != len(names):
        raise InvalidArgumentError(f"the option 'streams' is {text[:60]!r}: it must name some streams, each once")
    if len(names) > SPARK_STREAMS:
        raise InvalidArgumentError(f"the option 'streams' names {len(names):,}: at most {SPARK_STREAMS:,}")
    return tuple(sorted(names))
