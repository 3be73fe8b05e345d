"""`nadi check`, `nadi repair` and `nadi tier2`: a stopped data folder is checked, repaired, and given its chunks.

`repair` names what is given up, then asks.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nadi.cli.admin.storing import TIER2_HELP, DataFolder, Tier2Options, store_options
from nadi.cli.options import Yes
from nadi.cli.printing import confirm, errors_told, say
from nadi.errors import InvalidArgumentError

if TYPE_CHECKING:
    from nadi.segmentstore.repair.inspection import InspectionReport


def check(data: DataFolder) -> None:
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
    from nadi.segmentstore.data_dir import FolderLock, check_is_whole, check_version, is_data_folder

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


def inspected(data: Path) -> list[InspectionReport]:
    """Inspect the folder; end the command if it can't be read."""
    import asyncio
    import tempfile

    from nadi.segmentstore import reserve
    from nadi.segmentstore.repair.inspection import inspect_folder

    with errors_told(OSError), reserve.in_words(Path(tempfile.gettempdir())):  # states are copied there
        return asyncio.run(inspect_folder(data))


def tell(reports: list[InspectionReport], *, is_repaired: bool = False) -> bool:
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


def repair(data: DataFolder, yes: Yes = False) -> None:
    """Repair a damaged data folder, after reporting what is damaged and what would be given up.

    Nothing is deleted: whatever is replaced stays beside it, with `.damaged-<time>` in its name. Exits with code 0 if
    all is well then, and with 1 if anything is lost or was given up; the output says whether a server can be started.
    """
    given_up: dict[str, None] = {}  # in order, each once
    with locked(data, changes=True):
        reports = inspected(data)
        for _ in range(_ROUNDS):
            is_sound = tell(reports, is_repaired=bool(given_up))
            plan = _plan(reports)
            if is_sound or not plan:
                break
            for line in plan:
                say(f"to do: {line}")
            confirm("Do that?", yes)
            _do(data, reports)
            given_up |= {
                f"{report.name}: {line}": None for report in reports if report.gives_up for line in report.lost
            }
            reports = inspected(data)
        else:
            is_sound = tell(reports, is_repaired=bool(given_up))
    lost = given_up | {f"{report.name}: {line}": None for report in reports for line in report.lost}
    if is_sound and not lost:
        return
    if all(report.can_be_served for report in reports):
        is_told = any(report.lost for report in reports)
        say("a server can be started" + ("; readers of what is LOST get an error" if is_told else ""))
    else:
        say("no server can be started: restore what is LOST from a copy")
    for line in given_up:
        say(f"given up: {line}")
    if lost:
        say("what is LOST can't be repaired")
        raise typer.Exit(1)


_ROUNDS = 3  # a rebuilt state may reveal damage of the log that it hid


def _plan(reports: list[InspectionReport]) -> list[str]:
    plan = []
    for report in reports:
        if report.healed:
            plan.append(f"{report.name}: rebuild what can be rebuilt without loss")
        if report.gives_up:
            plan.append(f"{report.name}: skip what can't be read, and give up what is LOST")
        if report.unnamed:
            plan.append(f"{report.name}: set aside chunks of what is given up: {report.unnamed:,}")
    return plan


def _do(data: Path, reports: list[InspectionReport]) -> None:
    import asyncio

    from nadi.runtime import REAL
    from nadi.segmentstore.data_dir import heal, known_containers
    from nadi.segmentstore.repair.skipped_frames import repair_container
    from nadi.segmentstore.tier2.opening import taken_over

    async def repaired(folder: Path, number: int) -> str:
        async with taken_over(folder.parent, REAL) as chunks:
            return await repair_container(folder, number, chunks)

    with errors_told(OSError):
        if not reports[0].is_refused:
            heal(data)
        by_name = {path.name: (number, path) for number, path in known_containers(data).items()}
        for report in reports[1:]:
            number, folder = by_name[report.name]
            if report.gives_up:
                aside = asyncio.run(repaired(folder, number))
                say(f"{report.name}: a snapshot was made of what is there, and the log starts again after it")
                if aside:
                    say(f"{report.name}: {report.unnamed:,} chunks of what was given up are kept as {aside} in tier 2")


# --- its chunks ------------------------------------------------------------------------------------------

tier2_app = typer.Typer(no_args_is_help=True)


@tier2_app.command()
def claim(
    data: Annotated[Path, typer.Argument(help="The data folder; no server may be using it. Made if it was lost.")],
    tier2: Annotated[str | None, typer.Option(help=TIER2_HELP, show_default="as the folder says")] = None,
    tier2_option: Tier2Options = None,
) -> None:
    """Say that a store's chunks are this folder's: those that were copied there, that a copy of the folder, which is
    gone, had last, or that are all there is of a lost one, for `nadi repair` to build it from."""
    import asyncio

    from nadi.runtime import REAL
    from nadi.segmentstore.data_dir import FolderLock, Tier2, check_version, is_data_folder
    from nadi.segmentstore.tier2.opening import claim_anew

    with errors_told(OSError):
        if tier2 is None and tier2_option:
            raise InvalidArgumentError("--tier2-option is for a store of chunks: give its --tier2, too")
        if tier2 is None and not is_data_folder(data):
            raise InvalidArgumentError(f"{data} is not a nadi data folder: to make one, give its --tier2")
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
        say(f"{data} is a new data folder: `{shlex.join(['nadi', 'repair', str(data)])}` builds it from what is there")
    say(f"{url} is claimed for {data}: no other copy of the folder can use it any more")
