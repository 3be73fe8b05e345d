"""The benchmark of Spark in its smallest form: every part gives its figures, with ratios where it has a mark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.kafka import jars
from bench.spark import forms
from bench.spark.setting import Sizes
from bench.spark.tally import Row

TINY = Sizes(rows=2_000, batches=2, warm=1, a_batch=500, runs=1)


def figures_of(parts: list[str], folder: Path, spark: Any) -> dict[str, Row]:
    return {row.name: row for _, rows in forms.measured(parts, TINY, {}, folder, spark) for row in rows}


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_reads_and_micro_batches_have_ratios(spark: Any, tmp_path: Path) -> None:
    found = figures_of(["read", "count", "batch"], tmp_path, spark)
    assert all(row.value > 0 for row in found.values())
    assert {name for name, row in found.items() if row.ratio is not None and row.mark is not None} == {
        "batch read, 1 segment",
        "batch read, 4 segments",
        "batch read, 16 segments",
        "micro-batch",
    }
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_streams_writes_and_a_new_session_have_figures(spark: Any, tmp_path: Path) -> None:
    found = figures_of(["stream", "chain", "write", "first"], tmp_path, spark)
    assert all(row.value > 0 for row in found.values())
    assert {name for name, row in found.items() if row.mark is not None} == {
        "stream to stream, exactly once",
        "streaming write, exactly once",
        "first row of a stream",
    }


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_beside_sparks_source_for_kafka(tmp_path: Path) -> None:
    for kind in (jars.SPARK, jars.BROKER):
        try:
            jars.jars_of(kind)
        except jars.Missing as error:
            pytest.skip(str(error))
    found = tmp_path / "found.json"
    command = [sys.executable, "-m", "bench", "spark", "kafka", "--quick", "--data", str(tmp_path)]
    subprocess.run([*command, "--json", str(found)], check=True, timeout=300, cwd=Path(__file__).parents[2])
    rows = json.loads(found.read_text())
    assert len(rows) == 7
    assert all(row["value"] > 0 for row in rows)


def test_kafka_is_left_out_with_a_word_where_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "java").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(forms, "measured", lambda parts, *_, **__: [(part, []) for part in parts])
    forms.main(["kafka", "--json", str(tmp_path / "found")])
    assert "kafka: left out: Kafka needs `mvn`, which is not installed" in capsys.readouterr().out
    mvn = tmp_path / "mvn"
    mvn.write_text("#!/bin/sh\necho '[ERROR] Could not transfer it'\nexit 1\n")
    mvn.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(jars.Missing, match=r"Maven can't download Kafka: .*Could not transfer it"):
        jars.jars_of(jars.BROKER)
    assert not list(tmp_path.glob("cache/nadi/bench/*"))
