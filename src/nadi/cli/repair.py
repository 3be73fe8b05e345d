"""`nadi repair`: give up the damaged tail of a durable log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nadi.cli.printing import failure, say
from nadi.errors import NadiError


def repair(
    cut_log: Annotated[Path, typer.Option(help="The damaged file of the durable log, as the error named it.")],
    at: Annotated[int, typer.Option(help="The byte where the damage begins, as the error named it.")],
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
) -> None:
    """Give up everything acknowledged after a damaged place of the log; what is cut is set aside, not erased."""
    from nadi.segmentstore.datafolder import FolderLock
    from nadi.segmentstore.tier1.cut import cut

    folder = cut_log.resolve().parent
    try:
        lock = FolderLock(folder.parent.parent)
    except NadiError as error:
        raise failure(error) from None
    if not yes:
        typer.confirm(f"Give up everything in {folder} from byte {at} of {cut_log.name} on?", abort=True)
    try:
        say(cut(folder, cut_log.name, at))
    except (NadiError, OSError, ValueError) as error:
        raise failure(error) from None
    finally:
        lock.release()
