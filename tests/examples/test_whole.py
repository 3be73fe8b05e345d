"""The commands of the examples' page, in a short form: each exits with 0, having found the expected results."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from examples.plays.speeches import WHEEL
from examples.programs import ROOT
from examples.wheels import WheelMissingError

SHORT = {  # the options of a short run, and a part of its output
    "python -m examples.alerts": ("--readings 3000", "equal to the plain computation"),
    "python -m examples.camera": ("--seconds 6", "byte for byte"),
    "python -m examples.log_patterns": ("--minutes 30 --a-minute 60 --seconds 2", "equal to the plain computation"),
    "python -m examples.plays": ("--plays 3", "equal to a scan"),
    "python -m examples.returns": ("--lines 5000 --seconds 2", "equal to the plain computation"),
    "python -m examples.sensor_slices": ("--readings 700 --seconds 2", "exact to the event"),
    "python -m examples.splits": ("--by processes --readings 5000", "exactly as written"),
    "script/demo": ("", "replays that agree to the last digit: 65"),
}
QUICK = "python -m examples.log_patterns"
pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def commands() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / "examples.md").read_text(), re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if not line.startswith("source ")]


def run(command: str, folder: Path) -> str:
    if "plays" in command:
        try:
            WHEEL.fetched()
        except WheelMissingError as error:
            pytest.skip(f"no plays: {error}")
    more, expected = SHORT[command]
    words = command.replace("script/demo", "python -m examples.smart_meters").split()[1:] + more.split()
    if command == "script/demo":
        words += ["--chart", str(folder / "weeks.png")]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, env=os.environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    said = " ".join(done.stdout.split())
    assert expected in said
    return said


def test_the_page_has_a_command_for_each_example() -> None:
    assert sorted(commands()) == sorted(SHORT)
    folders = {path.parent.name for path in (ROOT / "examples").glob("*/__main__.py")}
    assert folders == {command.rpartition(".")[2] for command in SHORT if "." in command} | {"smart_meters"}


@pytest.mark.slow
def test_an_example_runs_as_printed(tmp_path: Path) -> None:
    run(QUICK, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("command", [command for command in SHORT if command != QUICK])
def test_the_other_examples_run_as_printed(command: str, tmp_path: Path) -> None:
    run(command, tmp_path)
