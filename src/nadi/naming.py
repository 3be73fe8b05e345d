"""Names of scopes, streams and segments: naming rules, and the formats used on the wire.

A segment id is `epoch << 32 | number`; its name is `scope/stream/<number>.#epoch.<epoch>`.
A transaction segment's name is the parent's name, `#transaction.` and 32 hex digits. A transient segment, for an event
too large for one append, appends `#transient.`, the writer's id and a random id instead.

>>> segment_name("home", "meters", segment_id(3, epoch=1))
'home/meters/3.#epoch.1'
>>> parse_segment_name("home/meters/3.#epoch.1")
('home', 'meters', 4294967299)
>>> transaction_segment_name("home/meters/0.#epoch.0", (1 << 64) | 2)
'home/meters/0.#epoch.0#transaction.00000000000000010000000000000002'
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from nadi.errors import InvalidArgumentError, InvalidNameError
from nadi.limits import NAME_MAX_CHARS

TRANSACTION_DELIMITER = "#transaction."
TRANSIENT_DELIMITER = "#transient."
EPOCH_DELIMITER = ".#epoch."
INDEX_SUFFIX = "#index"
TABLE_SUFFIX = "_kvtable"
SEGMENT_NUMBER_MAX = 0x7FFF_FFFF  # of segment numbers and of epochs: both are Java ints
INTERNAL_SCOPE = "_system"
CLUSTER_SCOPE = "_cluster"  # pseudo scope that names functions of the server; holds no streams
AUDIT_STREAM = "audit"  # of the internal scope
READER_GROUP_PREFIX = "_RG"
MARK_PREFIX = "_MARK"
REVISION_MARK = UUID("7df9a874-246c-c9d6-9397-cdd19ead68c5").bytes  # attribute: start offset of a revisioned stream
# tables of a scope; users' table names can't start with an underscore
BOOKMARKS_TABLE = "_bookmarks"
SCHEMAS_TABLE = "_schemas"
STREAM_TABLES_TABLE = "_streamtables"
SEARCH_TABLE = "_search"
KAFKA_TABLE = "_kafka"
PROCESS_TABLE = "_process"
CLIENT_TABLES = (
    BOOKMARKS_TABLE,
    KAFKA_TABLE,
    PROCESS_TABLE,
    SCHEMAS_TABLE,
    SEARCH_TABLE,
    STREAM_TABLES_TABLE,
)  # written by clients
SCRUB = "scrub"
SCRUB_SEGMENT = f"{CLUSTER_SCOPE}/{SCRUB}/0{EPOCH_DELIMITER}0"
LOAD_SEGMENT = f"{CLUSTER_SCOPE}/load/0{EPOCH_DELIMITER}0"  # only servers have a token for it

_NAME = re.compile(r"_?[A-Za-z0-9.\-]+")
_USER_NAME = re.compile(r"[A-Za-z0-9.\-]+")
_NUMBER = "(?:0|[1-9][0-9]{0,9})"
_SEGMENT_OR_PART = re.compile(  # segments of streams and tables, and their parts; table names contain underscores
    rf"(?P<scope>_?[A-Za-z0-9.\-]+)/(?P<name>[A-Za-z0-9.\-_]+)/{_NUMBER}(?:\.#epoch\.{_NUMBER})?"
    r"(?P<transaction>#transaction\.[0-9a-f]{32})?(?P<transient>#transient\.[0-9a-f]{32}\.[0-9a-f]{32})?"
)
_SEGMENT_NAME = re.compile(r"([^/]+)/([^/]+)/([0-9]{1,10})(?:\.#epoch\.([0-9]{1,10}))?")


def check_name(kind: str, name: str, *, internal: bool = False, max_chars: int = NAME_MAX_CHARS) -> str:
    """Return `name` if it may name a `kind` ("scope", "stream", ...), else raise InvalidNameError."""
    pattern = _NAME if internal else _USER_NAME
    if not isinstance(name, str) or not pattern.fullmatch(name) or len(name) > max_chars:
        raise InvalidNameError(kind, name, f"letters, digits, '.' and '-', at most {max_chars} characters")
    return name


def check_path(label: str, path: str | os.PathLike[str]) -> Path:
    """Return the path; InvalidArgumentError if it is empty, which Python takes for the current folder."""
    if not os.fspath(path):
        raise InvalidArgumentError(f"{label} is empty: pass a path, or '.' for the current folder")
    return Path(path)


def plural(count: int, noun: str) -> str:
    """Return the count and the noun.

    >>> plural(1, "container"), plural(2_000, "event")
    ('1 container', '2,000 events')
    """
    return f"{count:,} {noun}{'s' * (count != 1)}"


def segment_id(number: int, epoch: int = 0) -> int:
    return epoch << 32 | number


def segment_number(segment_id: int) -> int:
    return segment_id & 0xFFFF_FFFF


def segment_epoch(segment_id: int) -> int:
    return segment_id >> 32


def segment_name(scope: str, stream: str, segment_id: int) -> str:
    return f"{scope}/{stream}/{segment_id & 0xFFFF_FFFF}{EPOCH_DELIMITER}{segment_id >> 32}"


def parse_segment_name(name: str) -> tuple[str, str, int]:
    """Split a stream segment's name into (scope, stream, segment id); without an epoch, the epoch is 0."""
    match = _SEGMENT_NAME.fullmatch(name)
    if match:
        scope, stream, number, epoch = match[1], match[2], int(match[3]), int(match[4] or 0)
        if number <= SEGMENT_NUMBER_MAX and epoch <= SEGMENT_NUMBER_MAX:
            return scope, stream, segment_id(number, epoch)
    raise InvalidArgumentError(f"{name!r} is not a segment name: expected scope/stream/number.#epoch.epoch")


