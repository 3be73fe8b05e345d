"""Which options are accepted where; one without effect is refused, naming the alternatives.

Spark hands a source or sink everything the user set, including its own settings of a sink's query: those
are let through. It puts a path beside them only where one was given to load, save or start. Programs made for
Pravega's connector give it any of its options anywhere, so `format("pravega")` lets those through, too.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from nadi.errors import InvalidArgumentError
from nadi.spark.options.table import BY_KEY, OPTIONS, Format, Use

NO_TABLES = (
    "Spark keeps the options of a table of a Python source, and hands them to no query: say CREATE TEMPORARY VIEW … "
    "USING nadi OPTIONS (…), which can be read and inserted into; or give them with each query: "
    "SELECT * FROM t WITH (scope = …)"
)
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


def refuse_tables(given: Mapping[str, str]) -> None:
    """InvalidArgumentError for what Spark hands over when a table is made."""
    if {"provider", "owner"} <= given.keys():
        raise InvalidArgumentError(NO_TABLES)


def checked(given: Mapping[str, str], use: Use, format_: Format) -> dict[str, str]:
    """The options by their first names, in small letters, without Spark's own; InvalidArgumentError unless each has an
    effect in this use."""
    found: dict[str, str] = {}
    for name, value in ((name.lower(), value) for name, value in given.items()):
        option = BY_KEY.get(name)
        if option is None:
            if not (name.startswith(_TABLES) or name.startswith(_SPARKS.get(use, ()))):
                raise InvalidArgumentError(_unknown(name))
            continue
        if use not in option.uses:
            if format_ is Format.PRAVEGA and option.is_pravegas:
                continue
            raise InvalidArgumentError(_without_effect(name, use))
        if option.key in found:
            both = " and ".join(repr(other) for other in (option.name, *option.also))
            raise InvalidArgumentError(f"the options {both} mean the same: give one of them")
        if not value:
            raise InvalidArgumentError(f"the option {name!r} is empty: give it a value, or leave it out")
        found[option.key] = value
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
