"""Passwords that cost little: the tests log in hundreds of times."""

from __future__ import annotations

import pytest

from nadi.access import passwords


@pytest.fixture(autouse=True)
def _cheap_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "_LOG_COST", 4)
    monkeypatch.setattr(passwords, "_PARALLEL", 1)
