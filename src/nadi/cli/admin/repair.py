"""`nadi check`, `nadi repair` and `nadi tier2`: check and repair a stopped data folder, and claim its chunks.

`repair` lists what would be lost and asks before it changes anything.
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
from nadi.cli.printing import confirm, reporting_errors, say
from nadi.errors import InvalidArgumentError

if TYPE_CHECKING:
    from nadi.segmentstore.repair.inspection import InspectionReport


def check(data: DataFolder) -> None:
    """Check every byte of a stopped data folder and report damage, without changing anything.

    Exits with code 1 if anything is damaged.
    """
    with locked(data, changes=False):
        reports = inspected(data)
    if not report_findings(reports):
        raise typer.Exit(1)


@contextmanager
def locked(data: Path, *, changes: bool) -> Iterator[None]:
    """Hold the folder's lock. End the command if a server holds it, or if this isn't a data folder or was written by a
    later version."""
    from nadi.segmentstore.data_dir import FolderLock, check_is_whole, check_version, is_data_folder

    with reporting_errors(OSError):
        if not data.is_dir():
            raise FileNotFoundError(f"folder {data} doesn't exist")
        check_is_whole(data)
        check_version(data)
        if not is_data_folder(data):
            problem = "it has neither a `store.json` nor containers"
            raise InvalidArgumentError(f"{data} is not a nadi data folder: {problem}")
        lock = FolderLock(data, changes=changes)
    try:
        yield
    finally:
        lock.release()


def inspected(data: Path) -> list[InspectionReport]:
    """Inspect the folder; end the command if it is unreadable."""
    import asyncio
    import tempfile

    from nadi.segmentstore import reserve
    from nadi.segmentstore.repair.inspection import inspect_folder

    with reporting_errors(OSError), reserve.mapped_errors(Path(tempfile.gettempdir())):  # holds copies of the states
        return asyncio.run(inspect_folder(data))


def report_findings(reports: list[InspectionReport], *, is_repaired: bool = False) -> bool:
    """Print the findings, and return whether everything is sound.

    is_repaired: data was given up just now and no longer shows up.
    """
    for report in reports:
        say(report.name)
        for kind, lines in (
            ("ok", report.sound),
            ("heals", report.healed),
            ("renews", report.renewed),
            ("drops", report.dropped),
            ("LOST", report.lost),
        ):
            for line in lines:
                say(f"  {kind:<6} {line}")
    if all(report.is_sound for report in reports):
        sound = "the remaining data is sound" if is_repaired else "sound: no damage found"
        say(sound + (", unless a dropped frame was acknowledged" if any(report.dropped for report in reports) else ""))
        return True
    if not any(report.lost for report in reports):
        loss = "no further data is lost" if is_repaired else "no data is lost"
        say(f"damaged, but {loss}: a server repairs this when it starts")
    else:
        say("damaged: LOST data can only be restored from a copy; without one, `nadi repair` salvages the rest")
    return False


def repair(data: DataFolder, yes: Yes = False) -> None:
    """Repair a stopped, damaged data folder, after showing the damage and what would be given up.

    Nothing is deleted: replaced files are kept, with `.damaged-<time>` in their names. Exits with code 1 if any data is
    lost or was given up. The output says whether a server can be started.
    """
    given_up: dict[str, None] = {}  # an ordered set
    with locked(data, changes=True):
        reports = inspected(data)
        for _ in range(_ROUNDS):
            is_sound = report_findings(reports, is_repaired=bool(given_up))
            plan = _plan(reports)
            if is_sound or not plan:
                break
            for line in plan:
                say(f"planned: {line}")
            confirm("Proceed?", yes)
            _do(data, reports)
            given_up |= {
                f"{report.name}: {line}": None for report in reports if report.gives_up for line in report.lost
            }
            reports = inspected(data)
        else:
            is_sound = report_findings(reports, is_repaired=bool(given_up))
    lost = given_up | {f"{report.name}: {line}": None for report in reports for line in report.lost}
    if is_sound and not lost:
        return
    if all(report.can_be_served for report in reports):
        has_errors = any(report.lost for report in reports)
        say("a server can be started" + ("; reading LOST data raises an error" if has_errors else ""))
    else:
        say("a server can't be started: restore LOST data from a copy")
    for line in given_up:
        say(f"given up: {line}")
    if lost:
        say("LOST data can't be repaired")
        raise typer.Exit(1)


_ROUNDS = 3  # a rebuilt state may reveal damage in the log


def _plan(reports: list[InspectionReport]) -> list[str]:
    plan = []
    for report in reports:
        if report.healed:
            plan.append(f"{report.name}: rebuild damaged parts that can be rebuilt without loss")
        if report.gives_up:
            plan.append(f"{report.name}: skip unreadable data and give up what is LOST")
        if report.unnamed:
            plan.append(f"{report.name}: set aside {report.unnamed:,} chunks of data that is given up")
    return plan


def _do(data: Path, reports: list[InspectionReport]) -> None:
    import asyncio

    from nadi.runtime import REAL
    from nadi.segmentstore.data_dir import heal, known_containers
    from nadi.segmentstore.repair.skipped_frames import repair_container
    from nadi.segmentstore.tier2.opening import open_for_changes

    async def repaired(folder: Path, number: int) -> str:
        async with open_for_changes(folder.parent, REAL) as chunks:
            return await repair_container(folder, number, chunks)

    with reporting_errors(OSError):
        if not reports[0].is_refused:
            heal(data)
        by_name = {path.name: (number, path) for number, path in known_containers(data).items()}
        for report in reports[1:]:
            number, folder = by_name[report.name]
            if report.gives_up:
                aside = asyncio.run(repaired(folder, number))
                say(f"{report.name}: wrote a snapshot of the remaining data and restarted the log after it")
                if aside:
                    say(f"{report.name}: {report.unnamed:,} chunks of lost data are kept as {aside} in tier 2")


# --- tier 2 ----------------------------------------------------------------------------------------------

tier2_app = typer.Typer(no_args_is_help=True)


@tier2_app.command()
def claim(
    data: Annotated[Path, typer.Argument(help="Data folder of a stopped server. Created if it was lost.")],
    tier2: Annotated[str | None, typer.Option(help=TIER2_HELP, show_default="as the folder says")] = None,
    tier2_option: Tier2Options = None,
) -> None:
    """Claim the chunks in a store for this folder.

    Use it after copying the chunks or the folder to another place, or before rebuilding a lost folder from its chunks
    with `nadi repair`.
    """
    import asyncio

    from nadi.runtime import REAL
    from nadi.segmentstore.data_dir import FolderLock, Tier2, check_version, is_data_folder
    from nadi.segmentstore.tier2.opening import reclaim

    with reporting_errors(OSError):
        if tier2 is None and tier2_option:
            raise InvalidArgumentError("--tier2-option can't be used without --tier2: add the store's URL")
        if tier2 is None and not is_data_folder(data):
            raise InvalidArgumentError(f"{data} is not a nadi data folder: to create one, add --tier2")
        is_new = not is_data_folder(data)
        if is_new and data.is_dir() and (others := sorted({path.name for path in data.iterdir()} - {"lock"})):
            raise InvalidArgumentError(f"{data} isn't empty (it contains {others[0]}): use an empty folder")
        lock = FolderLock(data)
        try:
            check_version(data)
            tier2_store = None if tier2 is None else Tier2(tier2, store_options(tier2, tier2_option, "--tier2-option"))
            url = asyncio.run(reclaim(data, tier2_store, REAL))
        finally:
            lock.release()
    if is_new:
        say(f"{data} is a new data folder: rebuild its contents with `{shlex.join(['nadi', 'repair', str(data)])}`")
    say(f"claimed {url} for {data}: other copies of the folder can't use it any longer")
