"""Fixtures of the segment store's tests."""

from __future__ import annotations

import pytest

from nadi.limits import MIB
from nadi.segmentstore import storage_writer
from nadi.segmentstore.container import frame
from nadi.segmentstore.container.cache import BlockCache


@pytest.fixture
def all_in_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Store large runs in the log, without separate files."""
    monkeypatch.setattr(frame, "RUN_LEAST_BYTES", 1024 * MIB)


@pytest.fixture
def nothing_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read from disk always; the storage writer moves data only on request."""
    monkeypatch.setattr("nadi.segmentstore.store.BlockCache", lambda: BlockCache(0))
    monkeypatch.setattr(storage_writer.StorageWriter, "start", lambda _: None)
