"""The kinds of chunk stores that need no network. A new kind adds itself to `STORES`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nadi.segmentstore.tier2.chunks import ChunkStore

STORES: dict[str, Callable[[Path], str]] = {"folder": Path.as_uri, "memory": lambda _: "memory:///"}


@pytest.fixture(params=list(STORES))
def chunks(request: pytest.FixtureRequest, tmp_path: Path) -> ChunkStore:
    return ChunkStore.from_url(STORES[request.param](tmp_path / "tier 2"))
