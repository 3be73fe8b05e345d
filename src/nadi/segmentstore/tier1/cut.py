"""Giving up the end of a damaged log, on an operator's word: `nadi repair --cut-log FILE --at BYTE`.

Nothing is destroyed: what is cut off stays in the folder under names that end in `.damaged-<time>`.
If it is interrupted, it can be run again.

A log that ends before what the container's state reflects has lost frames, and is refused. After a cut it may end
there: the file `cut` says so, one line `nadi-log-cut <number of the last file kept> <crc>`, until a later file is used.
"""

from __future__ import annotations

import os
import re
import shutil
from datetime import UTC, datetime
from pathlib import Path

from nadi.errors import InvalidArgumentError
from nadi.segmentstore.tier1 import disk
from nadi.segmentstore.tier1.fence import forget, latest
from nadi.segmentstore.tier1.layout import BLOCK_BYTES, log_file_number
from nadi.segmentstore.tier1.runs import FOLDER as RUNS
from nadi.segmentstore.tier1.runs import RunReader

CUT_FILE = "cut"
_LINE = re.compile(r"nadi-log-cut (\d+)")


def cut_at(folder: Path) -> int | None:
    """The number of the last file that the latest cut of this log kept, 0 for none; None if it was never cut."""
    try:
        match = _LINE.fullmatch(disk.read_line(folder / CUT_FILE))
    except FileNotFoundError:
        return None
    return int(match[1]) if match else None


def cut(folder: Path, file: str | Path, offset: int, *, now: datetime | None = None) -> str:
    """End the log in `folder` at byte `offset` of `file`; returns what was done, line by line.

    The log must not be open. `file` and `offset` are those of a CorruptLogError (the folder in `file`
    doesn't matter). `now` goes into the names of what is set aside.

    Raises:
        InvalidArgumentError: `file` isn't a log file's name, or `offset` lies past its end.
    """
    path = folder / Path(file).name
    number = check_place(path, offset)
    whole = offset <= BLOCK_BYTES  # nothing but its header, or not even that, would be left
    now = now or datetime.now(UTC)
    done = []
    runs = RunReader(folder).keep_aside(())  # a server deletes those that no frame mentions any more
    if runs:
        done.append(f"{RUNS}: all files are also in {runs}")
    forget(folder)
    later = sorted((n, p) for p in folder.iterdir() if (n := log_file_number(p.name)) is not None and n >= number)
    for later_number, later_path in reversed(later):  # the highest first: never a gap in the numbers
        aside = disk.free_name(later_path.with_name(disk.aside_name(later_path.name, now)))
        if later_number > number or whole:
            later_path.rename(aside)
            done.append(f"{later_path.name}: set aside as {aside.name}")
        else:
            shutil.copyfile(later_path, aside)
            _sync(aside)
            done.append(f"{later_path.name}: copied to {aside.name}")
        disk.sync_folder(folder)
    if path.exists():
        os.truncate(path, offset)
        _sync(path)
        done.append(f"{path.name}: cut at byte {offset:,}; the frames before it are kept")
    disk.replace_line(folder / CUT_FILE, f"nadi-log-cut {number if path.exists() else number - 1}")
    return "\n".join(done) or f"{folder} holds no log file from {path.name} on: the log ends before it"


def check_place(file: Path, offset: int) -> int:
    """Check that a log can be ended there; return the file's number.

    Raises:
        InvalidArgumentError: that isn't a log file, or `offset` lies past its end. A missing file has a byte 0.
    """
    number = log_file_number(file.name)
    if number is None:
        raise InvalidArgumentError(f"{file.name} is not a log file: its name must be like log-0000000000000012.nadi")
    there = [n for path in file.parent.glob("log-*") if (n := log_file_number(path.name)) is not None]
    if not file.exists() and number > max([latest(file.parent, None), *there]) + 1:
        raise InvalidArgumentError(f"there is no file {file}, and the log never had one of that number")
    if not 0 <= offset <= (file.stat().st_size if file.exists() else 0):
        raise InvalidArgumentError(f"byte {offset:,} is not in {file}")
    return number


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
