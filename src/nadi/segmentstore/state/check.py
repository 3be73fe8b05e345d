"""Whether a container's state may be opened: its file is checked before the server maps it.

A clean stop leaves a seal beside the file, `state/seal`, with the file's size and checksum; it is removed before
anything is written. A file without one, from a server that was killed, is read completely by another process
(`checked`), which LMDB may crash. A seal also says, by the epoch of the log's owner, whether the state has all that the
log ever said: then nothing of the log is needed to start.
"""

from __future__ import annotations

import enum
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import lmdb
import msgspec
from crc32c import crc32c

from nadi.limits import MIB, STATE_CHECK_BYTES_PER_S, STATE_CHECK_S
from nadi.segmentstore.state import checked
from nadi.segmentstore.state.checked import CRC_BYTES, STATE_KEY, Inspected, is_whole, seed_of
from nadi.segmentstore.state.stored import decode_sequence
from nadi.segmentstore.tier1 import disk

STATE_FILE, SEAL_FILE = "data.mdb", "seal"
_LINE = re.compile(r"nadi-state-seal (\d+) ([0-9a-f]{8})(?: all-to-epoch (\d+))?(?: given-up-from (\d+))?")
_BLOCK_BYTES = MIB


class Verdict(enum.Enum):
    MISSING = "missing"
    SOUND = "sound"
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class Examined:
    """What a check has shown. sequence: of the last frame that the state reflects. epoch: it has all that was in the
    log when the owner of that epoch left it; 0: that isn't said. given_up_from: but for what frames from that one on
    said, if a repair gave up the end of the log; 0: it didn't."""

    verdict: Verdict
    what: str = ""
    sealed: bool = False
    epoch: int = 0
    given_up_from: int = 0
    sequence: int = 0


def seal(folder: Path, epoch: int = 0, *, given_up_from: int = 0) -> None:
    """Vouch for the state in `folder`, which has been closed; blocking. epoch: it has all that is in the log, and the
    log's last owner was that of this epoch; 0: it may lack some. given_up_from: the first frame of an end of the log
    that a repair gave up; 0: of none."""
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


def examine(folder: Path, container: int, copy: Path | None = None) -> Examined:
    """Check the state in `folder`, which nobody has open; nothing is changed. Blocking. copy: gets a compact copy of a
    sound file without a seal. That has no list of free pages; damage of the file's own, which no record shows, would
    let LMDB write over pages in use. OSError: the file can't be read, or the copy can't be written."""
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
    inspected = inspect_file(file, container, copy)
    if inspected.damage:
        return Examined(Verdict.DAMAGED, inspected.damage)
    return Examined(Verdict.SOUND, sequence=inspected.sequence)


def _read_seal(folder: Path) -> tuple[int, int, int, int] | None:
    """Size, checksum, epoch, and the first frame that was given up; None where there is no seal, or one that is damaged
    itself: then the file is inspected."""
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
    return decode_sequence(raw[:-CRC_BYTES]) if is_whole(seed_of(container, "state"), STATE_KEY, raw) else None


def _checksum(file: Path) -> tuple[int, int]:
    size = crc = 0
    with file.open("rb", buffering=0) as stream:
        while block := stream.read(_BLOCK_BYTES):
            crc = crc32c(block, crc)
            size += len(block)
    return size, crc


def inspect_file(file: Path, container: int, copy: Path | None = None) -> Inspected:
    """Inspect a state's file in a process of its own, which damage may crash: see `checked.inspect`. Blocking. OSError:
    it can't be read."""
    file.open("rb").close()
    # -P: what happens to lie in the current folder, an lmdb.py, say, would be imported, and the state called damaged
    command = [sys.executable, "-P", "-m", checked.__name__, str(file), str(container), *([str(copy)] if copy else [])]
    source = str(Path(__file__).parents[3])  # where this very nadi lies
    paths = [source, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment,
            timeout=STATE_CHECK_S + file.stat().st_size / STATE_CHECK_BYTES_PER_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return Inspected(f"its inspection did not end within {error.timeout:.0f} s")
    if done.returncode != 0:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return Inspected(f"its inspection ended with code {done.returncode} ({''.join(last)})")
    return msgspec.json.decode(done.stdout, type=Inspected)
