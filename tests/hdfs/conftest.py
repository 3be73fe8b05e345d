"""A real HDFS for each module, and a folder in it for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nadi.runtime import REAL
from tests.support.hdfs.cluster import Cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder: Path = tmp_path_factory.mktemp("hdfs")
    cluster = Cluster(folder)
    yield cluster
    cluster.close()


@pytest.fixture
def url(cluster: Cluster) -> str:
    return f"{cluster.url}/tests/{REAL.unique()}"
