"""Limits of streams that are read and written as tables."""

from __future__ import annotations

_MIB = 1024 * 1024

STREAM_TABLE_KEYS = 16  # columns of a stream table's key
STREAM_TABLE_TXN_BYTES = 256 * _MIB  # of rows in one transaction: some seconds
STREAM_TABLE_BATCH_ROWS = 10_000  # made events of at one time
STREAM_TABLE_MEMORY_BYTES = 256 * _MIB  # about, for the latest rows of a table's keys and copies; more are in files,
STREAM_TABLE_PARTS = 32  # over so many of which keys are divided, and each again if need be
STREAM_TABLE_ROUND_EVENTS = 50_000  # whose changes are written by one transaction, where
STREAM_TABLE_ROUND_BYTES = 16 * _MIB  # more than so many bytes of them wait
STREAM_TABLE_LEASE_MS = 600_000  # of a transaction with changes, without contact from whoever writes it
