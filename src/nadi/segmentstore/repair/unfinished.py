"""DIR/unfinished-repair: a repair gave up entries of tables, and what they said of streams must still be recreated.

It is written before anything is given up, and deleted once the controller has checked (`nadi.standalone.anew`); so
neither a killed repair nor a server started in between skips that.
"""

from __future__ import annotations

from pathlib import Path

from nadi.segmentstore.tier1 import disk

_FILE = "unfinished-repair"


def note(folder: Path) -> None:
    """Create the file durably; blocking. It is empty: a full disk has room for that."""
    (folder / _FILE).touch(mode=0o600)
    disk.sync_folder(folder)


def is_noted(folder: Path) -> bool:
    return (folder / _FILE).exists()


def clear(folder: Path) -> None:
    """Delete the file: the work is done; blocking."""
    (folder / _FILE).unlink(missing_ok=True)
    disk.sync_folder(folder)
