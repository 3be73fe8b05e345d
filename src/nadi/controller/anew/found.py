"""The segments that exist, grouped by the owner that their names imply."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from nadi.controller.state.metadata import StreamName
from nadi.errors import InvalidArgumentError
from nadi.naming import (
    CLUSTER_SCOPE,
    INTERNAL_SCOPE,
    TABLE_SUFFIX,
    TRANSACTION_DELIMITER,
    parse_segment_name,
    segment_epoch,
    segment_name,
    segment_number,
    segment_of,
)

_EPOCHS_APART, _NUMBERS_APART = 100_000, 1_000_000  # what was truncated away may lie between


@dataclass(frozen=True, slots=True)
class Found:
    """One segment of the store. key_bytes: of a table whose keys all have that length, else 0."""

    name: str
    is_table: bool = False
    start_offset: int = 0
    length: int = 0
    is_sealed: bool = False
    created_ms: int = 0
    key_bytes: int = 0

    @property
    def has_any(self) -> bool:
        """Whether anything was ever in it."""
        return self.length > 0


@dataclass(slots=True)
class Segments:
    """Those of one stream or key-value table, by id. transactions: the parents of each one's segments, by its id."""

    by_id: dict[int, Found] = field(default_factory=dict)
    transactions: dict[str, list[int]] = field(default_factory=dict)


def take_odd(segments: Segments, last_number: int, newest_epoch: int = 0) -> list[str]:
    """Remove segments whose epoch or number is so far from all others that no controller can have made them; return
    their names. last_number: of a deleted stream of that name, or -1.

    >>> names = ["home/meters/0.#epoch.0", "home/meters/1.#epoch.2000000000", "home/meters/2000000000.#epoch.0"]
    >>> segments = by_owner(map(Found, names)).streams[StreamName("home", "meters")]
    >>> take_odd(segments, -1)
    ['home/meters/2000000000.#epoch.0', 'home/meters/1.#epoch.2000000000']
    """
    odd = []
    number = last_number if last_number >= 0 else min(map(segment_number, segments.by_id), default=0)
    for segment in sorted(segments.by_id):
        is_far = segment_epoch(segment) - newest_epoch > _EPOCHS_APART
        if is_far or segment_number(segment) - number > _NUMBERS_APART:
            odd.append(segment)
        else:
            newest_epoch = max(newest_epoch, segment_epoch(segment))
            number = max(number, segment_number(segment))
    for text, parents in list(segments.transactions.items()):
        kept = [parent for parent in parents if parent not in odd]
        segments.transactions[text] = kept
        if not kept:
            del segments.transactions[text]
    return [segments.by_id.pop(segment).name for segment in odd]


@dataclass(slots=True)
class ByOwner:
    """tables: under the names that their segments have."""

    streams: dict[StreamName, Segments] = field(default_factory=dict)
    tables: dict[StreamName, Segments] = field(default_factory=dict)


def by_owner(found: Iterable[Found]) -> ByOwner:
    """Group segments by owner, without the server's own and those that no stream or table has.

    >>> owners = by_owner([Found("home/meters/0.#epoch.0"), Found("home/kept_kvtable/0.#epoch.0", is_table=True)])
    >>> [str(name) for name in (*owners.streams, *owners.tables)]
    ['home/meters', 'home/kept_kvtable']
    """
    owners = ByOwner()
    for segment in found:
        said = segment_of(segment.name)
        if said is None or said.is_transient or said.scope in (INTERNAL_SCOPE, CLUSTER_SCOPE):
            continue
        parent, _, transaction = segment.name.partition(TRANSACTION_DELIMITER)
        try:
            scope, name, segment_id = parse_segment_name(parent)
        except InvalidArgumentError:  # the store takes any name
            continue
        if segment_name(scope, name, segment_id) != parent or segment.is_table != name.endswith(TABLE_SUFFIX):
            continue  # no controller named it so
        kind = owners.tables if segment.is_table else owners.streams
        mine = kind.setdefault(StreamName(scope, name), Segments())
        if transaction:
            mine.transactions.setdefault(transaction, []).append(segment_id)
        else:
            mine.by_id[segment_id] = segment
    return owners
