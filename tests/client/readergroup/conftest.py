"""Fixtures for tests of reader groups."""

from __future__ import annotations

import pytest

from nadi.client import ReaderGroupManager, StreamManager


@pytest.fixture
def groups(manager: StreamManager) -> ReaderGroupManager:
    return manager.reader_group_manager("sc")
