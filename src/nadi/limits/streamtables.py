"""Limits of streams that are read and written as tables."""

from __future__ import annotations

MIB = 1024 * 1024

STREAM_TABLE_KEYS = 16  # columns of a stream table's key
STREAM_TABLE_TXN_BYTES = 256 * MIB  # of rows in one transaction: some seconds
STREAM_TABLE_BATCH_ROWS = 10_000  # made events of at one time
STREAM_TABLE_MEMORY_BYTES = 256 * MIB  # for the latest rows of a table's keys, copies included; more are in files,
STREAM_TABLE_PARTS = 32  # over so many of which keys are divided, and each again if need be
