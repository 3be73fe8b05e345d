"""Limits of what is kept in HDFS; imported from `nadi.limits`, as all others."""

from __future__ import annotations

HDFS_CALLS_AT_ONCE = 24  # of one store, each in a thread: what reads and moves at one time, and a few more
HDFS_CALLS_LEFT = 40  # that had no answer in time and haven't ended, each with a thread and what it was to write
HDFS_UNFINISHED_S = 3600.0  # what a killed writer left is removed when it is that old
HDFS_SET_TRIES = 20  # of a small value, against others that set it, too
