"""`script/bootstrap` with failing registries, interruptions and concurrent runs.

Scripts that count their calls stand in for Python, pip and apt; continuous integration runs the real ones.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

BOOTSTRAP = Path(__file__).parents[1] / "script/bootstrap"

# Each call appends a line to `calls`. pip fails as often as `refusals` says, and waits while there is `hold`.
PYTHON = """\
#!/usr/bin/env bash
state={state}
case "$1 ${{2:-}}" in
  "-c import ensurepip, venv") [ ! -e $state/no-venv ] ;;
  "-c "*print*) echo 3.13 ;;
  "-c "*) ;;
  "--version "*) echo Python 3.13.0 ;;
  "-m venv")
    echo venv >>$state/calls
    mkdir -p "$3/bin"
    cp {state}/bin/python3 "$3/bin/python" ;;
  "-m pip")
    echo pip >>$state/calls
    while [ -e $state/hold ]; do read -t 0.02 <>$state/pipe; done
    {refuse} ;;
esac
"""
REFUSE = """\
left=$(cat $state/refusals); \
if [ "$left" != 0 ]; then echo $((left - 1)) >$state/refusals; echo "ERROR: 403 Forbidden"; exit 1; fi"""
APT = """\
#!/usr/bin/env bash
state={state}
case "$*" in
  *install*)
    echo apt >>$state/calls
    {refuse}
    rm $state/no-venv ;;
esac
"""


@dataclass(frozen=True, slots=True)
class Clone:
    """A folder with script/bootstrap and stand-ins for the programs it runs."""

    folder: Path
    state: Path

    def start(self, **variables: str) -> subprocess.Popen[str]:
        environment = {
            "PATH": f"{self.state}/bin:{os.environ['PATH']}",
            "JAVA_HOME": str(self.state / "java"),
            "HOME": str(self.state),
            **variables,
        }
        return subprocess.Popen(
            [self.folder / "script/bootstrap"],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # so that it can be killed with all it started
        )

    def run(self, **variables: str) -> tuple[int, list[str]]:
        """Run it; return the exit code and the output."""
        process = self.start(**variables)
        _, said = process.communicate(timeout=60)
        return process.returncode, said.splitlines()

    def refuse(self, times: int) -> None:
        (self.state / "refusals").write_text(f"{times}\n")

    def calls(self) -> list[str]:
        return (self.state / "calls").read_text().split()

    def pauses(self) -> list[str]:
        return (self.state / "pauses").read_text().split()


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    clone = Clone(tmp_path / "clone", tmp_path / "state")
    (clone.folder / "script").mkdir(parents=True)
    shutil.copy(BOOTSTRAP, clone.folder / "script")
    (clone.folder / "pyproject.toml").write_text("[project]\n")
    scripts = {
        "bin/python3": PYTHON,
        "bin/apt-get": APT,
        "bin/apt-cache": "#!/bin/sh\n",
        "bin/sudo": '#!/bin/sh\nshift\nexec "$@"\n',
        "bin/sleep": "#!/bin/sh\necho $1 >>{state}/pauses\n",
        "java/bin/java": "#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\n",
    }
    for name, text in scripts.items():
        script = clone.state / name
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(text.format(state=clone.state, refuse=REFUSE))
        script.chmod(0o755)
    os.mkfifo(clone.state / "pipe")
    (clone.state / "pauses").touch()
    clone.refuse(0)
    return clone


def until_pip_works(clone: Clone, process: subprocess.Popen[str]) -> None:
    calls = clone.state / "calls"
    while not (calls.exists() and "pip" in clone.calls()):
        assert process.poll() is None, "it ended before it came to pip"
        time.sleep(0.01)


def test_temporary_pip_failure_is_retried(clone: Clone) -> None:
    clone.refuse(2)
    code, said = clone.run()
    assert code == 0
    assert clone.calls() == ["venv", "pip", "pip", "pip"]
    assert clone.pauses() == ["2", "10"]
    assert said[1] == "bootstrap: pip failed (ERROR: 403 Forbidden); trying again in 2 s"
    assert said[-1] == "bootstrap: nadi is ready in .venv (Python 3.13.0)."


def test_permanent_pip_failure_ends_with_reason_and_log(clone: Clone) -> None:
    clone.refuse(1000)
    code, said = clone.run()
    assert code == 1
    assert clone.calls() == ["venv", "pip", "pip", "pip", "pip"]
    assert "ERROR: 403 Forbidden" in said
    assert said[-1].startswith("bootstrap: nadi is not set up: pip could not install it; see .venv/bootstrap.log.")
    assert (clone.folder / ".venv/bootstrap.log").read_text().splitlines() == ["ERROR: 403 Forbidden"] * 4
    clone.refuse(0)
    assert clone.run()[0] == 0
    assert clone.calls().count("venv") == 1, "what pip was refused does no harm to .venv"


def test_second_run_does_nothing(clone: Clone) -> None:
    assert clone.run()[0] == 0
    assert clone.run() == (0, ["bootstrap: nadi is ready in .venv (Python 3.13.0)."])
    assert clone.calls() == ["venv", "pip"]
    (clone.folder / "pyproject.toml").write_text("[project]\nversion = '2'\n")
    assert clone.run()[0] == 0
    assert clone.calls() == ["venv", "pip", "pip"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_run_is_not_taken_for_complete(clone: Clone, number: signal.Signals) -> None:
    (clone.state / "hold").touch()
    process = clone.start()
    until_pip_works(clone, process)
    os.killpg(process.pid, number)
    _, said = process.communicate(timeout=60)
    assert process.returncode != 0
    if number is not signal.SIGKILL:
        assert said.splitlines()[-1] == "bootstrap: nadi is not set up: interrupted; run this again to go on."
    (clone.state / "hold").unlink()
    assert clone.run()[0] == 0
    assert clone.calls() == ["venv", "pip", "venv", "pip"]


def test_two_at_once_wait_for_each_other(clone: Clone) -> None:
    (clone.state / "hold").touch()
    first = clone.start()
    until_pip_works(clone, first)
    second = clone.start()
    assert second.stderr is not None
    assert second.stderr.readline() == "bootstrap: waiting for another bootstrap of this folder\n"
    (clone.state / "hold").unlink()
    for process in (first, second):
        _, said = process.communicate(timeout=60)
        assert process.returncode == 0
        assert said.splitlines()[-1] == "bootstrap: nadi is ready in .venv (Python 3.13.0)."
    assert clone.calls() == ["venv", "pip"]


def test_another_python_has_a_folder_of_its_own(clone: Clone) -> None:
    code, said = clone.run(NADI_PYTHON="python3")
    assert (code, said[-1]) == (0, "bootstrap: nadi is ready in .venv-3.13 (Python 3.13.0).")
    assert (clone.folder / ".venv-3.13/bin/python").exists()
    assert not (clone.folder / ".venv").exists()
    code, said = clone.run(NADI_PYTHON="python0.0")
    assert (code, said[-1]) == (1, "bootstrap: NADI_PYTHON=python0.0 does not run.")


def test_temporary_apt_failure_is_retried(clone: Clone) -> None:
    (clone.state / "no-venv").touch()
    clone.refuse(1)
    assert clone.run()[0] == 0
    assert clone.calls() == ["apt", "apt", "venv", "pip"]
