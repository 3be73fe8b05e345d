"""`nadi tier2`: where a stopped data folder keeps its chunks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nadi.cli.admin.storing import OPTION_HELP, TIER2_HELP, store_options
from nadi.cli.printing import errors_told, say
from nadi.errors import InvalidArgumentError

tier2_app = typer.Typer(help="Where a stopped data folder keeps its chunks (docs/tier2.md).", no_args_is_help=True)


@tier2_app.callback()
def _group() -> None:
    """So that `claim` stays a command of its own."""


@tier2_app.command()
def claim(
    data: Annotated[Path, typer.Argument(help="The data folder; no server may be using it. Made if it was lost.")],
    tier2: Annotated[str | None, typer.Option(help=TIER2_HELP, show_default="as the folder says")] = None,
    tier2_option: Annotated[
        list[str] | None, typer.Option("--tier2-option", metavar="KEY=VALUE", help=OPTION_HELP)
    ] = None,
) -> None:
    """Say that a store's chunks are this folder's: those that were copied there, that a copy of the folder, which is
    gone, had last, or that are all there is of a lost one, for `nadi repair` to build it from."""
    import asyncio

    from nadi.runtime import REAL
    from nadi.segmentstore.datafolder import FolderLock, Tier2, check_version, is_data_folder
    from nadi.segmentstore.tier2.opening import claim_anew

    with errors_told(OSError):
        if tier2 is None and tier2_option:
            raise InvalidArgumentError("--tier2-option is for a store of chunks: give its --tier2, too")
        if tier2 is None and not is_data_folder(data):
            raise InvalidArgumentError(f"{data} is not a nadi data folder: to begin it anew, give its --tier2")
        is_new = not is_data_folder(data)
        if is_new and data.is_dir() and (others := sorted({path.name for path in data.iterdir()} - {"lock"})):
            raise InvalidArgumentError(f"{data} isn't empty, it has {others[0]}: give an empty folder")
        lock = FolderLock(data)
        try:
            check_version(data)
            at = None if tier2 is None else Tier2(tier2, store_options(tier2, tier2_option, "--tier2-option"))
            url = asyncio.run(claim_anew(data, at, REAL))
        finally:
            lock.release()
    if is_new:
        say(f"{data} is begun anew: `nadi repair {data}` builds it from what is there")
    say(f"{url} is claimed for {data}: no other copy of the folder can use it any more")
