"""The guide's declarative pipeline, run twice by `spark-pipelines` in a project's folder."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import nadi
from tests.spark.scaled import ScaledStream

from .cluster import SPARK, answers, source_path
from .guide import ROOT
from .test_connect import NEEDED, is_there

pytestmark = [
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not all(map(is_there, [*NEEDED, "yaml"])), reason="it needs pyspark[pipelines]"),
    pytest.mark.skipif(answers("127.0.0.1", 15002), reason="spark-pipelines needs port 15002, which is taken"),
]
SPEC = """
name: copies
storage: file://{folder}/storage
libraries:
  - glob:
      include: transformations/**
"""


def run(project: Path, environment: dict[str, str]) -> str:
    command = [str(SPARK / "bin" / "spark-pipelines"), "run", "--conf", "spark.sql.catalogImplementation=hive"]
    log = project / "run.log"
    with log.open("wb") as said:
        process = subprocess.Popen(
            command, env=environment, cwd=project, stdout=said, stderr=said, start_new_session=True
        )
        try:
            code = process.wait(280)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its Java, if it has not ended
    assert code == 0, log.read_text()[-5000:]
    return log.read_text()


def test_pipeline_of_the_guide_copies_each_event_once(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "spark.md").read_text()
    (example,) = (found for found in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "append_flow" in found)
    settings = {"ui.enabled": "false", "sql.shuffle.partitions": "2"}
    (tmp_path / "spark-defaults.conf").write_text("".join(f"spark.{key} {value}\n" for key, value in settings.items()))
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(folder=tmp_path))
    (tmp_path / "transformations").mkdir()
    own = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": source_path(), "SPARK_HOME": str(SPARK)}
    environment = {**os.environ, **own, "SPARK_CONF_DIR": str(tmp_path), "SPARK_LOCAL_IP": "127.0.0.1"}
    with nadi.embedded(tmp_path / "data") as server, nadi.StreamManager(server.controller_uri) as manager:
        assert "tcp://127.0.0.1:9090" in example
        code = example.replace("tcp://127.0.0.1:9090", server.controller_uri)
        (tmp_path / "transformations" / "copies.py").write_text(code)
        manager.create_scope("home")
        manager.create_stream("home", "copy", 2)
        meters = ScaledStream(manager, "meters", 3)
        for _ in range(2):
            meters.live(1, 30)
            assert "Run is COMPLETED" in run(tmp_path, environment)
            end = manager.cuts("home", "copy").tail()
            events = [event.data for event in manager.read_events("home", "copy", end=end)]
            assert sorted(int(event.partition(b":")[2]) for event in events) == list(range(meters.written))
