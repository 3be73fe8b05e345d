"""The kinds of chunk stores that need no network. A new kind adds itself to `STORES`; HDFS is simulated here, and real
in `tests/hdfs`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nadi.object_log.hdfs import files as client
from nadi.segmentstore.tier2.chunks import ChunkStore
from tests.support.hdfs.fake import FakeHdfs

STORES: dict[str, Callable[[Path], str]] = {
    "folder": Path.as_uri,
    "memory": lambda _: "memory:///",
    "hdfs": lambda _: "hdfs://name-node:8020/tier 2",
}


@pytest.fixture(params=list(STORES))
def chunks(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ChunkStore:
    monkeypatch.setattr(client, "connect", FakeHdfs().connect)
    return ChunkStore.from_url(STORES[request.param](tmp_path / "tier 2"))
