"""`nadi spark archive`: the archive of Spark's classes is written, or deleted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from nadi.errors import NadiError
from nadi.spark.archive import archive_file

_REHEARSAL_S = 600.0


def write_archive() -> str:
    """Write it, in place of an older one; what to tell the user. NadiError if that fails."""
    file = _file()
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        _rehearse(draft)
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
    return f"{file} has {file.stat().st_size / 1e6:,.0f} MB: sessions of nadi.spark.tuned use it from now on"


def delete_archive() -> str:
    """What to tell the user."""
    file = _file()
    if not file.is_file():
        return f"there is none: {file}"
    file.unlink()
    return f"deleted {file}"


def _rehearse(draft: Path) -> None:
    command = [sys.executable, "-m", "nadi.cli.spark.rehearsal", str(draft)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_REHEARSAL_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise NadiError(f"Spark did not end within {_REHEARSAL_S:.0f} s: nothing was written") from error
    if done.returncode or not draft.is_file():
        told = "\n".join((done.stderr or done.stdout).strip().splitlines()[-5:])
        raise NadiError(f"Java wrote no archive (it takes Java 17 or newer):\n{told}")


def _file() -> Path:
    try:
        file = archive_file()
    except ImportError as error:
        raise NadiError("there is no pyspark here: pip install 'nadi[spark]'") from error
    if file is None:
        raise NadiError("there is no Java here: set JAVA_HOME, or install one (Java 17 or newer)")
    return file
