"""Fixtures of the segment store's tests."""

from __future__ import annotations

import pytest

from nadi.limits import MIB
from nadi.segmentstore.container import frame


@pytest.fixture
def all_in_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Store large runs in the log, without separate files."""
    monkeypatch.setattr(frame, "RUN_LEAST_BYTES", 1024 * MIB)
