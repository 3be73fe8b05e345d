"""NADI_LIMITS: a value that is wrong is told in one line, whatever the command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nadi.limits import override


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("foo=1", "unknown limit FOO"),
        ("peers_bytes=abc", "PEERS_BYTES can't be 'abc': use a whole number above 0, such as 268435456"),
        ("peers_bytes=-5", "PEERS_BYTES can't be '-5': use a whole number above 0, such as 268435456"),
        ("run_least_bytes=4095", "RUN_LEAST_BYTES can't be '4095': use a whole number not below 4096, such as 131072"),
        (
            "log_file_bytes=10000000",
            "LOG_FILE_BYTES can't be '10000000': use a multiple of 4096 not below 8192, such as 67108864",
        ),
        (
            "log_first_file_bytes=4096",
            "LOG_FIRST_FILE_BYTES can't be '4096': use a multiple of 4096 not below 8192, such as 8388608",
        ),
    ],
)
def test_a_wrong_limit_ends_the_command_with_one_line(tmp_path: Path, text: str, wrong: str) -> None:
    script = "import sys; sys.argv = ['nadi', 'up', sys.argv[1]]; from nadi.cli.app import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "data")],
        env={**os.environ, "NADI_LIMITS": text},
        text=True,
        capture_output=True,
        timeout=60,
    )
    assert ended.returncode == 2
    assert ended.stderr == f"error: NADI_LIMITS: {wrong}\n"
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("value", ["0", "-1", "", "1.5", "x", "1e3"])
def test_a_whole_number_above_0_is_wanted(value: str) -> None:
    limits = {"SIZE_BYTES": 10}
    with pytest.raises(ValueError, match="SIZE_BYTES"):
        override(limits, f"size_bytes={value}")
    assert limits == {"SIZE_BYTES": 10}


@pytest.mark.parametrize("value", ["0", "-0.5", "nan", "inf", "-inf", "x"])
def test_a_number_above_0_is_wanted(value: str) -> None:
    limits = {"WAIT_S": 1.5}
    with pytest.raises(ValueError, match="WAIT_S"):
        override(limits, f"wait_s={value}")
    assert limits == {"WAIT_S": 1.5}
