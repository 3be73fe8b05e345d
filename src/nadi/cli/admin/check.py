"""`nadi check`: what a stopped data folder holds, which parts are damaged, and what that means."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nadi.cli.printing import errors_told, say
from nadi.errors import InvalidArgumentError

if TYPE_CHECKING:
    from nadi.segmentstore.repair.inspection import Report


def check(data: Annotated[Path, typer.Argument(help="The data folder; no server may be using it.")]) -> None:
    """Check every byte of a stopped data folder and report what is damaged; nothing is changed.

    Exits with code 0 if everything is sound, 1 if anything is damaged.
    """
    with locked(data, changes=False):
        reports = inspected(data)
    if not tell(reports):
        raise typer.Exit(1)


@contextmanager
def locked(data: Path, *, changes: bool) -> Iterator[None]:
    """Hold the folder's lock; end the command if a server has locked it, or if it is not a data folder, or a later
    version's."""
    from nadi.segmentstore.datafolder import FolderLock, check_is_whole, check_version, is_data_folder

    with errors_told(OSError):
        if not data.is_dir():
            raise FileNotFoundError(f"there is no folder {data}")
        check_is_whole(data)
        check_version(data)
        if not is_data_folder(data):
            what = "it has neither a `store.json` nor containers"
            raise InvalidArgumentError(f"{data} is not a nadi data folder: {what}")
        lock = FolderLock(data, changes=changes)
    try:
        yield
    finally:
        lock.release()


def inspected(data: Path) -> list[Report]:
    """Inspect the folder; end the command if it can't be read."""
    import asyncio
    import tempfile

    from nadi.segmentstore import reserve
    from nadi.segmentstore.repair.inspection import inspect_folder

    with errors_told(OSError), reserve.in_words(Path(tempfile.gettempdir())):  # states are copied there
        return asyncio.run(inspect_folder(data))


def tell(reports: list[Report], *, is_repaired: bool = False) -> bool:
    """Print what was found, and return whether everything is sound.

    is_repaired: something was given up just now, and no longer shows up.
    """
    for report in reports:
        say(report.name)
        for kind, lines in (
            ("ok", report.sound),
            ("heals", report.healed),
            ("renews", report.renewed),
            ("LOST", report.lost),
        ):
            for line in lines:
                say(f"  {kind:<6} {line}")
    if all(report.is_sound for report in reports):
        say("what is left is sound" if is_repaired else "sound: nothing is damaged")
        return True
    if not any(report.lost for report in reports):
        what = "no more is lost than a repair gave up" if is_repaired else "nothing is lost"
        say(f"damaged, and {what}: a server repairs it when it starts")
    else:
        say("damaged: what is LOST can only be restored from a copy; `nadi repair` does what is possible without one")
    return False
