"""Whether a container's state may be opened: its file is looked at before LMDB maps it.

A clean stop leaves a seal beside the file, `state/seal`, with the file's size and checksum; it is removed before
anything is written. So a file with a seal is as it was left, or damaged; one without, from a server that was
killed, is walked page by page (`pages`), a larger one by a process of its own. A seal also says, by the epoch of
the log's owner, whether the state has all that the log ever said: then nothing of the log is needed to start.
"""

from __future__ import annotations

import contextlib
import enum
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import lmdb
import msgspec
from crc32c import crc32c

from nadi.errors import UnavailableError
from nadi.limits import MIB, STATE_CHECK_S
from nadi.segmentstore.state.checked import STATE_KEY, Inspected
from nadi.segmentstore.state.commit import is_checked, plain
from nadi.segmentstore.state.stored import decode_sequence
from nadi.segmentstore.tier1 import disk

STATE_FILE, SEAL_FILE = "data.mdb", "seal"
_LINE = re.compile(r"nadi-state-seal (\d+) ([0-9a-f]{8})(?: all-to-epoch (\d+))?(?: given-up-from (\d+))?")
_BLOCK_BYTES = MIB
_OWN_PROCESS_BYTES = 8 * MIB  # a larger file is walked by a process of its own, whose start takes 0.15 s

_ahead: dict[Path, tuple[tuple[int, int, int], subprocess.Popen[bytes]]] = {}  # see `look_ahead`


class Verdict(enum.Enum):
    MISSING = "missing"
    SOUND = "sound"
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class Examined:
    """What a look at the file has shown. sequence: of the last frame it reflects. records: by table, where it was
    walked. epoch: it has all that was in the log when the owner of that epoch left it; 0: that isn't said.
    given_up_from: but for what frames from that one on said, if a repair gave up the end of the log; 0: it didn't."""

    verdict: Verdict
    what: str = ""
    sealed: bool = False
    epoch: int = 0
    given_up_from: int = 0
    sequence: int = 0
    records: dict[str, int] = field(default_factory=dict)


def seal(folder: Path, epoch: int = 0, *, given_up_from: int = 0) -> None:
    """Vouch for the state in `folder`, which has been closed; blocking.

    epoch: it has all that is in the log, and the log's last owner was that of this epoch; 0: it may lack some.
    given_up_from: the first frame of an end of the log that a repair gave up; 0: of none.
    """
    size, crc = _checksum(folder / STATE_FILE)
    line = f"nadi-state-seal {size} {crc:08x}" + (f" all-to-epoch {epoch}" if epoch else "")
    line += f" given-up-from {given_up_from}" if given_up_from else ""
    disk.replace_line(folder / SEAL_FILE, line)


def unseal(folder: Path) -> None:
    """Take the seal away, durably; blocking."""
    try:
        (folder / SEAL_FILE).unlink()
    except FileNotFoundError:
        return
    disk.sync_folder(folder)


def examine(folder: Path, container: int) -> Examined:
    """Check the state in `folder`, which nobody has open; nothing is changed. Blocking.

    Raises:
        OSError: the file can't be read.
        UnavailableError: it takes far too long.
    """
    file = folder / STATE_FILE
    if not file.exists() or not file.stat().st_size:
        return Examined(Verdict.MISSING, "there is none")
    found = _read_seal(folder)
    if found is not None:
        size, crc, epoch, given_up_from = found
        if (size, crc) == _checksum(file):
            sequence = _sealed_sequence(folder, container)
            if sequence is None:
                return Examined(Verdict.DAMAGED, "its own record is not one of this container", sealed=True)
            return Examined(Verdict.SOUND, sealed=True, epoch=epoch, given_up_from=given_up_from, sequence=sequence)
        return Examined(Verdict.DAMAGED, "it is not as it was left at the last clean stop", sealed=True)
    inspected = inspect_file(file, container)
    if inspected.damage:
        return Examined(Verdict.DAMAGED, inspected.damage)
    return Examined(Verdict.SOUND, sequence=inspected.sequence, records=inspected.records)


