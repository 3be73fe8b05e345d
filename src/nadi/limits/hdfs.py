"""Limits of what is kept in HDFS; imported from `nadi.limits`, as all others."""

from __future__ import annotations

HDFS_CALLS_AT_ONCE = 24  # of one store: what reads and moves at one time, and a few more
HDFS_ANSWER_S = 30.0  # a call without an answer is given up after it; a put has longer,
HDFS_PUT_S = 15.0  # by the time that its bytes take at that rate:
HDFS_PUT_BYTES_A_S = 512 * 1024
HDFS_UNFINISHED_S = 3600.0  # what a killed writer left is removed when it is that old
HDFS_SET_TRIES = 20  # of a small value, against others that set it, too
