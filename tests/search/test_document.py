"""The guide's examples do what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import nadi

pytest.importorskip("tantivy", reason="search needs tantivy")
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("guide", ["search.md", "standing-queries.md"])
def test_a_guide(
    guide: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NADI_SEARCH_CACHE", str(tmp_path / "cache"))
    text = (ROOT / "docs" / guide).read_text()
    shown = re.findall(r"^\$ (.*)$", text, re.M)
    (start,) = (one for one in shown if " run " in one)
    commands = [one for one in shown if one != start]
    example = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]  # Spark's is run in tests/spark
    with nadi.embedded(tmp_path / "data") as server:
        environment = {
            **os.environ,
            "NADI_CONTROLLER": server.controller_uri,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        for command in commands:
            subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environment, check=True, timeout=60)
        indexer = subprocess.Popen(["bash", "-c", f"exec {start}"], cwd=tmp_path, env=environment)
        try:
            program = example.replace("StreamManager()", f"StreamManager({server.controller_uri!r})")
            exec(compile(program, guide, "exec"), {})
            indexer.terminate()
            assert indexer.wait(60) == 0
        finally:
            indexer.kill()
            indexer.wait()
    expected = re.findall(r"^ *print\(.*  # (.*)$", example, re.M)
    assert capsys.readouterr().out.splitlines() == expected
    assert expected