def _read_seal(folder: Path) -> tuple[int, int, int, int] | None:
    """Size, checksum, epoch, and the first frame that was given up; None where there is no seal, or one that is damaged
    itself: then the file is walked."""
    try:
        match = _LINE.fullmatch(disk.read_line(folder / SEAL_FILE))
    except FileNotFoundError:
        return None
    return (int(match[1]), int(match[2], 16), int(match[3] or 0), int(match[4] or 0)) if match else None


def _sealed_sequence(folder: Path, container: int) -> int | None:
    """The last frame that a sealed state reflects: the seal vouches for the file, so it may be mapped. None: the state
    isn't this container's."""
    with (
        lmdb.open(os.fsencode(folder), readonly=True, lock=False, max_dbs=1) as env,
        env.begin(db=env.open_db(b"state", create=False)) as txn,
    ):
        raw = bytes(txn.get(STATE_KEY) or b"")
    if not raw:
        return 0
    try:
        return decode_sequence(plain(raw) if is_checked(raw, container) else raw)  # of an earlier version: no checksum
    except msgspec.DecodeError:
        return None


def _checksum(file: Path) -> tuple[int, int]:
    size = crc = 0
    with file.open("rb", buffering=0) as stream:
        while block := stream.read(_BLOCK_BYTES):
            crc = crc32c(block, crc)
            size += len(block)
    return size, crc


def inspect_file(file: Path, container: int) -> Inspected:
    """Walk a state's file, a large one by a process of its own; blocking.

    Raises:
        OSError: it can't be read.
        UnavailableError: that takes far too long.
    """
    ahead = _ahead.pop(file.resolve(), None)
    if ahead is not None:
        was, process = ahead
        found = _answer(file, process)
        if was == _identity(file) and not found.damage:
            return found
    if file.stat().st_size > _OWN_PROCESS_BYTES:
        return _answer(file, _start(file, container))
    from nadi.segmentstore.state.file import inspector

    return inspector.inspect(file, container)


def look_ahead(folder: Path) -> None:
    """Have the states of a folder walked already, if it is one that a server was killed on, while the caller's modules
    are imported, which takes as long. What that finds counts only if nothing was written since, and all was well."""
    with contextlib.suppress(OSError):  # what a start stumbles over it tells itself
        for file in folder.glob(f"container-*/state/{STATE_FILE}"):
            number = file.parent.parent.name.removeprefix("container-")
            if number.isdecimal() and not (file.parent / SEAL_FILE).exists():
                was = _identity(file)
                if was[1] > _OWN_PROCESS_BYTES:
                    _ahead[file.resolve()] = was, _start(file, int(number))


def _identity(file: Path) -> tuple[int, int, int]:
    status = file.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _start(file: Path, container: int) -> subprocess.Popen[bytes]:
    # -P: what happens to lie in the current folder, a numpy.py, say, would be imported, and the state called damaged
    command = [sys.executable, "-P", "-m", "nadi.segmentstore.state.file.inspector", str(file), str(container)]
    source = str(Path(__file__).parents[4])  # where this very nadi lies
    paths = [source, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OPENBLAS_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=environment)


def _answer(file: Path, process: subprocess.Popen[bytes]) -> Inspected:
    try:
        told, errors = process.communicate(timeout=STATE_CHECK_S)
    except subprocess.TimeoutExpired as error:
        process.kill()
        what = f"reading {file} takes longer than {STATE_CHECK_S:.0f} s: see that its disk works"
        raise UnavailableError(what) from error
    if process.returncode != 0:
        last = errors.decode(errors="replace").strip().splitlines()[-1:]
        return Inspected(f"its check ended with code {process.returncode} ({''.join(last)})")
    return msgspec.json.decode(told, type=Inspected)
