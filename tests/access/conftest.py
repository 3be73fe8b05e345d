"""Make password checks cheap, because the tests log in hundreds of times."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _cheap_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.access.users._ITERATIONS", {"sha256": 4096, "sha512": 4096})
