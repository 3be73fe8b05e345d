"""Limits of lakes; imported from `nadi.limits`, as all others."""

from __future__ import annotations

_MIB = 1024 * 1024

LAKE_EVERY_MIN_S = 0.05  # between two commits: a catalog takes some
LAKE_EVERY_MAX_S = 86_400.0
LAKE_COMMIT_BYTES = 512 * _MIB  # of the stream in one snapshot, about, while a lake catches up
LAKE_ROW_GROUP_BYTES = 32 * _MIB  # of rows in memory that are written to a file together
LAKE_PENDING_BYTES = 128 * _MIB  # of rows of all partitions that aren't in a file yet
LAKE_FILE_BYTES = 512 * _MIB  # of rows in memory, in one file: a fifth of that or less, once it is packed
LAKE_FILES_OPEN = 200  # partitions being written at one time
LAKE_LETTERS_AT_ONCE = 500  # written together
LAKE_RETRY_LONGEST_S = 60.0  # between two tries, while the catalog or its storage is away
LAKE_ONCE_TRIES_S = 15.0  # while it is away: how long one tries that is to end when the table is level
LAKE_SMALL_FILE_BYTES = 32 * _MIB  # less is joined with others of its partition,
LAKE_COMPACTED_BYTES = 512 * _MIB  # about so much at once, in one snapshot
LAKE_COMPACT_EVERY_S = 60.0  # how often a writer looks for small files, and for snapshots that are old enough to go
LAKE_REBUILT_WINDOW_BYTES = 64 * _MIB  # of a segment that are read of a table at once, and put in order in memory
LAKE_REBUILT_AT_ONCE = 2_000  # events that are written together
LAKE_FILE_PIECES = 64  # of one file, each of which reads its footer anew
LAKE_READ_AHEAD = 2  # pieces of a table's files that are fetched while others are read, each in memory as a whole
