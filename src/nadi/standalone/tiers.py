"""What a server is told of its two tiers: the store of its chunks, and how much its log may hold without it."""

from __future__ import annotations

from nadi.errors import InvalidArgumentError
from nadi.limits import LOG_FILE_BYTES, RUN_FILE_BYTES
from nadi.segmentstore.tier2.whereabouts import Tier2

LEAST_LOG_BYTES = 2 * (LOG_FILE_BYTES + RUN_FILE_BYTES)  # below it, writers would wait for files that are being filled


def tier2_of(url: str, options: dict[str, str]) -> Tier2 | None:
    """None: chunks are kept in the data folder.

    InvalidArgumentError: there are options, and no store.
    """
    if not url and options:
        raise InvalidArgumentError("options of tier 2 are for a store elsewhere: give its URL, too")
    return Tier2(url, dict(options)) if url else None


def log_bound(size_bytes: int) -> int:
    """What a container's log may hold. InvalidArgumentError: it is too little.

    >>> log_bound(1 << 30) == 1 << 30
    True
    """
    if size_bytes < LEAST_LOG_BYTES:
        raise InvalidArgumentError(
            f"a log of {size_bytes:,} bytes is too small: it needs {LEAST_LOG_BYTES:,}, of which files take the most"
        )
    return size_bytes