def transaction_segment_name(parent: str, txn_id: int) -> str:
    """Name the segment that holds a transaction's events for `parent`; `txn_id` is the unsigned 128-bit id."""
    return f"{parent}{TRANSACTION_DELIMITER}{txn_id:032x}"


def transient_segment_name(parent: str, writer_id: bytes, random_id: bytes) -> str:
    """Name the segment that receives a large event before it is merged into `parent`; both ids have 16 bytes."""
    return f"{parent}{TRANSIENT_DELIMITER}{writer_id.hex()}.{random_id.hex()}"


class SegmentOf(NamedTuple):
    """The stream or table of a segment, parsed from the segment's name."""

    scope: str
    name: str  # of the stream, or of the table with its suffix
    in_transaction: bool
    is_transient: bool


def segment_of(name: str) -> SegmentOf | None:
    """Parse a segment's name; None if it isn't a valid segment name (its prefix then means nothing).

    >>> segment_of("home/meters/0.#epoch.0#transaction.00000000000000010000000000000002")
    SegmentOf(scope='home', name='meters', in_transaction=True, is_transient=False)
    >>> segment_of("home/_RGgroup_kvtable/more/0.#epoch.0")
    """
    match = _SEGMENT_OR_PART.fullmatch(name)
    if match is None:
        return None
    return SegmentOf(match["scope"], match["name"], match["transaction"] is not None, match["transient"] is not None)


def container_key(segment: str) -> str:
    """Return the part of a segment's name that determines its container.

    Epochs, transactions and transient segments of one segment number share a container, so that merges stay local.
    """
    for delimiter in (TRANSACTION_DELIMITER, TRANSIENT_DELIMITER, INDEX_SUFFIX, EPOCH_DELIMITER):
        segment = segment.partition(delimiter)[0]
    return segment


_MOST_DIGITS = 30  # int() refuses thousands


def is_number(text: str) -> bool:
    """Return whether a text is a whole number that int() accepts."""
    return text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS


# --- columns, where events are rows -------------------------------------------------------------------

VALUE = "value"  # typed by the events' schema
USUAL = ("event", "scope", "stream", "segment_id", "offset")
APPEND_TIME, EVENT_TIME = "append_time", "event_time"
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}  # units of the times that writers note
USUAL_UNIT, NO_UNIT = "ms", "none"
NEED_EVENTS = ("event", VALUE)  # the other columns need only the events' positions
POSITIONS = ("position_before", "position")
