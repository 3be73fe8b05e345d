"""`nadi check`: what a stopped data folder holds, what of it is damaged, and what that means."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nadi.cli.printing import failure, say
from nadi.errors import InvalidArgumentError, NadiError

if TYPE_CHECKING:
    from nadi.segmentstore.datafolder import FolderLock
    from nadi.segmentstore.repair.inspection import Report


def check(data: Annotated[Path, typer.Argument(help="The data folder; no server may have it open.")]) -> None:
    """Look at every byte of a stopped data folder and tell what is damaged; nothing is changed.

    Ends with code 0 if all is sound, 1 if anything is damaged.
    """
    lock = locked(data, changes=False)
    try:
        reports = inspected(data)
    finally:
        lock.release()
    if not tell(reports):
        raise typer.Exit(1)


def locked(data: Path, *, changes: bool) -> FolderLock:
    """The folder's lock; ends the command where a server has it, or where there is no data folder."""
    from nadi.segmentstore.datafolder import FolderLock, check_is_whole, is_data_folder

    try:
        if not data.is_dir():
            raise FileNotFoundError(f"there is no folder {data}")
        check_is_whole(data)
        if not is_data_folder(data):
            what = "it has neither a file `format` nor containers"
            raise InvalidArgumentError(f"{data} is no data folder of nadi: {what}")
        return FolderLock(data, changes=changes)
    except (NadiError, OSError) as error:
        raise failure(error) from None


def inspected(data: Path) -> list[Report]:
    """What a look at the folder shows; ends the command where it can't be read."""
    import asyncio
    import tempfile

    from nadi.segmentstore import reserve
    from nadi.segmentstore.repair.inspection import inspect_folder

    try:
        with reserve.in_words(Path(tempfile.gettempdir())):  # states are copied there
            return asyncio.run(inspect_folder(data))
    except (NadiError, OSError) as error:
        raise failure(error) from None


def tell(reports: list[Report], *, is_repaired: bool = False) -> bool:
    """Print what was found; whether all is sound. is_repaired: what was given up just now isn't found any more."""
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
    is_less = is_repaired or any(report.given_up_from for report in reports)
    if all(report.is_sound for report in reports):
        say("what is left is sound" if is_less else "sound: nothing is damaged")
        return True
    if not any(report.lost for report in reports):
        what = "nothing more than a repair gave up is lost" if is_less else "nothing is lost"
        say(f"damaged, and {what}: a server mends it when it is started")
    else:
        say("damaged: what is LOST can only come back from a copy; `nadi repair` does what can be done without one")
    return False
