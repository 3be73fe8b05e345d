"""NADI_LIMITS: an invalid value is reported in one line, whatever the command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nadi.limits import override


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("foo=1", "FOO"),
        ("peers_bytes=abc", "PEERS_BYTES"),
        ("peers_bytes=-5", "PEERS_BYTES"),
        ("run_least_bytes=4095", "RUN_LEAST_BYTES"),
        ("log_file_bytes=10000000", "LOG_FILE_BYTES"),
        ("log_first_file_bytes=4096", "LOG_FIRST_FILE_BYTES"),
    ],
)
def test_invalid_limit_ends_the_command_with_one_line(tmp_path: Path, text: str, named: str) -> None:
    script = "import sys; sys.argv = ['nadi', 'up', sys.argv[1]]; from nadi.cli.app import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "data")],
        env={**os.environ, "NADI_LIMITS": text},
        text=True,
        capture_output=True,
        timeout=60,
    )
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: NADI_LIMITS: ")
    assert named in line
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("value", ["0", "-1", "", "1.5", "x", "1e3"])
def test_override_of_an_integer_limit_requires_a_positive_integer(value: str) -> None:
    limits = {"SIZE_BYTES": 10}
    with pytest.raises(ValueError, match="SIZE_BYTES"):
        override(limits, f"size_bytes={value}")
    assert limits == {"SIZE_BYTES": 10}


@pytest.mark.parametrize("value", ["0", "-0.5", "nan", "inf", "-inf", "x"])
def test_override_of_a_limit_requires_a_positive_number(value: str) -> None:
    limits = {"WAIT_S": 1.5}
    with pytest.raises(ValueError, match="WAIT_S"):
        override(limits, f"wait_s={value}")
    assert limits == {"WAIT_S": 1.5}
