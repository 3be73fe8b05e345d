"""Which options exist, and where each has an effect; one without effect is refused, naming the alternatives.

Spark hands a source or sink everything the user set, including its own settings of a sink's query: those
are let through. It puts a path beside them only where one was given to load, save or start.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import Enum

from nadi.errors import InvalidArgumentError


class Use(Enum):
    """What options are given to; the values are Spark's names for it."""

    READ = "spark.read"
    READ_STREAM = "spark.readStream"
    WRITE = "write"
    WRITE_STREAM = "writeStream"


_READS, _WRITES = {Use.READ, Use.READ_STREAM}, {Use.WRITE, Use.WRITE_STREAM}
_EFFECTIVE = {
    "controller": _READS | _WRITES,
    "auth_user": _READS | _WRITES,
    "auth_password": _READS | _WRITES,
    "auth_token": _READS | _WRITES,
    "trust_store": _READS | _WRITES,
    "validate_host_name": _READS | _WRITES,
    "scope": _READS | _WRITES,
    "stream": _READS | _WRITES,
    "start_stream_cut": _READS,
    "end_stream_cut": _READS,
    "start": _READS,
    "end": _READS,
    "slice": _READS,
    "startingtimestamp": _READS,
    "endingtimestamp": {Use.READ},
    "routing_keys": _READS,
    "on_damage": _READS,
    "max_partitions": _READS,
    "min_partition_bytes": _READS,
    "max_bytes_per_trigger": {Use.READ_STREAM},
    "skip_truncated": {Use.READ_STREAM},
    "transaction_timeout_time": _WRITES,
    "event_attribute_name": _WRITES,
    "routing_key_attribute_name": _WRITES,
}
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
    "failondataloss": "a query fails at truncated data unless it is given 'skip_truncated' as true",
    "maxoffsetspertrigger": "give 'max_bytes_per_trigger'",
    "maxbytespertrigger": "give 'max_bytes_per_trigger'",
    "maxfilespertrigger": "give 'max_bytes_per_trigger'",
    "minpartitions": "give 'min_partition_bytes' and 'max_partitions'",
    "metadata": "ask a nadi.StreamManager: stream_info, list_streams",
    "allow_create_scope": "create it before, with `nadi` or a nadi.StreamManager",
    "allow_create_stream": "create it before, with `nadi` or a nadi.StreamManager",
    "default_num_segments": "create the stream before, with as many segments as it shall have",
    "exactly_once": "a streaming query's batches are always written once",
    "transaction_status_poll_interval": "there is nothing to set",
    "read_after_write_consistency": "what a batch wrote can always be read once it is committed",
    "subscribe": "name one stream with 'scope' and 'stream'",
    "kafka.bootstrap.servers": "give 'controller'",
    "path": "a stream is named by 'scope' and 'stream': leave out the path",
    "checkpointlocation": "it belongs to writeStream",
    "queryname": "it belongs to writeStream",
}
# what Spark's own engine reads from the options of a streaming query, which it hands on
_SPARKS = {Use.WRITE_STREAM: ("checkpointlocation", "queryname", "asyncprogresstracking")}
# what CREATE TABLE adds to its options
_TABLES = ("owner", "provider", "option.", "external", "location", "is_managed_location")


def check_names(given: Iterable[str], use: Use | None) -> None:
    """InvalidArgumentError unless each option, in small letters, has an effect in this use (None: in any)."""
    for name in given:
        effective = _EFFECTIVE.get(name, set())
        is_sparks = name.startswith(_TABLES) or (use is not None and name.startswith(_SPARKS.get(use, ())))
        if use in effective or (use is None and effective) or is_sparks:
            continue
        raise InvalidArgumentError(_refusal(name, use, effective))


def _refusal(name: str, use: Use | None, effective: set[Use]) -> str:
    if use is not None and effective:
        where = " and ".join(sorted(other.value for other in effective))
        more = f". {_INSTEAD[name]}" if name in _INSTEAD else ""
        return f"the option {name!r} has no effect with {use.value}: it is one of {where}{more}"
    if name in _INSTEAD:
        return f"the option {name!r} has no effect: {_INSTEAD[name]}"
    near = difflib.get_close_matches(name, _EFFECTIVE, 1, 0.7)
    if near:
        return f"there is no option {name!r}: did you mean {near[0]!r}?"
    return f"there is no option {name!r}: there are {', '.join(_EFFECTIVE)}"
