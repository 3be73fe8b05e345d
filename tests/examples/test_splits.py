"""The example of splits and the Hadoop job of its guide: each engine finds the written readings."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import nadi
from examples.splits import hadoop
from examples.splits.meters import SCHEMA, STREAM, produce, readings
from examples.splits.processes import by_processes

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "query-engines.md").read_text()
READINGS = 3_000
SCOPE = "home"  # as in the guide


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[nadi.standalone.EmbeddedServer]:
    folder: Path = tmp_path_factory.mktemp("data")
    with nadi.embedded(folder) as server:
        yield server


@pytest.fixture(scope="module")
def expected(server: nadi.standalone.EmbeddedServer) -> dict[str, int]:
    """Write the readings; return the watt-hours of each meter."""
    counts: list[int] = []
    with nadi.StreamManager(server.controller_uri) as manager:
        manager.create_scope(SCOPE)
        found = produce(manager, SCOPE, READINGS, counts.append)
    assert sum(counts) == READINGS
    return found


@pytest.fixture
def splits(server: nadi.standalone.EmbeddedServer, expected: dict[str, int]) -> Iterator[list[nadi.Split]]:
    with nadi.StreamManager(server.controller_uri) as manager:
        scan = nadi.scan(
            manager, SCOPE, STREAM, columns=["value"], value_format="json", value_schema=SCHEMA, unnest=True
        )
        found = scan.splits(3, max_bytes=200_000)
        assert len(found) >= 3
        yield found


def test_by_processes(splits: list[nadi.Split], expected: dict[str, int]) -> None:
    counts: list[int] = []
    assert by_processes(splits, 2, counts.append) == Counter(expected)
    assert sum(counts) == sum(split.size_bytes for split in splits)


def test_by_dask(splits: list[nadi.Split], expected: dict[str, int]) -> None:
    pytest.importorskip("dask.dataframe", reason="pip install 'dask[dataframe]'")
    from examples.splits.with_dask import by_dask

    assert by_dask(splits, 2) == expected


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_by_ray(splits: list[nadi.Split], expected: dict[str, int]) -> None:
    pytest.importorskip("ray", reason="pip install ray")
    from examples.splits.__main__ import _by_ray

    assert _by_ray(splits, 2) == expected


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_by_the_job_of_the_example(
    server: nadi.standalone.EmbeddedServer, expected: dict[str, int], tmp_path: Path
) -> None:
    try:
        found = hadoop.by_hadoop(server.controller_uri, SCOPE, STREAM, tmp_path / "job")
    except hadoop.MissingError as error:
        pytest.skip(str(error))
    assert found == expected


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_job_of_the_guide(server: nadi.standalone.EmbeddedServer, expected: dict[str, int], tmp_path: Path) -> None:
    (block,) = re.findall(r"```sh\n(nadi splits .*?)```", GUIDE, re.DOTALL)
    try:
        words = hadoop.hadoop(tmp_path)
    except hadoop.MissingError as error:
        pytest.skip(str(error))
    command = " ".join(f"'{word}'" for word in words)
    (tmp_path / "hadoop").write_text(f'#!/bin/sh\nshift 2\nexec {command} "$@"\n')
    (tmp_path / "hadoop").chmod(0o755)
    (tmp_path / "nadi").write_text(f'#!/bin/sh\nexec {sys.executable} -m nadi "$@"\n')
    (tmp_path / "nadi").chmod(0o755)
    block = block.replace("128MiB", "200KB")
    done = subprocess.run(
        ["bash", "-ec", block],
        cwd=tmp_path,
        env={**os.environ, "NADI_CONTROLLER": server.controller_uri, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for part in (tmp_path / "counts").glob("part-*") for line in part.read_text().splitlines()]
    counts = Counter(meter for meter, _ in readings(READINGS))
    assert dict(line.split("\t") for line in lines) == {meter: str(count) for meter, count in counts.items()}


def test_missing_tools_are_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(hadoop.MissingError):
        hadoop.streaming_jar()
    with pytest.raises(hadoop.MissingError):
        hadoop.hadoop(tmp_path)
