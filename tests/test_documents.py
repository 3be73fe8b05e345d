"""The documents' examples run as printed."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import chdir
from pathlib import Path

import pytest
from typer.testing import CliRunner

import nadi
from nadi.cli.app import app
from nadi.spark import TUNED

ROOT = Path(__file__).parents[1]


def test_the_example_of_the_readme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})
    assert capsys.readouterr().out == """[b'{"meter": "kitchen", "wh": 12}']\n"""


def test_the_examples_of_reader_groups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "reader-groups.md").read_text(), re.DOTALL)
    expected = [line for example in examples for line in re.findall(r"^print\(.*  # (.*)$", example, re.M)]
    assert len(expected) > 5
    program = "\n".join(examples).replace("timeout=1)", "timeout=6)")  # a slow machine may stop for longer than 1 s
    with nadi.embedded(tmp_path) as server:
        exec(compile(program, "reader-groups.md", "exec"), {"uri": server.controller_uri})
    assert capsys.readouterr().out.splitlines() == expected


@pytest.mark.parametrize(("guide", "least"), [("stream-cuts.md", 5), ("event-time.md", 3)])
def test_the_examples_of_cuts_and_times(guide: str, least: int, tmp_path: Path) -> None:
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / guide).read_text(), re.DOTALL)
    assert len(examples) > least
    limits = {"NADI_LIMITS": "log_file_bytes=16777216,watermark_period_s=0.2"}
    with nadi.embedded(tmp_path, environment=limits) as server:
        program = "\n".join(examples).replace("tcp://127.0.0.1:9090", server.controller_uri)
        exec(compile(program, guide, "exec"), {})


@pytest.mark.timeout(900)  # many commands are processes
def test_the_examples_of_the_command_line(tmp_path: Path) -> None:
    with nadi.embedded(tmp_path) as server:
        for command, printed in steps("cli.md", 5):
            code, said = run(command, tmp_path, NADI_CONTROLLER=server.controller_uri, COLUMNS="120")
            assert said == printed, command
            assert code == (1 if re.search("^error:", printed, re.M) else 0), command


def test_spark_guide_settings_of_tuned_are_all_there() -> None:
    guide = (ROOT / "docs" / "spark.md").read_text()
    for setting in TUNED:
        assert f"| `{setting}` |" in guide


@pytest.mark.parametrize(("document", "least"), [("configuration.md", 3), ("install.md", 1)])
def test_the_examples_of_settings(document: str, least: int) -> None:
    for command, printed in steps(document, least):
        code, said = run(command, ROOT)
        assert said == printed, command
        assert code == (2 if re.search("^error:", printed, re.M) else 0), command


def run(command: str, folder: Path, **environment: str) -> tuple[int, str]:
    """Return the exit code and output of a command; nadi's commands run in this process unless they need a shell, which
    takes a fifth of the time.
    """
    if command.startswith("nadi ") and not set(command) & set("|<>&;$"):
        with chdir(folder):
            result = CliRunner().invoke(app, shlex.split(command)[1:], env=environment)
        return result.exit_code, result.stdout + result.stderr
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command],
        env={**os.environ, "PATH": path, **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.returncode, done.stdout + done.stderr


def steps(document: str, least: int = 10) -> list[tuple[str, str]]:
    """Return the commands of a document's transcripts, and the output of each."""
    transcripts = re.findall(r"```console\n(.*?)```", (ROOT / "docs" / document).read_text(), re.DOTALL)
    steps = [step.partition("\n") for text in transcripts for step in re.split(r"^\$ ", text, flags=re.M)[1:]]
    assert len(steps) >= least
    return [(command, printed) for command, _, printed in steps]


@pytest.mark.skipif(shutil.which("curl") is None, reason="the examples are for curl")
def test_the_examples_of_rest(tmp_path: Path) -> None:
    with nadi.embedded(tmp_path, rest_port=0) as server:
        for command, printed in steps("rest.md", 5):
            code, said = run(command, tmp_path, NADI=server.rest_uri)
            assert (code, said.rstrip("\n")) == (0, printed.rstrip("\n")), command
