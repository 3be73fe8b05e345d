"""Make password checks cheap, because the tests log in hundreds of times."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _cheap_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.access.users._LOG_COST", 4)
    monkeypatch.setattr("nadi.access.users._PARALLEL", 1)
