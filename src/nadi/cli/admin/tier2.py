"""`nadi tier2`: where a stopped data folder keeps its chunks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from nadi.cli.admin.check import locked
from nadi.cli.admin.storing import OPTION_HELP, TIER2_HELP, store_options
from nadi.cli.printing import errors_told, say
from nadi.errors import DataFolderError, InvalidArgumentError

tier2_app = typer.Typer(help="Where a stopped data folder keeps its chunks (docs/tier2.md).", no_args_is_help=True)
Folder = Annotated[Path, typer.Argument(help="The data folder; no server may be using it.")]
Options = Annotated[list[str] | None, typer.Option("--tier2-option", metavar="KEY=VALUE", help=OPTION_HELP)]
_SAY_EACH_S = 5.0


@tier2_app.command()
def move(
    data: Folder,
    to: Annotated[str | None, typer.Option(help=f"There. {TIER2_HELP}")] = None,
    back: Annotated[bool, typer.Option("--back", help="Into the data folder.")] = False,
    tier2_option: Options = None,
) -> None:
    """Move the chunks of a data folder to a store, or back. Interrupted, it goes on when it is started again."""
    import asyncio

    from nadi.runtime import REAL
    from nadi.segmentstore.datafolder import renew_format
    from nadi.segmentstore.tier2.relocation import move_back, move_out
    from nadi.segmentstore.tier2.whereabouts import Tier2

    with errors_told(OSError):
        if (to is None) != back:
            raise InvalidArgumentError("say where the chunks are to be: --to URL, or --back")
        with locked(data, changes=True):
            _check_not_moved(data)
            renew_format(data)
            told = _Told()
            if to is not None:
                there = Tier2(to, store_options(to, tier2_option, "--tier2-option"))
                size = asyncio.run(move_out(data, there, REAL, told))
                say(f"{to} has the chunks of {data}, {size:,} bytes: start its server with --tier2 {to}")
            else:
                size = asyncio.run(move_back(data, store_options("", tier2_option, "--tier2-option"), REAL, told))
                say(f"{data} has its chunks, {size:,} bytes: start its server without --tier2")


@tier2_app.command()
def claim(
    data: Folder,
    tier2: Annotated[str | None, typer.Option(help=f"{TIER2_HELP} [default: as the folder says]")] = None,
    tier2_option: Options = None,
    containers: Annotated[
        int | None, typer.Option(help="Of a folder that was lost and is begun anew: how many it had.", min=1)
    ] = None,
) -> None:
    """Say that a store's chunks are this folder's: those that were copied there, that a copy of the folder, which is
    gone, had last, or that are all there is of a lost one, for `nadi repair` to build it from."""
    import asyncio

    from nadi.runtime import REAL
    from nadi.segmentstore.datafolder import renew_format
    from nadi.segmentstore.tier2.relocation import claim_anew
    from nadi.segmentstore.tier2.whereabouts import Tier2

    with errors_told(OSError):
        if tier2 is None and tier2_option:
            raise InvalidArgumentError("--tier2-option is for a store of chunks: give its --tier2, too")
        if containers is not None and tier2 is None:
            raise InvalidArgumentError("--containers is for a folder that is begun anew: give its --tier2, too")
        with locked(data, changes=True) if containers is None else _begun(data):
            _check_not_moved(data)
            if containers is None:
                renew_format(data)
            at = None if tier2 is None else Tier2(tier2, store_options(tier2, tier2_option, "--tier2-option"))
            url = asyncio.run(claim_anew(data, at, REAL, containers))
    if containers is not None:
        say(f"{data} is begun anew: `nadi repair {data}` builds it from what is there")
    say(f"{url} is claimed for {data}: no other copy of the folder can use it any more")


@contextmanager
def _begun(data: Path) -> Iterator[None]:
    """The folder, its lock held, if nothing is there yet."""
    from nadi.segmentstore.datafolder import ELSEWHERE, FolderLock, container_folders, is_pristine

    lock = FolderLock(data)
    try:
        left = [path.name for path in container_folders(data).values() if is_pristine(path)]  # by an earlier try
        ours = {"lock", "format.tmp", ELSEWHERE, f"{ELSEWHERE}.tmp", *left}
        if others := {path.name for path in data.iterdir()} - ours:
            raise DataFolderError(f"{data} isn't empty, it has {min(others)}: leave --containers out, or take another")
        yield
    finally:
        lock.release()


def _check_not_moved(data: Path) -> None:
    from nadi.segmentstore import moved

    moved.check(data)


class _Told:
    """Says now and then how far it is."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self, what: str, done_bytes: int, total_bytes: int) -> None:
        if time.monotonic() - self._last >= _SAY_EACH_S:
            self._last = time.monotonic()
            say(f"{what}: {done_bytes:,} of {total_bytes:,} bytes")
